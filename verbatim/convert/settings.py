"""What MirrorMaker 2 was told, as settings of Verbatim: what has an equivalent, what is not needed here, and
what has none. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from common.config import client_properties, loading, topic_names
from common.config.client_properties import Given, Kind
from common.config.start_offsets import MIRROR_MAKER
from common.errors import SettingsError
from verbatim.convert.mirror_maker import CLIENTS, Mirror

DEFAULT_TOPICS_EXCLUDE = r".*\.replica"
DEFAULT_GROUPS_EXCLUDE = "console-consumer-.*,connect-.*,__.*"
"""MirrorMaker 2's own. Topics that begin with `__` are left out by Verbatim anyway."""
NEVER = (r"mm2.*\.internal", r".*\.checkpoints\.internal", r"\..*", "heartbeats", r".*\.heartbeats")
"""Topics that MirrorMaker 2 never copies, or that are its own."""
_STORES = ("ssl.truststore.", "ssl.keystore.")
_POLICIES = ("DefaultReplicationPolicy", "IdentityReplicationPolicy")

_NOT_NEEDED = {
    "offset.lag.max": "mappings are exact for every record",
    "offset-syncs.": "mappings are exact for every record",
    "emit.offset-syncs.": "mappings are exact for every record",
    "emit.checkpoints.": "mappings are exact for every record",
    "refresh.topics.enabled": "new topics are always looked for (TOPIC_REFRESH_INTERVAL)",
    "sync.topic.configs.interval.seconds": "looked at with the topics (TOPIC_REFRESH_INTERVAL)",
    "sync.topic.acls.interval.seconds": "looked at with the topics (TOPIC_REFRESH_INTERVAL)",
    "refresh.groups.": "groups are looked for in each round (OFFSETS_INTERVAL)",
    "checkpoints.topic.": "mappings are exact for every record",
    "exactly.once.": "records always arrive exactly once",
    "dedicated.mode.enable.internal.rest": "instances need no connections to each other",
    "tasks.max": "as many lanes as CPUs; PARALLELISM sets another number",
    "offset.storage.": "a worker's own",
    "status.storage.": "a worker's own",
    "config.storage.": "a worker's own",
    "offset.flush.": "a worker's own",
    "listeners": "a worker's own",
    "rest.": "a worker's own",
    "group.id": "a worker's own",
    "errors.": "a record that can't be copied halts its partition by name",
    "heartbeats.topic.replication.factor": "REPLICATION_FACTOR holds for it",
    "key.converter": "records are copied byte for byte",
    "value.converter": "records are copied byte for byte",
    "header.converter": "headers are copied byte for byte",
}
"""Names, and beginnings of names that end with a dot -> why they have no meaning here."""


@dataclass
class Converted:
    """`settings`: variable -> value, in order; `why` for some of them; `unneeded` and `missing`: what was
    said there, and why it has no meaning, or no equivalent, here. `origin`: whose `name` is."""

    name: str
    origin: str = "MirrorMaker 2's"
    settings: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    unneeded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def set(self, variable: str, value: str, why: str = "") -> None:
        self.settings[variable] = value
        if why:
            self.why[variable] = why

    def lines(self) -> list[str]:
        """As a file of variables, with comments."""
        out = [f"# {self.origin} {self.name}"]
        for variable, value in self.settings.items():
            if variable in self.why:
                out.append(f"# {self.why[variable]}")
            out.append(f"{variable}={value}")
        out += [f"# not needed: {one}" for one in self.unneeded]
        out += [f"# NO EQUIVALENT: {one}" for one in self.missing]
        return out


def converted(mirror: Mirror) -> Converted:
    """Everything that was said is in one of its lists."""
    out = Converted(mirror.name)
    left = dict(mirror.config)
    out.set("APPLICATION_NAME", _link_name(mirror))
    prefixed = _policy(mirror, left, out)
    _clusters(mirror, left, out)
    _topics(mirror, left, prefixed, out)
    _configuration(left, out)
    _groups(left, out)
    _heartbeats(left, out)
    for name, value in left.items():
        why = _not_needed(name)
        if why is None:
            out.missing.append(said(name, value))
        else:
            out.unneeded.append(f"{said(name, value)} ({why})")
    out.missing += mirror.notes
    must_load(out)
    return out


def _link_name(mirror: Mirror) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"{mirror.source}-to-{mirror.target}")


def said(name: str, value: str) -> str:
    shown = "..." if client_properties.is_secret(name) else value
    return f"{name}={shown}"


def _not_needed(name: str) -> str | None:
    for known, why in _NOT_NEEDED.items():
        if name == known or (known.endswith(".") and name.startswith(known)):
            return why
    return None


def _true(value: str | None, default: bool) -> bool:
    return default if value is None else value.strip().lower() == "true"


# names of destinations


def _policy(mirror: Mirror, left: dict[str, str], out: Converted) -> str:
    """What stands before each copied topic's name; \"\" where names stay as they are."""
    policy = left.pop("replication.policy.class", _POLICIES[0])
    separator = left.pop("replication.policy.separator", ".")
    kind = policy.rpartition(".")[2]
    if kind == _POLICIES[1]:
        return ""
    if kind != _POLICIES[0]:
        out.missing.append(
            f"replication.policy.class={policy} (names of destinations: KAFKA_CLUSTERS_DESTINATION_TOPIC, or a map, or a rewrite)"
        )
        return ""
    out.set("KAFKA_CLUSTERS_SOURCE_NAME", mirror.source)
    out.set(
        "KAFKA_CLUSTERS_DESTINATION_TOPIC",
        "{source}" + separator + "{topic}",
        "DefaultReplicationPolicy: the source's alias stands before each name",
    )
    return separator


# clusters


def _clusters(mirror: Mirror, left: dict[str, str], out: Converted) -> None:
    for side, alias in (("SOURCE", mirror.source), ("DESTINATION", mirror.target)):
        given = dict(mirror.clients.get(alias, {}))
        servers = given.pop("bootstrap.servers", "")
        out.set(f"KAFKA_CLUSTERS_{side}_BOOTSTRAP_SERVERS", servers)
        if side == "SOURCE":
            _start(mirror, left, given, out)
        for name, value in given.items():
            client(side, alias, name, value, given, servers, out)


def _start(mirror: Mirror, left: dict[str, str], given: dict[str, str], out: Converted) -> None:
    reset = given.pop("consumer.auto.offset.reset", given.pop("auto.offset.reset", "earliest"))
    if reset not in ("earliest", "latest"):
        out.missing.append(f"consumer.auto.offset.reset={reset} (START_OFFSETS)")
        reset = "earliest"
    # A connector's own wins over its worker's.
    topic = left.pop("offsets.storage.topic", mirror.offsets)
    start = f"{MIRROR_MAKER}:{topic or '<OFFSETS TOPIC>'}:{mirror.source}:{mirror.connector}".rstrip(":")
    if not topic:
        why = f"to go on where MirrorMaker 2 stops, {start} with its workers' offset.storage.topic"
        out.set("START_OFFSETS", reset, why)
        return
    out.set(
        "START_OFFSETS",
        start if reset == "earliest" else f".*={start},{reset}",
        "goes on where MirrorMaker 2 has stopped: stop it before the replicator starts, and do not start it again (docs: "
        f"guides/migration#from-mirrormaker-2); with destinations of its own: {reset}",
    )


def client(
    side: str, alias: str, name: str, value: str, beside: Mapping[str, str], servers: str, out: Converted
) -> None:
    """A property of the cluster's clients, as Java has them; `beside` are all of them."""
    kind, _, rest = name.partition(".")
    if (why := _not_needed(name)) is not None:
        out.unneeded.append(f"{alias}.{said(name, value)} ({why})")
        return
    if name.startswith("sasl.") and beside.get("sasl.mechanism") == "AWS_MSK_IAM":
        _msk_iam(f"KAFKA_CLUSTERS_{side}_PROPERTIES_SASL_", f"{alias}.{said(name, value)}", out)
        return
    layer, of_kind = (kind.upper(), rest) if kind in CLIENTS else ("PROPERTIES", name)
    if kind in CLIENTS and kind != "admin" and kind != ("consumer" if side == "SOURCE" else "producer"):
        out.unneeded.append(f"{alias}.{said(name, value)} (no such client carries records there)")
        return
    kinds: tuple[Kind, ...] = ("consumer", "producer", "admin")
    wanted = [one for one in kinds if layer in ("PROPERTIES", one.upper())]
    bootstrap = Given("bootstrap.servers", servers, f"{alias}.bootstrap.servers")
    problems = []
    # The parts of a key or trust store mean something together.
    store = next((name[: name.index(one) + len(one)] for one in _STORES if one in name), None)
    parts = {name: value} | {n: v for n, v in beside.items() if store and n.startswith(store)}
    given = [Given(n.removeprefix(f"{kind}.") if of_kind != name else n, v, n) for n, v in parts.items()]
    for one in wanted:
        try:
            client_properties.resolve(one, [(layer != "PROPERTIES", given)], bootstrap)
        except SettingsError as error:
            problems.append(str(error).partition(": ")[2])
    if len(problems) == len(wanted):
        out.missing.append(f"{alias}.{said(name, value)} ({problems[0]})")
        return
    out.set(f"KAFKA_CLUSTERS_{side}_{layer}_{of_kind.upper().replace('.', '_')}", value)


def _msk_iam(variable: str, words: str, out: Converted) -> None:
    out.set(f"{variable}MECHANISM", "OAUTHBEARER")
    why = "for AWS_MSK_IAM: needs the extra msk-iam, and the variable AWS_REGION (docs: guides/security)"
    out.set(f"{variable}OAUTHBEARER_PROVIDER", "aws-msk-iam", why)
    out.unneeded.append(f"{words} (IAM by tokens)")


# topics


def _topics(mirror: Mirror, left: dict[str, str], separator: str, out: Converted) -> None:
    chosen = left.pop("topics", ".*")
    excluded = _either(left, "topics.exclude", "topics.blacklist", DEFAULT_TOPICS_EXCLUDE)
    out.set("KAFKA_CLUSTERS_SOURCE_TOPIC", entries("topics", chosen, out))
    exclude = [entries("topics.exclude", excluded, out), *NEVER]
    why = "with MirrorMaker 2's own topics"
    if separator:
        cut, there = re.escape(separator), re.escape(mirror.target)
        exclude.append(f"(.*{cut})?{there}{cut}.*")
        why += ", and those that were copied from the target, as their names tell"
    out.set("KAFKA_CLUSTERS_SOURCE_TOPIC_EXCLUDE", ",".join(filter(None, exclude)), why)
    if (interval := left.pop("refresh.topics.interval.seconds", None)) is not None:
        out.set("TOPIC_REFRESH_INTERVAL", f"{interval}s")


def _either(left: dict[str, str], name: str, old: str, default: str) -> str:
    older = left.pop(old, default)
    return left.pop(name, older)


def entries(name: str, text: str, out: Converted) -> str:
    """A list of names and Java's regular expressions, of which those that Python's can't be are left out and
    named."""
    good = []
    for entry in topic_names.split_entries(text):
        try:
            topic_names.compiled(entry)
        except ValueError as error:
            out.missing.append(f"{name}: {entry} ({error})")
        else:
            good.append(entry)
    return ",".join(good)


def _configuration(left: dict[str, str], out: Converted) -> None:
    if (factor := left.pop("replication.factor", None)) is not None:
        out.set("REPLICATION_FACTOR", factor)
    if not _true(left.pop("sync.topic.configs.enabled", None), True):
        out.set("TOPIC_CONFIG_SYNC", "false")
    excluded = _either(left, "config.properties.exclude", "config.properties.blacklist", "")
    if excluded:
        out.set("TOPIC_CONFIG_EXCLUDE", entries("config.properties.exclude", excluded, out))
    acls = left.pop("sync.topic.acls.enabled", None)
    if _true(acls, True):
        out.set("ACL_SYNC", "read", "" if acls else "MirrorMaker 2 does so unless told otherwise")


# groups


def _groups(left: dict[str, str], out: Converted) -> None:
    synced = _true(left.pop("sync.group.offsets.enabled", None), False)
    groups = left.pop("groups", ".*")
    excluded = _either(left, "groups.exclude", "groups.blacklist", DEFAULT_GROUPS_EXCLUDE)
    interval = left.pop("sync.group.offsets.interval.seconds", None)
    if not synced:
        out.unneeded.append("groups (sync.group.offsets.enabled is false; else run `offsets`)")
        return
    out.set("CONSUMER_GROUPS", entries("groups", groups, out), "run `offsets`, which keeps them in step")
    out.set("CONSUMER_GROUPS_EXCLUDE", entries("groups.exclude", excluded, out))
    if interval is not None:
        out.set("OFFSETS_INTERVAL", f"{interval}s")


def _heartbeats(left: dict[str, str], out: Converted) -> None:
    enabled = left.pop("emit.heartbeats.enabled", None)
    interval = left.pop("emit.heartbeats.interval.seconds", None)
    if _true(enabled, False) or (enabled is None and interval is not None):
        out.set("HEARTBEATS_INTERVAL", f"{interval or 1}s")


def must_load(out: Converted) -> None:
    """What the applications would refuse is told here."""
    try:
        loading.load(environ=out.settings)
    except SettingsError as error:
        out.missing.append(str(error))


def text(all_converted: Iterable[Converted]) -> str:
    return "\n\n".join("\n".join(one.lines()) for one in all_converted)
