"""The first look at a cluster, before anything else is asked of it: do its brokers let this client in, and
can they be reached where they say.

The client library tries again whatever fails, and in the end says "timed out". So one client is made here
whose errors are listened to, and what they leave open is asked of the listeners
(common/kafka/client/listener_check.py). What may pass by itself is waited for; what may not ends the look at
once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from common import ports
from common.config import wire_properties
from common.errors import KafkaTimeout, LinkRefused, SettingsError
from common.kafka.client import clients
from common.kafka.client.listener_check import Reason, shown, unreachable, why
from common.kafka.wire import oauth_tokens, sasl
from common.kafka.wire.connection import access
from common.kafka.wire.protocol import Address
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.client_properties import Kind
    from common.config.fields import Cluster
    from common.config.settings import Settings

log = logging.getLogger(__name__)

FIRST_S, MOST_S = 0.25, 4.0
"""For an answer: the first time, and at most, when it has doubled."""
SILENT_S = 2.0
"""After so long without a word from the client the listeners are asked."""
MAY_PASS_S = 8.0
"""How long to wait for brokers whose trouble may pass, where others never let anybody in. What is known is
told meanwhile."""
MOST_ASKED = 8
"""Addresses that are looked at at a time, and that are named."""
_WAY_IN = re.compile(
    r"security\.|ssl\.|sasl\.|enable\.(ssl|sasl)|https\.|plugin\.|broker\.address\.family|client\.dns"
)
_FILES = re.compile(r"(ssl|https)\.\w+\.location|sasl\.oauthbearer\.assertion\.(\w+\.)*file")
_ABOUT = re.compile(r"(?:\w+://)?(\S+):(\d+)/(bootstrap|\d+): ")
_AGE = re.compile(r" \(after \d+ms in state \w+\)$")


def cluster_id(
    settings: Settings, cluster: Cluster, deadline: Deadline, tell: Callable[[str], None] = log.warning
) -> str:
    """The cluster's id, once all kinds of clients that the link has there are let in.

    Raises SettingsError where a client can't be made, LinkRefused where the brokers don't let it in and won't
    by themselves, KafkaTimeout where nothing was reached by the deadline: each with the variable, the
    address, what happened and what to do. The last is logged once, too, long before. `tell` gets a line for
    each broker that is away while others are not.
    """
    # A topic that may be described: a question about any other is one that brokers write down as denied.
    topic = settings.control_topic if cluster == "destination" else None
    found = ""
    seen: list[dict[str, Any]] = []
    for kind in _kinds(settings, cluster):
        config = settings.client_config(cluster, kind)
        way_in = {name: value for name, value in config.items() if _WAY_IN.match(name)}
        if way_in not in seen:
            seen.append(way_in)
            # Whatever else only a consumer or a producer understands, this client would not.
            own = config if kind == "admin" else {"bootstrap.servers": config["bootstrap.servers"], **way_in}
            look = _Look(own, cluster, kind, tell)
            look.check(deadline)
            found = look.until(topic, deadline)
    return found


def _kinds(settings: Settings, cluster: Cluster) -> tuple[Kind, ...]:
    if cluster == "source" and not settings.heartbeats_interval_s:
        return ("admin", "consumer")
    return ("admin", "consumer", "producer")


class _Look:
    """One way into a cluster. The client's errors and log lines come to an end here."""

    def __init__(
        self, config: Mapping[str, Any], cluster: Cluster, kind: Kind, tell: Callable[[str], None]
    ) -> None:
        self._warn = tell
        self._config = config
        self._variable = f"KAFKA_CLUSTERS_{cluster.upper()}_"
        self._side = "target" if cluster == "destination" else "source"
        self._kind = kind
        self._heard: dict[Address | None, dict[int, str]] = {}
        """What the library said last, by whom it is about (None: by nobody's name) and the error's code."""
        self._said = ""
        self._brokers: dict[Address, int] = {}
        """Where they say that they are, and their ids."""

    def check(self, deadline: Deadline) -> None:
        """What the library would not say, or not so that anybody understands it; then make the client."""
        self._check_files()
        self._check_followed()
        self._check_token(deadline)
        self._client = self._made()

    def until(self, topic: str | None, deadline: Deadline) -> str:
        """Look until something is reached; the cluster's id."""
        within_s, silent, may_pass = FIRST_S, Deadline(SILENT_S), Deadline(MAY_PASS_S)
        while True:
            reasons: list[Reason] = []
            try:
                timeout = max(0.1, deadline.left(within_s))
                found = self._client.list_topics(*filter(None, [topic]), timeout=timeout)
                self._brokers = {(str(b.host), b.port): b.id for b in found.brokers.values()}
                reasons = self._elsewhere(found)
                if not reasons:
                    return self._id(found)
            except KafkaException:
                self._client.poll(0)
                # Far away and slow is no reason.
                if self._heard or silent.passed():
                    reasons = self._elsewhere() or self._why_not(silent.passed(), may_pass.passed())
            self._tell(reasons, deadline)
            within_s = min(MOST_S, 2 * within_s)
            ports.sleep(deadline.left(0.1))

    def _tell(self, reasons: list[Reason], deadline: Deadline) -> None:
        final = [reason for reason in reasons if not reason.passing]
        words = "; ".join(list(self._worded(final or reasons))[:MOST_ASKED])
        if final:
            raise LinkRefused(words)
        if deadline.passed():
            raise KafkaTimeout(
                words or f"{self._variable}BOOTSTRAP_SERVERS: no answer within the time allowed"
            )
        if words and words != self._said:
            log.warning("%s (trying again for %.0f s)", words, deadline.left())
            self._said = words

    def _worded(self, reasons: Iterable[Reason]) -> Iterable[str]:
        who = "" if self._kind == "admin" else f" (its {self._kind} clients)"
        return dict.fromkeys(
            f"{self._variable}{reason.setting}: {self._side} broker {reason.words}{who}" for reason in reasons
        )

    def _why_not(self, silent: bool, at_last: bool) -> list[Reason]:
        heard = self._heard
        # A client that was told where brokers are keeps to these.
        known = access({"bootstrap.servers": self._config["bootstrap.servers"]}).bootstrap
        addresses = list(self._brokers) or known

        def asked(address: Address) -> Reason | None:
            return why(self._config, address, heard.get(None, {}) | heard.get(address, {}))

        with ThreadPoolExecutor(MOST_ASKED) as pool:
            reasons = [reason for reason in pool.map(asked, addresses) if reason is not None]
        without = len(reasons) < len(addresses)
        if without and not silent:
            return []
        if without or (any(reason.passing for reason in reasons) and not at_last):
            # Nothing stands against one of them, or what may pass, as where it is slow: one is enough.
            return [reason._replace(passing=True) for reason in reasons]
        return reasons

    def _elsewhere(self, found: ClusterMetadata | None = None) -> list[Reason]:
        """Why nothing can be asked of the brokers that the cluster names. Where some of them are away, that
        is told once it has answered."""
        brokers = self._brokers
        with ThreadPoolExecutor(MOST_ASKED) as pool:
            looked = zip(brokers, pool.map(unreachable, brokers), strict=True)
            lost = {at: words for at, words in looked if words is not None}
        reasons = [
            Reason(
                "BOOTSTRAP_SERVERS",
                f"{brokers[at]} is advertised as {shown(at)}, which can't be reached ({words}); the brokers' advertised.listeners must name "
                "what can be reached from here",
                True,
            )
            for at, words in list(lost.items())[:MOST_ASKED]
        ]
        if found is not None and not brokers:
            words = f"{self._config['bootstrap.servers']} answers, and names no broker of its cluster"
            return [Reason("BOOTSTRAP_SERVERS", words, True)]
        if len(lost) == len(brokers):
            return reasons
        for words in self._worded(reasons if found is not None else ()):
            self._warn(words)
        return []

    def _id(self, found: ClusterMetadata) -> str:
        if not found.cluster_id:
            raise LinkRefused(f"the {self._side} cluster does not tell its cluster id")
        return str(found.cluster_id)

    # making the client

    def _made(self) -> AdminClient:
        own: dict[str, Any] = {
            "allow.auto.create.topics": False,
            "error_cb": self._hear,
            "reconnect.backoff.max.ms": 1000,
        }
        try:
            return AdminClient({**clients.admin_config(self._config), **own}, logger=_Silent())
        except KafkaException as error:
            raise self._ill_made(str(error.args[0].str())) from None

    def _hear(self, error: KafkaError) -> None:
        about: Address | None = None
        words = _AGE.sub("", error.str())
        if found := _ABOUT.match(words):
            about, words = (found[1].strip("[]"), int(found[2])), words[found.end() :]
            if found[3] != "bootstrap":
                self._brokers[about] = int(found[3])
        said = self._heard.setdefault(about, {})
        # The last one comes last. What is said of a certificate or a token is said once, or seldom, so
        # nothing is forgotten.
        said.pop(error.code(), None)
        said[error.code()] = words

    def _setting(self, name: str) -> str:
        return f"{self._variable}PROPERTIES_{name.upper().replace('.', '_')}"

    def _ill_made(self, words: str) -> SettingsError:
        words = words.removeprefix("Failed to create admin client: ")
        if "SASL mechanism" in words:
            known = re.search(r"build options: (.*)", words)
            mechanisms = (
                known[1].replace("SASL_SCRAM", "SCRAM-SHA-256, SCRAM-SHA-512,").split() if known else []
            )
            wanted = self._config.get("sasl.mechanism", "GSSAPI, which is what counts where none is set,")
            return SettingsError(
                f"{self._setting('sasl.mechanism')}: {wanted} is not what this client library can do: set one of {' '.join(mechanisms) or 'its own'}"
            )
        name = re.search(r"\b(?:ssl|sasl|plugin|security)\.[a-z.]*[a-z]", words)
        return SettingsError(
            f"{self._setting(name[0] if name else '<KEY>')}: no {self._kind} client of the {self._side} can be made: {words}"
        )

    def _check_files(self) -> None:
        if not str(self._config.get("security.protocol", "")).lower().endswith("ssl"):
            return
        for name, place in self._config.items():
            if not _FILES.fullmatch(name) or (
                name.endswith("ca.location") and (place == "probe" or Path(str(place)).is_dir())
            ):
                continue
            try:
                with Path(str(place)).open("rb"):
                    pass
            except OSError as error:
                raise SettingsError(
                    f"{self._setting(name)}: {name} of the {self._side}: can't read {place}: {error.strerror}"
                ) from None

    def _check_token(self, deadline: Deadline) -> None:
        """Without a word, the client library waits for ever for somebody to hand it a token."""
        config = self._config
        if (name := config.get(oauth_tokens.PROVIDER)) is not None:
            try:
                oauth_tokens.provider(str(name))
            except ValueError as error:
                raise SettingsError(f"{self._setting(oauth_tokens.PROVIDER)}: {error}") from None
        elif (
            str(config.get("sasl.mechanism", "")).upper() == "OAUTHBEARER"
            and config.get("sasl.oauthbearer.method", "default") == "default"
            and str(config.get("enable.sasl.oauthbearer.unsecure.jwt", "false")).lower() != "true"
        ):
            raise SettingsError(
                f"{self._setting('sasl.oauthbearer.method')}: OAUTHBEARER of the {self._side} has nowhere to get a token from: set "
                "sasl.oauthbearer.method=oidc, with sasl.oauthbearer.token.endpoint.url, client id and client secret, or sasl.oauthbearer.provider"
            )

        asked = oauth_tokens.PROVIDER in config or config.get("sasl.oauthbearer.method") == "oidc"
        if asked and wire_properties.sasl_mechanism(config) == "OAUTHBEARER":
            self._wait_for_token(deadline)

    def _wait_for_token(self, deadline: Deadline) -> None:
        """The one that the connections will use. Who gives tokens may be away for a while, and is waited for,
        as brokers are."""
        provided = oauth_tokens.PROVIDER in self._config
        tokens = oauth_tokens.of(self._config)
        while True:
            try:
                tokens.waited_for()
                return
            except sasl.Refused as error:
                setting, words, passing = "PROVIDER" if provided else "CLIENT_SECRET", str(error), False
            except OSError as error:
                setting, words, passing = "PROVIDER" if provided else "TOKEN_ENDPOINT_URL", str(error), True
            at = f"{self._config['bootstrap.servers']}: no token: {words}"
            self._tell([Reason(f"PROPERTIES_SASL_OAUTHBEARER_{setting}", at, passing)], deadline)
            ports.sleep(deadline.left(0.1))

    def _check_followed(self) -> None:
        if (found := wire_properties.refused(self._config)) is not None:
            what, instead = found
            raise LinkRefused(
                f"{self._setting(what.partition('=')[0])}: {what} of the {self._side} can't be followed: {instead}"
            )


class _Silent:
    """What the client logs is said here, in other words."""

    def log(self, *_: object) -> None:
        return
