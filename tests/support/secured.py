"""A cluster with Kafka's own authorizer and SCRAM over TLS: users, rights, and what was denied. Whoever
asserts something is elsewhere.

Tests look after it through the plain listener, whose clients may do everything; users come in through the
other one.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.support.authority import Authority
from verbatim.local.kafka_cluster import LOG4J, Cluster
from verbatim.local.processes import HOST, free_ports

_CALL_S = 30.0
_DENIALS = """
logger.authorizer.name = kafka.authorizer.logger
logger.authorizer.level = info
"""
_DENIED = re.compile(
    r"Principal = User:(\S+) is Denied operation = (\S+) from host = \S+ on resource = (\w+):LITERAL:(\S+)"
)


class Right(NamedTuple):
    """One permission: (READ, "TOPIC", "orders"); a name that ends with `*` is a prefix, `kafka-cluster` the
    cluster."""

    operation: str
    resource: str
    name: str

    @property
    def shown(self) -> str:
        return f"{self.operation} on {self.resource} {self.name}"


AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # Whoever comes in through the plain listeners: the tests, and the node itself.
    "super.users": "User:ANONYMOUS",
}
"""Properties of brokers that have access rules."""


class Denied(NamedTuple):
    """An attempt that the authorizer refused."""

    operation: str
    resource: str
    name: str


class SecuredCluster(Cluster):
    """One node. Nobody but its super users may do anything that was not granted."""

    def __init__(self, data_folder: Path) -> None:
        super().__init__(data_folder=data_folder)
        (self._secure_port,) = free_ports(1)
        self._passwords: dict[str, str] = {}

    @property
    def secure_servers(self) -> str:
        """Where users come in."""
        return f"{HOST}:{self._secure_port}"

    def user(self, name: str) -> dict[str, str]:
        """Make a user without any right, and return the client properties (in Kafka's spelling) to come in
        with."""
        password = self._passwords.setdefault(name, secrets.token_hex(16))
        change = UserScramCredentialUpsertion(
            name, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), password.encode()
        )
        admin = self._admin()
        admin.alter_user_scram_credentials([change])[name].result(_CALL_S)
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": name,
            "sasl.password": password,
            "ssl.ca.location": str(self.folder / "ca.pem"),
        }

    def grant(self, user: str, rights: Sequence[Right]) -> None:
        """Give rights to a user."""
        self._change(user, rights, AclPermissionType.ALLOW, True)

    def revoke(self, user: str, rights: Sequence[Right]) -> None:
        """Take rights away that were granted."""
        self._change(user, rights, AclPermissionType.ALLOW, False)

    @contextmanager
    def denying(self, user: str, rights: Sequence[Right]) -> Iterator[None]:
        """For a while, deny rights that a wider grant holds."""
        self._change(user, rights, AclPermissionType.DENY, True)
        try:
            yield
        finally:
            self._change(user, rights, AclPermissionType.DENY, False)

    def _change(self, user: str, rights: Sequence[Right], permission: AclPermissionType, there: bool) -> None:
        """Make rules, or take them away, and wait until the authorizer goes by it: that is later than the
        answer."""
        if not rights:
            return
        admin = self._admin()
        fields = [binding(user, right, permission) for right in rights]
        exactly = [AclBindingFilter(*of_one) for of_one in fields]
        changes: Iterable[Future[Any]] = (
            admin.create_acls([AclBinding(*of_one) for of_one in fields]).values()
            if there
            else admin.delete_acls(exactly).values()
        )
        for done in changes:
            done.result(_CALL_S)
        deadline = time.monotonic() + _CALL_S
        for right, rule in zip(rights, exactly, strict=True):
            while bool(admin.describe_acls(rule).result(_CALL_S)) != there:
                assert time.monotonic() < deadline, f"{right.shown}: not followed"

    def denied(self, user: str) -> list[Denied]:
        """What the authorizer has denied to a user so far."""
        lines = (self.folder / "node-1.log").read_text(errors="replace").splitlines()
        found = [match for line in lines if (match := _DENIED.search(line))]
        return [Denied(m[2], m[3].upper(), m[4]) for m in found if m[1] == user]

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 4})

    def _prepare(self, deadline: float) -> None:
        self._make_certificate()
        super()._prepare(deadline)
        (self.folder / "log4j2.properties").write_text(LOG4J + _DENIALS)

    def _make_certificate(self) -> None:
        folder = self._given
        assert folder is not None
        folder.mkdir(parents=True, exist_ok=True)
        authority = Authority()
        (folder / "ca.pem").write_text(authority.pem)
        (folder / "broker.pem").write_text("".join(authority.issue("broker")))

    def _properties(self, node: int) -> dict[str, str]:
        found = super()._properties(node)
        secure: dict[str, Any] = {
            "listeners": f"{found['listeners']},USERS://{self.secure_servers}",
            "advertised.listeners": f"{found['advertised.listeners']},USERS://{self.secure_servers}",
            "listener.security.protocol.map": f"{found['listener.security.protocol.map']},USERS:SASL_SSL",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.users.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.folder / "broker.pem",
            **AUTHORIZED,
        }
        return found | {key: str(value) for key, value in secure.items()}


@contextmanager
def secured_pair(source: Path, target: Path) -> Iterator[tuple[SecuredCluster, SecuredCluster]]:
    """A source and a target, started at the same time; their data lie in the folders given."""
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        clusters = [SecuredCluster(folder) for folder in (source, target)]
        at, to = pool.map(stack.enter_context, clusters)
        yield at, to


def binding(
    user: str, right: Right, permission: AclPermissionType = AclPermissionType.ALLOW
) -> tuple[ResourceType, str, ResourcePatternType, str, str, AclOperation, AclPermissionType]:
    prefixed = right.name.endswith("*") and right.name != "*"
    return (
        # The client calls the cluster so, as the protocol does for its configuration.
        ResourceType.BROKER if right.resource == "CLUSTER" else ResourceType[right.resource],
        right.name.removesuffix("*") or "*",
        ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation[right.operation],
        permission,
    )
