"""A pipeline of Lenses' K2K as settings of Verbatim. Pure.

Its form is known from its documentation and from its Helm chart's examples. What is in neither is told as
without equivalent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from common.config.topic_names import is_name
from common.errors import SettingsError
from verbatim.convert.mirror_maker import scalar
from verbatim.convert.settings import Converted, client, entries, must_load, said

Section = dict[str, Any]
_ANEW = (
    "going on where K2K has stopped: it keeps that in a topic of its own. The link begins anew, so give its destinations "
    "other names than K2K's have (docs: guides/migration)"
)
_ON_GROUPS = {
    "errorHandling.onActiveConsumerGroupCommit": "ON_ACTIVE_GROUP",
    "errorHandling.onMultipleTargetCommittedOffsets": "ON_SEVERAL_TARGETS",
}
_ALWAYS = {
    "features.exactlyOnce": ("enabled", "records always arrive exactly once"),
    "features.headerReplication": ("enabled", "headers are always copied"),
    "features.keepRecordCreationTimestamp": ("enabled", "timestamps are always kept"),
    "features.schemaMapping": ("disabled", "schemas and their ids are never touched"),
    "features.tracingHeaders": ("disabled", "records are copied as they are"),
    "features.autoCreateTopics": ("enabled", "destinations are made"),
}
"""Name -> the value that means what Verbatim does anyway, and what that is."""
_EITHER_WAY = {"features.exactlyOnce"}
_NOT_NEEDED = {
    "license.": "there is none",
    "coordination.": "the link's own topics say how far it is",
    "metrics.": "docs: operations/monitoring",
    "tracing.": "docs: operations/monitoring",
    "errorHandling.": "a record that can't be copied halts its partition by name",
    "features.offsetMapping": "mappings are always written; `offsets` goes by them",
    "features.autoCreateControlTopics": "CREATE_TOPICS holds for the link's own topics too",
    "features.validateControlTopicSettings": "they are always looked at",
    "features.optimizeOffsetCommitPartition": "the link's own topics say how far it is",
    "features.offsetCommitOptimizePartition": "the link's own topics say how far it is",
    "features.checkKafkaConnectionOnStartup": "both clusters always are looked at",
    "source.registry.": "schemas and their ids are never touched",
    "target.registry.": "schemas and their ids are never touched",
    "source.kafka.registry.": "schemas and their ids are never touched",
    "target.kafka.registry.": "schemas and their ids are never touched",
    "source.kafka.consumer.group.id": "groups are named after APPLICATION_NAME",
    "target.kafka.consumer.": "no such client carries records there",
}
_DURATION = re.compile(r"(\d+) ?(m?s|seconds?|minutes?|milliseconds?|m)")


def pipelines(document: Any) -> Iterator[Section]:
    """Those in a YAML document: itself, or what values of the Helm chart hold."""
    if not isinstance(document, dict):
        return
    chart = document.get("k2k")
    found = chart.get("replicationConfig") if isinstance(chart, dict) else document
    if isinstance(found, dict) and isinstance(found.get("replication"), list):
        yield found


def converted(pipeline: Section, label: str) -> Converted:
    """Everything that was said is in one of its lists. Raises SettingsError, with the label."""
    left = dict(_flat({key: value for key, value in pipeline.items() if key != "replication"}))
    name = left.pop("name", "k2k")
    out = Converted(name, "K2K's pipeline")
    out.set("APPLICATION_NAME", re.sub(r"[^A-Za-z0-9._-]", "-", name))
    reset = left.pop("source.kafka.consumer.auto.offset.reset", "earliest")
    _clusters(left, out)
    _topics(pipeline["replication"], label, out)
    out.set("START_OFFSETS", reset if reset in ("earliest", "latest") else "earliest")
    if reset not in ("earliest", "latest"):
        out.missing.append(f"source.kafka.consumer.auto.offset.reset={reset} (START_OFFSETS)")
    _groups(left, out)
    for key, value in left.items():
        _rest(key, value, out)
    out.missing.append(_ANEW)
    must_load(out)
    return out


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Leaves by their path; a list of these is one."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _flat(below, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        yield path, ",".join(scalar(one) for one in value)
    elif value is not None:
        yield path, scalar(value)


def _clusters(left: dict[str, str], out: Converted) -> None:
    for side, alias, kind in (("SOURCE", "source", "consumer"), ("DESTINATION", "target", "producer")):
        given: dict[str, str] = {}
        for layer in ("common", "admin", kind):
            start = f"{alias}.kafka.{layer}."
            own = {key: left.pop(key) for key in list(left) if key.startswith(start) and not _unneeded(key)}
            prefix = "" if layer == "common" else f"{layer}."
            given |= {prefix + key.removeprefix(start): value for key, value in own.items()}
        named = [given.pop(f"{at}bootstrap.servers", "") for at in ("", "admin.", f"{kind}.")]
        servers = next(filter(None, [*named, left.pop(f"{alias}.kafka.connection.servers", "")]), "")
        out.set(f"KAFKA_CLUSTERS_{side}_BOOTSTRAP_SERVERS", servers)
        for name, value in given.items():
            if "${" in value:
                variable = f"KAFKA_CLUSTERS_{side}_PROPERTIES_{name.upper().replace('.', '_')}"
                out.missing.append(f"{alias}.{name}={value} (set {variable}, or {variable}_FILE)")
            else:
                client(side, alias, name, value, given, servers, out)


def _topics(stages: list[Any], label: str, out: Converted) -> None:
    found: dict[str, Section] = {}
    for stage in stages:
        for kind, given in stage.items() if isinstance(stage, dict) else ():
            if kind not in ("source", "sink") or kind in found or not isinstance(given, dict):
                out.missing.append(f"replication: a stage {kind} beside one source and one sink")
            else:
                found[kind] = dict(given)
    source, sink = found.get("source", {}), found.get("sink", {})
    topic = source.pop("topic", None)
    if not topic:
        raise SettingsError(f"{label}: replication: no source.topic")
    if isinstance(topic, list):
        names = [scalar(one) for one in topic]
        out.missing += [f"source.topic: {one} (a list holds names)" for one in names if not is_name(one)]
        out.set("KAFKA_CLUSTERS_SOURCE_TOPIC", ",".join(filter(is_name, names)))
    else:
        # What looks like a name is an expression there, of which each dot is any character.
        expression = f"({topic})" if is_name(str(topic)) and "." in str(topic) else str(topic)
        out.set("KAFKA_CLUSTERS_SOURCE_TOPIC", entries("source.topic", expression, out))
    _destinations(sink.pop("topic", "source"), out)
    if (partition := sink.pop("partition", "source")) != "source":
        out.missing.append(f"sink.partition={partition} (each record keeps its partition)")
    for kind, stage in (("source", source), ("sink", sink)):
        stage.pop("name", None)
        out.missing += [said(f"replication.{kind}.{key}", value) for key, value in _flat(stage)]


def _destinations(topic: Any, out: Converted) -> None:
    if topic == "source":
        return
    if isinstance(topic, dict) and topic.keys() <= {"prefix", "suffix"}:
        name = f"{topic.get('prefix') or ''}{{topic}}{topic.get('suffix') or ''}"
        out.set("KAFKA_CLUSTERS_DESTINATION_TOPIC", name)
        return
    out.missing.append(
        f"sink.topic={topic} (names of destinations: KAFKA_CLUSTERS_DESTINATION_TOPIC, or a map, or a rewrite)"
    )


def _groups(left: dict[str, str], out: Converted) -> None:
    mapped = left.get("features.offsetMapping") == "enabled" or any(key.startswith("groups.") for key in left)
    groups, interval = left.pop("groups.consumerGroups", ".*"), left.pop("groups.pollInterval", None)
    if mapped:
        why = "run `offsets`, which keeps them in step"
        out.set("CONSUMER_GROUPS", entries("groups.consumerGroups", groups, out), why)
    if interval is not None:
        found = _DURATION.fullmatch(interval.strip())
        if found:
            unit = "ms" if found[2].startswith(("ms", "milli")) else found[2][0]
            out.set("OFFSETS_INTERVAL", found[1] + unit)
        else:
            out.missing.append(f"groups.pollInterval={interval} (OFFSETS_INTERVAL)")
    for key, variable in _ON_GROUPS.items():
        value = left.pop(key, None)
        if value in ("fail", "ignore"):
            out.set(variable, "skip" if value == "ignore" else "fail")
        elif value is not None:
            out.missing.append(f"{key}={value} ({variable})")


def _rest(key: str, value: str, out: Converted) -> None:
    if key == "features.autoCreateTopics" and value == "disabled":
        out.set(
            "CREATE_TOPICS",
            "false",
            "then the link's own topics are made by hand too (docs: reference/topics)",
        )
        return
    # A licence's token and a registry's login are nobody's business.
    words = said(key, "..." if key.startswith("license.") or ".registry." in key else value)
    if key in _ALWAYS:
        same, why = _ALWAYS[key]
        told = out.unneeded if value == same or key in _EITHER_WAY else out.missing
        told.append(f"{words} ({why})")
    elif why := _unneeded(key):
        out.unneeded.append(f"{words} ({why})")
    else:
        out.missing.append(words)


def _unneeded(key: str) -> str:
    return next(
        (
            why
            for known, why in _NOT_NEEDED.items()
            if key == known or (known[-1] == "." and key.startswith(known))
        ),
        "",
    )
