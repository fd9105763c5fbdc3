"""Access rules of topics as the admin client reads, grants and revokes them. Which ones is decided in
common/link/acl_sync.py."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, cast

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from common.errors import LinkRefused
from common.kafka.errors import future_result, retrying
from common.kafka.model import Acl
from common.ports import Deadline

_PATTERNS = (ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED)


def topic_acls(client: AdminClient, which: str, deadline: Deadline) -> set[Acl]:
    """All rules on topics of a cluster; `which` is source or target, for errors. Raises LinkRefused without
    the right, or an authorizer."""
    any_text: Any = None  # which the client takes for any, but not by its types
    everything = AclBindingFilter(
        ResourceType.TOPIC,
        any_text,
        ResourcePatternType.ANY,
        any_text,
        any_text,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )

    def ask(timeout: float) -> list[AclBinding]:
        return list(future_result(client.describe_acls(everything, request_timeout=timeout), timeout + 1))

    def may_ask(timeout: float) -> bool:
        # A broker that has just started could abort the process here (docs/internals/client-libraries.md);
        # one has just answered.
        asked = client.describe_cluster(include_authorized_operations=True, request_timeout=timeout)
        return AclOperation.DESCRIBE in (future_result(asked, timeout + 1).authorized_operations or ())

    what = f"reading the access rules of the {which} cluster"
    try:
        found = retrying(what, ask, deadline)
        if not found:
            # A denial comes out of the client as no rules at all (librdkafka 2.16): taken for that, all
            # copied rules would be taken back.
            if not retrying(what, may_ask, deadline):
                raise LinkRefused(f"{what}: not allowed; grant DESCRIBE on the cluster")
            found = retrying(what, ask, deadline)  # it may have been allowed since
    except KafkaException as error:
        raise LinkRefused(
            f"the access rules of the {which} cluster can't be read: {error.args[0].str()}"
        ) from None
    return {_acl(binding) for binding in found if binding.resource_pattern_type in _PATTERNS}


def grant(client: AdminClient, acls: Collection[Acl], deadline: Deadline) -> None:
    """Make rules; those that are there already stay. Raises LinkRefused without the right."""

    def make(acl: Acl, timeout: float) -> None:
        binding = AclBinding(*_fields(acl))
        future_result(client.create_acls([binding], request_timeout=timeout)[binding], timeout + 1)

    for acl in sorted(acls):
        retrying(f"granting {shown(acl)}", partial(make, acl), deadline)


def revoke(client: AdminClient, acls: Collection[Acl], deadline: Deadline) -> None:
    """Take rules back; one that is not there is no error. Raises LinkRefused without the right."""

    def drop(acl: Acl, timeout: float) -> None:
        match = AclBindingFilter(*_fields(acl))
        future_result(client.delete_acls([match], request_timeout=timeout)[match], timeout + 1)

    for acl in sorted(acls):
        retrying(f"revoking {shown(acl)}", partial(drop, acl), deadline)


def shown(acl: Acl) -> str:
    """A rule for people."""
    return f"{acl.permission} {acl.operation} on topic {acl.name} for {acl.principal} from {acl.host}"


def _fields(
    acl: Acl,
) -> tuple[ResourceType, str, ResourcePatternType, str, str, AclOperation, AclPermissionType]:
    return (
        ResourceType.TOPIC,
        acl.name,
        ResourcePatternType[acl.pattern],
        acl.principal,
        acl.host,
        AclOperation[acl.operation],
        AclPermissionType[acl.permission],
    )


def _acl(binding: AclBinding) -> Acl:
    # The client types them as whatever a binding can be made with; those that it gives are of these types.
    pattern = cast(ResourcePatternType, binding.resource_pattern_type)
    operation, permission = (
        cast(AclOperation, binding.operation),
        cast(AclPermissionType, binding.permission_type),
    )
    return Acl(pattern.name, binding.name, binding.principal, binding.host, operation.name, permission.name)
