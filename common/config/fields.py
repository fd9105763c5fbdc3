"""The settings of a link, declared once: variable, default, meaning, and what each may be by itself. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from common.config import durations, own_topic_config, telemetry, topic_names
from common.config.client_properties import Kind
from common.config.start_offsets import checked as checked_start

Cluster = Literal["source", "destination"]
CLUSTERS: tuple[Cluster, ...] = ("source", "destination")
KINDS: tuple[Kind, ...] = ("consumer", "producer", "admin")

PREFIX = "KAFKA_CLUSTERS_"
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


class Fields(BaseModel):
    """Each setting: its variable, default, meaning, and what it may be."""

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
        "a timestamp (ISO 8601, or ms since 1970), or `mirrormaker:OFFSETS_TOPIC[:ALIAS[:CONNECTOR]]` (where MirrorMaker 2 has "
        "stopped: docs/guides/migration.md), for all or, comma-separated, for some: `topic=latest` (a name or a regular expression; "
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
    pipeline: str | None = _setting(
        "PIPELINE", None, "`replicator`, `schemas`: the file of a pipeline, which says what is done with records on their way "
        "(docs/guides/pipelines.md), and with their schemas (docs/guides/schemas.md); followed while it changes", "none",
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
        "HEALTH_PORT",
        8080,
        "port of the page, `/healthz`, `/readyz` and `/metrics`; `0` for none",
        ge=0,
        le=65535,
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
    log_format: Annotated[Literal["text", "json"], BeforeValidator(str.lower)] = _setting(
        "LOG_FORMAT",
        "text",
        "`text`, or `json`: one JSON object a line, with `time`, `level`, `logger`, `message` and `exception`",
    )
    metrics_exporters: Annotated[str, BeforeValidator(telemetry.exporters)] = _setting(
        "OTEL_METRICS_EXPORTER", "prometheus", "where metrics go, comma-separated: `prometheus` (`/metrics`), `otlp`, `kafka` (the topic "
        "`<link>.metrics` at the target), `console`; or `none`. All but `prometheus` need the extra `otel`",
    )  # fmt: skip
    metrics_interval_ms: int = _setting(
        "OTEL_METRIC_EXPORT_INTERVAL", 60_000, "how often they are sent, in ms (`otlp`, `kafka`, `console`)", ge=1
    )  # fmt: skip
    traces_exporter: Annotated[str, BeforeValidator(telemetry.traces_exporter)] = _setting(
        "OTEL_TRACES_EXPORTER", telemetry.NONE, "where the spans of frames go: `otlp`, `console` or `none`. All but `none` need the extra `otel`"
    )  # fmt: skip
    traces_sampler: Annotated[str, BeforeValidator(telemetry.sampler)] = _setting(
        "OTEL_TRACES_SAMPLER", "parentbased_always_on", "which frames have spans: `always_on`, `traceidratio` and the others of OpenTelemetry's; the same of both applications"
    )  # fmt: skip
    traces_sampler_arg: str | None = _setting(
        "OTEL_TRACES_SAMPLER_ARG", None, "`traceidratio`: the share of frames, from 0 to 1", "`1`"
    )
    otlp_endpoint: str | None = _setting(
        "OTEL_EXPORTER_OTLP_ENDPOINT", None, "`otlp`: the receiver", "`http://localhost:4318`, with `grpc` port 4317"
    )  # fmt: skip
    otlp_protocol: str = _setting(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "`otlp`: `http/protobuf` or `grpc`"
    )
    otlp_headers: str | None = _setting(
        "OTEL_EXPORTER_OTLP_HEADERS", None, "`otlp`: headers, `name=value`, comma-separated, values URL-encoded; never shown", "none"
    )  # fmt: skip
    otel_service_name: str | None = _setting(
        "OTEL_SERVICE_NAME", None, "`service.name` of what is sent", "`verbatim-<application>`"
    )
    otel_resource_attributes: str | None = _setting(
        "OTEL_RESOURCE_ATTRIBUTES", None, "more attributes of what is sent, `name=value`, comma-separated", "none"
    )  # fmt: skip
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
    schemas_topic_name: OptionalName = _own_topic(
        "SCHEMAS_TOPIC", "schemas", "ids of schemas at both registries; one partition"
    )
    dead_letters_topic_name: OptionalName = _own_topic(
        "DEAD_LETTERS_TOPIC", "dead-letters", "records on which a stage of the pipeline has failed"
    )
    heartbeats_interval_s: Annotated[float, BeforeValidator(_duration_or_off)] = _setting(
        "HEARTBEATS_INTERVAL", 0.0, "how often the replicator writes a heartbeat to a topic of its own at the SOURCE, which is copied like any "
        "other; the delay is in its metrics. Off, nothing is ever written there", "none", ge=0, le=3600, allow_inf_nan=False,
    )  # fmt: skip
    heartbeats_topic_name: OptionalName = _own_topic(
        "HEARTBEATS_TOPIC", "heartbeats", "heartbeats, at the source; one partition"
    )
    metrics_topic_name: OptionalName = _own_topic(
        "METRICS_TOPIC", "metrics", "metrics, with `OTEL_METRICS_EXPORTER=kafka`; one partition"
    )
    link_topic_config: Annotated[str, BeforeValidator(_link_topic_config)] = _setting(
        "LINK_TOPIC_CONFIG", "", "`key=value`, comma-separated: configuration of the link's own topics when Verbatim makes them "
        "(`min.insync.replicas=2`); `staging:`, `control:`, `positions:`, `offset-mappings:`, `group-offsets:`, `dead-letters:`, `schemas:` or "
        "`metrics:` before the key means that one only (`offset-mappings:retention.ms=1209600000`)", "none",
    )  # fmt: skip
    client_properties: dict[str, dict[str, str | int]] = Field(default_factory=dict)
    config_file: str | None = None
    spark_conf: dict[str, str] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)


FIELDS: dict[str, str] = {
    info.json_schema_extra["variable"]: name  # type: ignore[index, misc]
    for name, info in Fields.model_fields.items()
    if info.json_schema_extra
}
"""Field of each variable."""

LIVE: frozenset[str] = frozenset(
    variable
    for variable, field in FIELDS.items()
    if Fields.model_fields[field].json_schema_extra["live"]  # type: ignore[index]
)
"""Variables that a running process takes over from its file."""


def flag_of(variable: str) -> str:
    """The command-line flag of a variable."""
    return "--" + variable.removeprefix(PREFIX).lower().replace("_", "-")
