"""The settings of a link: declared once, read from flags, environment and file, checked; starts nothing, connects nowhere.

A value comes from the first of: flag, environment variable, YAML file (`--config`, the same keys), default. An empty
variable counts as not set; APPLICATION_NAME, and what is required, may not be. `python -m common.config.settings` prints the table for the README.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from common.config import client_properties, durations, own_topic_config, state_path, topic_names
from common.config.client_properties import Given, Kind
from common.config.near_misses import near_misses
from common.config.start_offsets import checked as checked_start
from common.errors import SettingsError

Cluster = Literal["source", "destination"]
CLUSTERS: tuple[Cluster, ...] = ("source", "destination")
KINDS: tuple[Kind, ...] = ("consumer", "producer", "admin")

_PREFIX = "KAFKA_CLUSTERS_"
_FAMILY = re.compile(_PREFIX + r"(SOURCE|DESTINATION)_(PROPERTIES|CONSUMER|PRODUCER|ADMIN)_([A-Z0-9_]+)")
_SECRET_CONF = re.compile(
    r"secret|password|passphrase|token|credential|(access|account|shared|sas|api|private)[._-]?key",
    re.IGNORECASE,
)
_LEVELS = {"WARN": "WARNING", "FATAL": "CRITICAL", "OFF": "CRITICAL", "TRACE": "DEBUG", "ALL": "DEBUG"}


def _servers(value: str) -> str:
    servers = [server.strip() for server in value.split(",") if server.strip()]
    for server in servers:
        host = re.fullmatch(
            r"(?:\w+://)?(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]@]+)(?::(\d{1,5}))?", server, re.ASCII
        )
        if not host or not 1 <= int(host[1] or 9092) <= 65535:
            raise ValueError("expected host:port, comma-separated")
    if not servers:
        raise ValueError("expected host:port, comma-separated")
    return ",".join(servers)


def _optional_name(value: str | None) -> str | None:
    return value if value is None else topic_names.check_topic_name(value)


def _selection(value: str) -> str:
    topic_names.compiled(value)
    return value


def _topic_map(value: str) -> str:
    topic_names.topic_map(value)
    return value


def _rewrites(value: str) -> str:
    topic_names.rewrites(value)
    return value


def _link_topic_config(value: str) -> str:
    own_topic_config.configured(value)
    return value


def _some_topics(value: str) -> str:
    if not topic_names.split_entries(value):
        raise ValueError("names no topic")
    return _selection(value)


def _duration(value: str | float) -> float:
    """Seconds. A bare number is refused in text, for its unit would be a guess."""
    if isinstance(value, int | float):
        return float(value)
    found = durations.seconds(value)
    if not found:
        raise ValueError(f"expected a duration such as 500ms, 30s, 5m or 7d, not {value[:40]!r}")
    return found


def _duration_or_off(value: str | float) -> float:
    """Seconds; 0 for `0`, `none` and `off`."""
    return 0.0 if str(value).strip().lower() in ("0", "0.0", "none", "off") else _duration(value)


def _switch(value: str | bool) -> bool:
    if isinstance(value, bool):
        return value
    if value.lower() not in ("true", "false"):
        raise ValueError(f"expected true or false, not {value[:40]!r}")
    return value.lower() == "true"


def _level(value: str) -> str:
    level = _LEVELS.get(value.upper(), value.upper())
    if level not in ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG"):
        raise ValueError(f"expected DEBUG, INFO, WARNING, ERROR or CRITICAL, not {value[:40]!r}")
    return level


def _master(value: str) -> str:
    if not re.fullmatch(
        r"local(\[(\d+|\*)(,\d+)?\])?|local-cluster\[[\d,\s]+\]|yarn|(spark|k8s|mesos)://\S+", value
    ):
        raise ValueError("expected local[*], local[n], spark://host:port, yarn or k8s://...")
    return value


def _address(value: str) -> str:
    if re.search(r"[\s/]", value):
        raise ValueError("expected an IP address or host name")
    return value


def _setting(
    variable: str, default: Any, description: str, shown: str | None = None, live: bool = False, **limits: Any
) -> Any:
    """`live`: a running process takes over a new value (common/config/live_reload.py)."""
    extra: dict[str, Any] = {
        "variable": variable,
        "live": live,
        "shown": shown or (f"`{default}`" if default is not ... else "required"),
    }
    return Field(default, description=description, json_schema_extra=extra, validate_default=False, **limits)


def _own_topic(variable: str, ending: str, what: str) -> Any:
    return _setting(variable, None, f"name of the link's topic with {what}", f"`<link>.{ending}`")


Servers = Annotated[str, BeforeValidator(_servers)]
Name = Annotated[str, BeforeValidator(topic_names.check_topic_name)]
OptionalName = Annotated[str | None, BeforeValidator(_optional_name)]
_MAX_LINK = topic_names.MAX_TOPIC_LENGTH - len(".offset-mappings")


@dataclass(frozen=True, slots=True)
class Policy:
    """`writes`: rights to write and alter are copied too. `read_only`: who may write at the source is denied it on the copy. `own`: the
    principals that write the copies; nothing is denied to them."""

    writes: bool = False
    read_only: bool = False
    own: frozenset[str] = frozenset()


class Settings(BaseModel):
    """One link's settings: immutable, picklable, free of I/O once loaded; printing it shows no secret.

    `client_properties` maps "<cluster>.<kind>" to librdkafka properties; client files have been read by then, so that a
    task on another machine needs none. `start_offsets` is "earliest", "latest", milliseconds since the epoch,
    or a list that common/config/start_offsets.py understands.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    application_name: Name = _setting(
        "APPLICATION_NAME", "verbatim", "the link's name: prefix of its topics, groups and transactional ids",
        max_length=_MAX_LINK,
    )  # fmt: skip
    source_bootstrap_servers: Servers = _setting(
        "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS", ..., "source brokers: `host:port`, comma-separated"
    )
    source_name: OptionalName = _setting(
        "KAFKA_CLUSTERS_SOURCE_NAME", None, "the source's name in templates and metrics", "its cluster id"
    )
    source_topic: Annotated[str, BeforeValidator(_some_topics)] = _setting(
        "KAFKA_CLUSTERS_SOURCE_TOPIC", ..., "topics to copy, comma-separated: an entry of letters, digits, `.`, `_`, "
        "`-` only is a name; any other is a regular expression that must match the whole name",
        live=True,
    )  # fmt: skip
    source_topic_exclude: Annotated[str, BeforeValidator(_selection)] = _setting(
        "KAFKA_CLUSTERS_SOURCE_TOPIC_EXCLUDE",
        "",
        "the same, to leave out (internal topics always are)",
        "none",
        live=True,
    )
    source_client_config: str | None = _setting(
        "KAFKA_CLUSTERS_SOURCE_CLIENT_CONFIG",
        None,
        "a properties file for every client of the source",
        "none",
    )
    destination_bootstrap_servers: Servers = _setting(
        "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS", ..., "target brokers: `host:port`, comma-separated"
    )
    destination_topic_template: Annotated[str, BeforeValidator(topic_names.check_template)] = _setting(
        "KAFKA_CLUSTERS_DESTINATION_TOPIC",
        "{topic}",
        "destination name; `{topic}` and `{source}` stand for the source's (`eu.{topic}`: a prefix)",
    )
    destination_topic_map: Annotated[str, BeforeValidator(_topic_map)] = _setting(
        "KAFKA_CLUSTERS_DESTINATION_TOPIC_MAP", "", "`topic=destination`, comma-separated: names of their own; wins over all below",
        "none",
    )  # fmt: skip
    destination_topic_rewrite: Annotated[str, BeforeValidator(_rewrites)] = _setting(
        "KAFKA_CLUSTERS_DESTINATION_TOPIC_REWRITE", "", "`expression=name`, comma-separated: the first regular expression that matches a "
        "topic's whole name gives the destination's, where `\\1` and `\\g<name>` stand for its groups and `{source}` for the source's "
        "name; a topic that none matches goes by the template", "none",
    )  # fmt: skip
    several_sources: Literal["fail", "merge"] = _setting(
        "SEVERAL_SOURCES", "fail", "topics whose destination has one name: `fail`, the first is copied and the others are refused; `merge`, "
        "all are copied into it, each partition into the one of its number",
    )  # fmt: skip
    destination_client_config: str | None = _setting(
        "KAFKA_CLUSTERS_DESTINATION_CLIENT_CONFIG",
        None,
        "a properties file for every client of the target",
        "none",
    )
    start_offsets: Annotated[str | int, BeforeValidator(checked_start)] = _setting(
        "START_OFFSETS", "earliest", "origin of the partitions there when the link first starts: `earliest`, `latest` or "
        "a timestamp (ISO 8601, or ms since 1970), for all or, comma-separated, for some: `topic=latest` (a name or a regular expression; "
        "the first that matches), `topic:0=42` (that offset of that partition); what appears later is copied from its beginning",
    )  # fmt: skip
    topic_recreated: Literal["continue", "halt"] = _setting(
        "TOPIC_RECREATED", "continue", "a source topic deleted and made again: `continue` (its records follow the old "
        "ones) or `halt`",
    )  # fmt: skip
    replication_factor: int | None = _setting(
        "REPLICATION_FACTOR", None, "of topics the link makes", "the cluster's default", ge=1, le=32767
    )
    create_topics: Annotated[bool, BeforeValidator(_switch)] = _setting(
        "CREATE_TOPICS", True, "make missing topics and partitions on the target; `false`: they are made by hand beforehand, and what is "
        "missing is refused by name", "`true`",
    )  # fmt: skip
    provenance_headers: Annotated[bool, BeforeValidator(_switch)] = _setting(
        "PROVENANCE_HEADERS", False, "add a header with the source's cluster id to each copy, and leave out records that came from the "
        "target: for links in both directions, or in a ring, between topics of one name; on each of them, from its first record on",
        "`false`",
    )  # fmt: skip
    topic_config_sync: Annotated[bool, BeforeValidator(_switch)] = _setting(
        "TOPIC_CONFIG_SYNC", True, "keep the configuration of destination topics in step with their source's; `false`: it is "
        "copied when Verbatim makes the topic, and left alone then", "`true`",
        live=True,
    )  # fmt: skip
    topic_config_exclude: Annotated[str, BeforeValidator(_selection)] = _setting(
        "TOPIC_CONFIG_EXCLUDE",
        r"min.insync.replicas,unclean.leader.election.enable,remote\..*,local\..*",
        "topic settings that do not follow the source: names or regular expressions, as for topics",
        live=True,
    )
    topic_config_defaults: Literal["source", "target"] = _setting(
        "TOPIC_CONFIG_DEFAULTS", "source", "what a setting follows that the source topic does not set itself: the `source` cluster's "
        "default or the `target`'s; never one that would delete or refuse what the source keeps",
        live=True,
    )  # fmt: skip
    acl_sync: Literal["off", "read", "all"] = _setting(
        "ACL_SYNC", "off", "copy the access rules of copied topics: `off`; `read`, rights to read and what is denied of them; `all`, rights "
        "to write and alter too",
    )  # fmt: skip
    acl_read_only: Annotated[bool, BeforeValidator(_switch)] = _setting(
        "ACL_READ_ONLY", False, "with `ACL_SYNC=read`: who may write a topic at the source is denied it on the copy", "`false`"
    )  # fmt: skip
    acl_exempt: str = _setting(
        "ACL_EXEMPT", "", "principals to which no access rule denies anything, since they write the copies (`User:verbatim`), separated "
        "by `;`", "the target's `sasl.username`",
    )  # fmt: skip
    state_path: str = _setting(
        "STATE_PATH", "./state", "where the Delta tables live: a local path, or any Hadoop file system URL"
    )
    state_sharing: Literal["checked", "one-driver", "shared-volume"] = _setting(
        "STATE_SHARING", "checked", "whether deduplicators on several machines can write `STATE_PATH`: `checked`, else refused; `one-driver`, "
        "your word that there is never more than one; `shared-volume`, your word that a local path is one volume, mounted there by every "
        "driver and executor, whose file locks hold for all (`ReadWriteMany`, NFS 4)",
    )  # fmt: skip
    spark_master: Annotated[str, BeforeValidator(_master)] = _setting(
        "SPARK_MASTER", "local[*]", "Spark master"
    )
    health_port: int = _setting(
        "HEALTH_PORT", 8080, "port of `/healthz` and `/readyz`; `0` for none", ge=0, le=65535
    )
    health_address: Annotated[str, BeforeValidator(_address)] = _setting(
        "HEALTH_ADDRESS", "127.0.0.1", "address the health server binds to; `0.0.0.0` in containers"
    )
    instance_id: OptionalName = _setting(
        "INSTANCE_ID", None, "name of this instance for leadership: set and unique, a restarted instance leads again at "
        "once; unset, after the session time-out", "none",
    )  # fmt: skip
    staging_partitions: int = _setting(
        "STAGING_PARTITIONS",
        8,
        "partitions of the staging topic, fixed when the link is made",
        ge=1,
        le=10_000,
    )
    parallelism: int | None = _setting(
        "PARALLELISM", None, "lanes", "as many as the slots allow", ge=1, le=10_000
    )
    topic_refresh_interval_s: Annotated[float, BeforeValidator(_duration)] = _setting(
        "TOPIC_REFRESH_INTERVAL", 30.0, "how often new topics and partitions are looked for (`500ms`, `30s`, `5m`)", "`30s`",
        gt=0, allow_inf_nan=False,
        live=True,
    )  # fmt: skip
    log_level: Annotated[str, BeforeValidator(_level)] = _setting(
        "LOG_LEVEL",
        "INFO",
        "`DEBUG`, `INFO`, `WARNING`, `ERROR` or `CRITICAL`",
        live=True,
    )
    consumer_groups: Annotated[str, BeforeValidator(_selection)] = _setting(
        "CONSUMER_GROUPS", ".*", "`offsets`: consumer groups to translate: names or regular expressions, as for topics", "all",
        live=True,
    )  # fmt: skip
    consumer_groups_exclude: Annotated[str, BeforeValidator(_selection)] = _setting(
        "CONSUMER_GROUPS_EXCLUDE",
        "",
        "the same, to leave out",
        "none",
        live=True,
    )
    offsets_interval_s: Annotated[float, BeforeValidator(_duration)] = _setting(
        "OFFSETS_INTERVAL",
        5.0,
        "`offsets`: how often",
        "`5s`",
        gt=0,
        le=3600,
        allow_inf_nan=False,
        live=True,
    )
    group_name_template: Annotated[str, BeforeValidator(topic_names.check_group_template)] = _setting(
        "GROUP_NAME",
        "{group}",
        "name of a group at the target; `{group}` and `{source}` stand for the source's",
    )
    on_active_group: Literal["skip", "fail"] = _setting(
        "ON_ACTIVE_GROUP", "skip", "a group has members at the target, so its offsets can't be written: `skip` or `fail`"
    )  # fmt: skip
    on_several_targets: Literal["fail", "skip"] = _setting(
        "ON_SEVERAL_TARGETS", "fail", "records of one source partition are in several destinations: `fail` or `skip`"
    )  # fmt: skip
    rewind: Annotated[bool, BeforeValidator(_switch)] = _setting(
        "REWIND", True, "follow a group that goes back at the source; a group that is ahead at the target is never moved back",
        "`true`",
        live=True,
    )  # fmt: skip
    mappings_retention_s: Annotated[float, BeforeValidator(_duration)] = _setting(
        "MAPPINGS_RETENTION", 604800.0, "`offsets`: age up to which mappings are kept exact in memory; older offsets translate "
        "to an earlier position", "`7d`", gt=0, allow_inf_nan=False,
    )  # fmt: skip
    mappings_limit: int = _setting(
        "MAPPINGS_LIMIT", 4_000_000, "the same, in runs of records (24 bytes each)", ge=1000, le=1_000_000_000
    )
    staging_topic_name: OptionalName = _own_topic("STAGING_TOPIC", "staging", "frames")
    control_topic_name: OptionalName = _own_topic(
        "CONTROL_TOPIC", "control", "what was decided; one partition, which links of one target may share"
    )
    positions_topic_name: OptionalName = _own_topic(
        "POSITIONS_TOPIC", "positions", "where the replicator is; one partition"
    )
    mappings_topic_name: OptionalName = _own_topic(
        "OFFSET_MAPPINGS_TOPIC", "offset-mappings", "which offset became which"
    )
    group_offsets_topic_name: OptionalName = _own_topic(
        "GROUP_OFFSETS_TOPIC", "group-offsets", "translated offsets of groups; one partition"
    )
    heartbeats_interval_s: Annotated[float, BeforeValidator(_duration_or_off)] = _setting(
        "HEARTBEATS_INTERVAL", 0.0, "how often the replicator writes a heartbeat to a topic of its own at the SOURCE, which is copied like any "
        "other; the delay is in its metrics. Off, nothing is ever written there", "none", ge=0, le=3600, allow_inf_nan=False,
    )  # fmt: skip
    heartbeats_topic_name: OptionalName = _own_topic(
        "HEARTBEATS_TOPIC", "heartbeats", "heartbeats, at the source; one partition"
    )
    link_topic_config: Annotated[str, BeforeValidator(_link_topic_config)] = _setting(
        "LINK_TOPIC_CONFIG", "", "`key=value`, comma-separated: configuration of the link's own topics when Verbatim makes them "
        "(`min.insync.replicas=2`); `staging:`, `control:`, `positions:`, `offset-mappings:` or `group-offsets:` before the key means "
        "that one only (`offset-mappings:retention.ms=1209600000`)", "none",
    )  # fmt: skip
    client_properties: dict[str, dict[str, str | int]] = Field(default_factory=dict)
    config_file: str | None = None
    spark_conf: dict[str, str] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)

    @classmethod
    def load(
        cls,
        environ: Mapping[str, str] | None = None,
        config_file: str | os.PathLike[str] | None = None,
        flags: Mapping[str, str | None] | None = None,
        spark_conf: Mapping[str, str] | None = None,
    ) -> Self:
        """Read every source; `environ` is os.environ unless given, `flags` maps variables' names to text.

        Raises SettingsError, one line that begins with the name of the variable at fault.
        """
        environ = os.environ if environ is None else environ
        sources = _Sources.read(environ, config_file, flags or {})
        values: dict[str, Any] = {}
        labels: dict[str, str] = {}
        warnings = [
            f"{name}: there is no such setting, so it has no effect; did you mean {meant}?"
            for name, meant in near_misses(environ, [*FIELDS, *OLD_VARIABLES], _is_setting).items()
        ]
        old = {}
        for variable, successor in OLD_VARIABLES.items():
            given = sources.get(variable)
            if given is None:
                continue
            if successor.setting is None:
                if successor.property is None and (variable, given.value.lower()) not in _SAME_ANYWAY:
                    warnings.append(f"{given.label}: {successor.meaning}")
                continue
            if variable == "KAFKA_CONFIG_CONSUMER_AUTO_RESET" and given.value.lower() not in (
                "earliest",
                "latest",
            ):
                raise SettingsError(f"{given.label}: expected earliest or latest, not {given.value[:40]!r}")
            if variable == "STREAMS_REPLICATION_FACTOR" and given.value.strip() == "-1":
                continue  # Kafka Streams' way to say: the cluster's default
            old[successor.setting] = given
        for variable, field in FIELDS.items():
            given, older = sources.get(variable), old.get(variable)
            if given and older and variable not in OLD_VARIABLES and given.value != older.value:
                warnings.append(f"{older.label}: ignored, {variable} is set")
            given = given or older
            if given is None and variable in _NEVER_EMPTY and sources.mentions(variable):
                raise SettingsError(f"{variable}: is empty; give it a value, or leave it out")
            if given:
                values[field], labels[field] = given.value.strip(), given.label
        settings = _validated(cls, values, labels)
        _check_together(settings)
        properties: dict[str, dict[str, str | int]] = {}
        for cluster in CLUSTERS:
            for kind in KINDS:
                found, more = _client_properties(settings, sources, labels, cluster, kind)
                properties[f"{cluster}.{kind}"] = found
                warnings += [warning for warning in more if warning not in warnings]
        warnings += _doubts(settings)
        conf = dict(spark_conf or {})
        if "spark.master" in conf:
            raise SettingsError("SPARK_MASTER: set it instead of --conf spark.master")
        _check_state_path(settings, labels)
        return settings.model_copy(
            update={
                "client_properties": properties,
                "config_file": str(config_file) if config_file else None,
                "spark_conf": conf,
                "warnings": warnings,
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values (str, int, float, None, list, dict), secrets included: for tasks on executors, not for people."""
        return self.model_dump()

    def redacted(self) -> dict[str, Any]:
        """As `to_dict`, with every secret hidden: for logs."""
        shown = self.to_dict()
        shown["client_properties"] = {
            client: client_properties.redacted(config) for client, config in self.client_properties.items()
        }
        shown["spark_conf"] = {
            key: "[hidden]" if _SECRET_CONF.search(key) or _SECRET_CONF.search(value) else value
            for key, value in self.spark_conf.items()
        }
        shown["state_path"] = state_path.redacted(self.state_path)
        return shown

    def __repr_args__(self) -> Any:
        return self.redacted().items()

    @property
    def staging_topic(self) -> str:
        return self.staging_topic_name or f"{self.application_name}.staging"

    @property
    def positions_topic(self) -> str:
        return self.positions_topic_name or f"{self.application_name}.positions"

    @property
    def control_topic(self) -> str:
        return self.control_topic_name or f"{self.application_name}.control"

    @property
    def mappings_topic(self) -> str:
        return self.mappings_topic_name or f"{self.application_name}.offset-mappings"

    @property
    def group_offsets_topic(self) -> str:
        return self.group_offsets_topic_name or f"{self.application_name}.group-offsets"

    @property
    def heartbeats_topic(self) -> str:
        """Of the source."""
        return self.heartbeats_topic_name or f"{self.application_name}.heartbeats"

    @property
    def deduplicator_group(self) -> str:
        return f"{self.application_name}.deduplicator"

    @property
    def own_topic_kinds(self) -> dict[str, str]:
        """The link's own topics, and what each is called in LINK_TOPIC_CONFIG."""
        return {
            self.staging_topic: "staging",
            self.positions_topic: "positions",
            self.control_topic: "control",
            self.mappings_topic: "offset-mappings",
            self.group_offsets_topic: "group-offsets",
        }

    @property
    def own_topics(self) -> frozenset[str]:
        return frozenset(self.own_topic_kinds)

    @property
    def named_topics(self) -> list[str]:
        """The source topics that are selected by their names, whether they are there or not."""
        return sorted(name for name in topic_names.compiled(self.source_topic)[0] if self.selects(name))

    def selects(self, topic: str) -> bool:
        """Whether the link copies this source topic: never an internal one or one of its own, even when named."""
        if topic_names.is_internal(topic) or topic in self.own_topics:
            return False
        if self.heartbeats_interval_s and topic == self.heartbeats_topic:
            return True
        excluded = topic_names.matches(self.source_topic_exclude, topic)
        return not excluded and topic_names.matches(self.source_topic, topic)

    def without_heartbeats(self) -> Self:
        """The same, for what wants the source to stand still."""
        left_out = ",".join(filter(None, [self.source_topic_exclude, self.heartbeats_topic]))
        return self.model_copy(update={"heartbeats_interval_s": 0.0, "source_topic_exclude": left_out})

    def selects_group(self, group: str) -> bool:
        """Whether the offsets of this source group are translated."""
        excluded = topic_names.matches(self.consumer_groups_exclude, group)
        return not excluded and topic_names.matches(self.consumer_groups, group)

    def by_destination(self, topics: Iterable[str], source_name: str) -> dict[str, set[str]]:
        """Destination -> those of the source topics that are copied and named so; one whose name can't be written to is left out."""
        found: dict[str, set[str]] = {}
        for topic in filter(self.selects, topics):
            with contextlib.suppress(SettingsError):
                found.setdefault(self.destination_topic(topic, source_name), set()).add(topic)
        return found

    def destination_topic(self, topic: str, source_name: str) -> str:
        """The destination's name for a source topic. Raises SettingsError for a name that can't be written to."""
        variable, rule = _PREFIX + "DESTINATION_TOPIC_MAP", self.destination_topic_map
        name = topic_names.topic_map(rule).get(topic)
        try:
            if name is None:
                variable, rule = _PREFIX + "DESTINATION_TOPIC_REWRITE", self.destination_topic_rewrite
                name = topic_names.rewritten(rule, topic=topic, source=source_name)
            if name is None:
                variable, rule = _PREFIX + "DESTINATION_TOPIC", self.destination_topic_template
                name = topic_names.expand_template(rule, topic=topic, source=source_name)
        except ValueError as error:
            raise SettingsError(
                f"{variable}: {rule!r} for topic {topic!r} of {source_name!r}: {error}"
            ) from None
        if topic_names.is_internal(name) or name in self.own_topics:
            raise SettingsError(
                f"{variable}: {rule!r} makes {name!r} of topic {topic!r}, which is not for copies"
            )
        return name

    def acl_policy(self) -> Policy:
        """How access rules are copied."""
        own = {name.strip() for name in self.acl_exempt.split(";") if name.strip()}
        user = self.client_config("destination", "producer").get("sasl.username")
        if not own and user:
            own = {f"User:{user}"}
        return Policy(self.acl_sync == "all", self.acl_read_only, frozenset(own))

    def client_config(self, cluster: Cluster, kind: Kind) -> dict[str, str | int]:
        """The user's librdkafka properties for one kind of client, with bootstrap.servers; a new dict at each call.

        Aliases are spelled one way (linger.ms, compression.type, acks...); what Verbatim owns is not in it.
        """
        servers = self.source_bootstrap_servers if cluster == "source" else self.destination_bootstrap_servers
        # A consumer of single partitions joins no group, but its client looks for the group's coordinator, for which it needs the right.
        group = {"group.id": f"{self.application_name}.reader"} if kind == "consumer" else {}
        return {
            "bootstrap.servers": servers,
            **group,
            **self.client_properties.get(f"{cluster}.{kind}", {}),
        }


FIELDS: dict[str, str] = {
    info.json_schema_extra["variable"]: name  # type: ignore[index, misc]
    for name, info in Settings.model_fields.items()
    if info.json_schema_extra
}
"""Field of each variable."""

LIVE: frozenset[str] = frozenset(
    variable
    for variable, field in FIELDS.items()
    if Settings.model_fields[field].json_schema_extra["live"]  # type: ignore[index]
)
"""Variables that a running process takes over from its file."""


class Successor(NamedTuple):
    """What became of a variable of the older system: a setting, a client property (with its kind), or nothing."""

    meaning: str
    setting: str | None = None
    property: str | None = None
    kind: Kind | None = None


OLD_VARIABLES: dict[str, Successor] = {
    "KAFKA_CLUSTERS_DESTINATION_TOPIC_PROXY": Successor("`STAGING_TOPIC`", "STAGING_TOPIC"),
    "KAFKA_CONFIG_CONSUMER_AUTO_RESET": Successor("`START_OFFSETS`", "START_OFFSETS"),
    "KAFKA_CONFIG_CONSUMER_FETCH_MIN_BYTES": Successor(
        "`fetch.min.bytes` of every consumer", None, "fetch.min.bytes", "consumer"
    ),
    "KAFKA_CONFIG_PRODUCER_LINGER_MS": Successor(
        "`linger.ms` of every producer", None, "linger.ms", "producer"
    ),
    "KAFKA_CONFIG_PRODUCER_COMPRESSION_TYPE": Successor(
        "`compression.type` of every producer", None, "compression.type", "producer"
    ),
    "KAFKA_CONFIG_PRODUCER_ACKS": Successor("ignored, acks is always all"),
    "KAFKA_CONFIG_PRODUCER_DELIVERY_TIMEOUT_MS": Successor(
        "ignored, no record is given up while Verbatim runs"
    ),
    "STREAMS_REPLICATION_FACTOR": Successor("`REPLICATION_FACTOR`", "REPLICATION_FACTOR"),
    "STREAMS_NUM_STREAM_THREADS": Successor("`PARALLELISM`", "PARALLELISM"),
    "WHOLE_BATCHES": Successor(
        "gone: records always go as record batches, which serves every broker and every way to come in"
    ),
    "STREAMS_NUM_STANDBY_REPLICAS": Successor("ignored, it has no meaning here"),
    "STREAMS_BUFFER_CONFIG_MAX_BYTES": Successor("ignored, it has no meaning here"),
}
_NEVER_EMPTY = {"APPLICATION_NAME"} | {
    variable for variable, field in FIELDS.items() if Settings.model_fields[field].is_required()
}
"""Elsewhere an empty variable counts as not set. Here that would be another link, or is no link at all."""
_SAME_ANYWAY = {
    ("KAFKA_CONFIG_PRODUCER_ACKS", "all"),
    ("KAFKA_CONFIG_PRODUCER_ACKS", "-1"),
    ("WHOLE_BATCHES", "true"),
    ("KAFKA_CONFIG_PRODUCER_DELIVERY_TIMEOUT_MS", "0"),
}


def flag_of(variable: str) -> str:
    """The command-line flag of a variable."""
    return "--" + variable.removeprefix(_PREFIX).lower().replace("_", "-")


S = TypeVar("S", bound=Settings)


class _Sources:
    """What was given, first of flags, environment, file; each value with a label that begins with the variable's name."""

    def __init__(self, layers: list[tuple[str, Mapping[str, str]]]) -> None:
        self._layers = layers

    @classmethod
    def read(
        cls,
        environ: Mapping[str, str],
        config_file: str | os.PathLike[str] | None,
        flags: Mapping[str, str | None],
    ) -> _Sources:
        file = _read_yaml(Path(config_file)) if config_file else {}
        for name in file:
            _refuse_unknown(name, f"{name} (in {config_file})")
        for name in environ:
            if name.startswith(_PREFIX):
                _refuse_unknown(name, name)
        given = {name: value for name, value in flags.items() if value is not None}
        for name in given:
            _refuse_unknown(name, f"{name} (flag)")
        return cls([("flag", given), ("", environ), (f"in {config_file}", file)])

    def get(self, variable: str) -> Given | None:
        """The value that counts; an empty one counts as not given."""
        for origin, values in self._layers:
            if values.get(variable, "").strip():
                where = flag_of(variable) if origin == "flag" else origin
                return Given(variable, values[variable], f"{variable} ({where})" if where else variable)
        return None

    def mentions(self, variable: str) -> bool:
        return any(variable in values for _, values in self._layers)

    def family(self, cluster: Cluster, group: str) -> list[Given]:
        """Properties of `KAFKA_CLUSTERS_<cluster>_<group>_<KEY>`; an empty one is a value, for some have a meaning."""
        found: dict[str, Given] = {}
        for origin, values in reversed(self._layers):
            of_layer: dict[str, Given] = {}
            for variable in sorted(values):
                match = _FAMILY.fullmatch(variable)
                if match and match[1] == cluster.upper() and match[2] == group:
                    name = client_properties.from_key(match[3])
                    label = f"{variable} ({origin})" if origin else variable
                    of_layer[name] = Given(name, values[variable], label)
            # An alias in the file gives way to the property's other spelling in the environment.
            spelled = {client_properties.ALIASES.get(name, name) for name in of_layer}
            found = {
                n: g for n, g in found.items() if client_properties.ALIASES.get(n, n) not in spelled
            } | of_layer
        return list(found.values())


def _is_setting(name: str) -> bool:
    return name in FIELDS or name in OLD_VARIABLES or _FAMILY.fullmatch(name) is not None


def _refuse_unknown(name: str, label: str) -> None:
    if _is_setting(name):
        return
    near = difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.8)
    raise SettingsError(f"{label}: there is no such setting" + (f"; did you mean {near[0]}?" if near else ""))


def _read_text(path: Path, label: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{label}: can't read {path}: {error.strerror}") from None
    except ValueError:
        raise SettingsError(f"{label}: {path} is not UTF-8 text") from None


class _Loader(yaml.SafeLoader):
    """Leaves scalars as they are written: a date, an octal number or `no` means what it would in the environment."""

    # It is the class's; the stubs say an instance's.
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        first: [(tag, pattern) for tag, pattern in resolvers if tag == "tag:yaml.org,2002:null"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _read_yaml(path: Path) -> dict[str, str]:
    """A mapping of variables to scalars, as text. Errors name file and line, and show nothing of the content."""
    try:
        data = yaml.load(_read_text(path, "--config"), _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise SettingsError(f"--config: {path} is no YAML{where}") from None
    if data is not None and not isinstance(data, dict):
        raise SettingsError(f"--config: {path} must map variables to values")
    for name, value in (data or {}).items():
        if not isinstance(value, str | None):
            raise SettingsError(f"{name} (in {path}): expected one value, not a {type(value).__name__}")
    return {str(name): value or "" for name, value in (data or {}).items()}


def _validated(cls: type[S], values: Mapping[str, Any], labels: Mapping[str, str]) -> S:
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = str(first["loc"][0])
        variable = next((name for name, of in FIELDS.items() if of == field), field)
        if first["type"] == "missing":
            message = f"not set; it is required (variable, flag {flag_of(variable)} or --config file)"
        else:
            message = first["msg"].removeprefix("Value error, ")
            message = message[0].lower() + message[1:]
        raise SettingsError(f"{labels.get(field, variable)}: {message}") from None


def _client_properties(
    settings: Settings, sources: _Sources, labels: Mapping[str, str], cluster: Cluster, kind: Kind
) -> tuple[dict[str, str | int], list[str]]:
    """older system's variables < file < PROPERTIES_ < the kind's own."""
    older = []
    for variable, successor in OLD_VARIABLES.items():
        given = sources.get(variable) if successor.kind == kind else None
        if given and successor.property:
            older.append(Given(successor.property, given.value, given.label))
    path = settings.source_client_config if cluster == "source" else settings.destination_client_config
    file = []
    if path:
        label = labels[f"{cluster}_client_config"]
        file = client_properties.parse_properties(_read_text(Path(path), label), f"{label}: {path}")
    prefix = f"{_PREFIX}{cluster.upper()}_"
    servers = (
        settings.source_bootstrap_servers if cluster == "source" else settings.destination_bootstrap_servers
    )
    layers = [
        (True, older),
        (False, file),
        (False, sources.family(cluster, "PROPERTIES")),
        (True, sources.family(cluster, kind.upper())),
    ]
    return client_properties.resolve(
        kind,
        layers,
        Given("bootstrap.servers", servers, prefix + "BOOTSTRAP_SERVERS"),
        (cluster, kind) in (("source", "consumer"), ("destination", "producer")),
    )


def client_properties_here(
    cluster: Cluster,
    kind: Kind,
    servers: str,
    file: str | None,
    config_file: str | None,
    environ: Mapping[str, str],
) -> dict[str, str | int]:
    """One kind of client's properties as another machine than the driver's has them; a file that is not there says nothing."""
    sources = _Sources.read(environ, config_file if config_file and Path(config_file).exists() else None, {})
    given: dict[str, Any] = {f"{cluster}_bootstrap_servers": servers}
    if file and Path(file).exists():
        given[f"{cluster}_client_config"] = file
    labels = {f"{cluster}_client_config": f"{_PREFIX}{cluster.upper()}_CLIENT_CONFIG"}
    return _client_properties(Settings.model_construct(**given), sources, labels, cluster, kind)[0]


def _doubts(settings: Settings) -> list[str]:
    """What is allowed and yet seldom meant."""
    names, expressions = topic_names.compiled(settings.source_topic)
    found = [
        f"{_PREFIX}SOURCE_TOPIC: {name} is never copied ({'internal' if topic_names.is_internal(name) else 'own'} topic)"
        for name in sorted(names)
        if topic_names.is_internal(name) or name in settings.own_topics
    ]
    by_template = names - topic_names.topic_map(settings.destination_topic_map).keys()
    several = expressions or len(by_template) > 1
    if (
        "{topic}" not in settings.destination_topic_template
        and several
        and not settings.destination_topic_rewrite
        and settings.several_sources == "fail"
    ):
        found.append(
            f"{_PREFIX}DESTINATION_TOPIC: without {{topic}}, all topics go into one: the first is copied, the others are refused "
            "(SEVERAL_SOURCES=fail)"
        )
    return found


def _check_together(settings: Settings) -> None:
    """What each setting may be by itself, but not beside another. Raises SettingsError."""
    if len(settings.own_topics) < len(own_topic_config.KINDS):
        raise SettingsError("STAGING_TOPIC, CONTROL_TOPIC and the like: two topics of the link have one name")
    joined = topic_names.joined(settings.destination_topic_map)
    if joined and settings.several_sources == "fail":
        one, other, name = joined
        raise SettingsError(
            f"{_PREFIX}DESTINATION_TOPIC_MAP: topics {one!r} and {other!r} can't both become {name!r}, unless SEVERAL_SOURCES=merge"
        )
    if settings.provenance_headers and settings.several_sources == "merge":
        raise SettingsError(
            "SEVERAL_SOURCES: merge does not go with PROVENANCE_HEADERS: with others writing there too, what belongs to whom can't be told"
        )
    if settings.acl_read_only and settings.acl_sync == "all":
        raise SettingsError("ACL_READ_ONLY: goes with ACL_SYNC=read, not with all")
    if settings.heartbeats_interval_s:
        _check_heartbeats(settings)


def _check_heartbeats(settings: Settings) -> None:
    """Heartbeats have a topic of their own on both sides. Raises SettingsError."""
    topic = settings.heartbeats_topic
    if topic in settings.own_topics or topic_names.is_internal(topic):
        raise SettingsError(f"HEARTBEATS_TOPIC: {topic} is another topic of the link, or an internal one")
    named = topic in topic_names.topic_map(settings.destination_topic_map) or topic_names.rewritten(
        settings.destination_topic_rewrite, topic=topic, source="source"
    )
    if not named and "{topic}" not in settings.destination_topic_template:
        raise SettingsError(
            f"HEARTBEATS_INTERVAL: without {{topic}} in {_PREFIX}DESTINATION_TOPIC heartbeats would go into the same topic as what is copied; "
            f"name theirs in {_PREFIX}DESTINATION_TOPIC_MAP: {topic}=..."
        )


def _check_state_path(settings: Settings, labels: Mapping[str, str]) -> None:
    """Several machines can't share a local path, unless somebody says that they do. Raises SettingsError."""
    master, place = settings.spark_master, state_path.parse(settings.state_path)
    if place.local is None or settings.state_sharing == "shared-volume" or on_one_machine(master):
        return
    raise SettingsError(
        f"{labels.get('state_path', 'STATE_PATH')}: a local path can't be shared by the machines of SPARK_MASTER {master}; "
        "give the URL of a file system that all of them reach, or say STATE_SHARING=shared-volume"
    )


def on_one_machine(master: str) -> bool:
    """Whether all of this Spark master's processes run where the driver does."""
    hosts = {re.sub(r":\d+$", "", host) for host in master.removeprefix("spark://").split(",")}
    return master.startswith("local") or (
        master.startswith("spark://") and hosts <= {"localhost", "127.0.0.1", "[::1]"}
    )


def settings_table() -> str:
    """The settings as markdown tables: first those to use, then the variables of the older system."""
    rows = ["| variable | flag | meaning | default |", "|---|---|---|---|"]
    for variable, field in FIELDS.items():
        info = Settings.model_fields[field]
        if info.description:
            shown = info.json_schema_extra["shown"]  # type: ignore[index]
            marker = " *(live)*" if variable in LIVE else ""
            rows.append(f"| `{variable}` | `{flag_of(variable)}` | {info.description}{marker} | {shown} |")
    for group, meaning in (
        ("PROPERTIES", "one client property, `_` for `.`; wins over the file"),
        ("{CONSUMER,PRODUCER,ADMIN}", "the same for one kind of client; wins over both"),
    ):
        rows.append(f"| `{_PREFIX}{{SOURCE,DESTINATION}}_{group}_<KEY>` | | {meaning} | none |")
    rows += ["", "| variable of the older system | now |", "|---|---|"]
    rows += [f"| `{variable}` | {successor.meaning} |" for variable, successor in OLD_VARIABLES.items()]
    return "\n".join(rows)


if __name__ == "__main__":
    print(settings_table())
