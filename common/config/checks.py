"""What settings may be beside each other. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from common.config import own_topic_config, state_path, telemetry, topic_names
from common.config.fields import PREFIX
from common.config.settings import Settings
from common.errors import SettingsError


def doubts(settings: Settings) -> list[str]:
    """What is allowed and yet seldom meant."""
    names, expressions = topic_names.compiled(settings.source_topic)
    found = [
        f"{PREFIX}SOURCE_TOPIC: {name} is never copied ({'internal' if topic_names.is_internal(name) else 'own'} topic)"
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
            f"{PREFIX}DESTINATION_TOPIC: without {{topic}}, all topics go into one: the first is copied, the others are refused "
            "(SEVERAL_SOURCES=fail)"
        )
    return found


def check_together(settings: Settings) -> None:
    """What each setting may be by itself, but not beside another. Raises SettingsError."""
    kinds = len(own_topic_config.KINDS) - ("kafka" not in settings.exporters)
    if len(settings.own_topics) < kinds:
        raise SettingsError("STAGING_TOPIC, CONTROL_TOPIC and the like: two topics of the link have one name")
    joined = topic_names.joined(settings.destination_topic_map)
    if joined and settings.several_sources == "fail":
        one, other, name = joined
        raise SettingsError(
            f"{PREFIX}DESTINATION_TOPIC_MAP: topics {one!r} and {other!r} can't both become {name!r}, unless SEVERAL_SOURCES=merge"
        )
    if settings.provenance_headers and settings.several_sources == "merge":
        raise SettingsError(
            "SEVERAL_SOURCES: merge does not go with PROVENANCE_HEADERS: with others writing there too, what belongs to whom can't be told"
        )
    if settings.provenance_headers and settings.pipeline:
        raise SettingsError(
            "PIPELINE: does not go with PROVENANCE_HEADERS yet: a link that is one of two between topics of one name has no pipeline"
        )
    if settings.acl_read_only and settings.acl_sync == "all":
        raise SettingsError("ACL_READ_ONLY: goes with ACL_SYNC=read, not with all")
    if settings.heartbeats_interval_s:
        _check_heartbeats(settings)
    if "otlp" in settings.exporters and (why := telemetry.wrong(settings.otel_variables)):
        raise SettingsError(why)
    traces = settings.traces_exporter
    if traces == "otlp" and (why := telemetry.wrong(settings.otel_variables, "TRACES")):
        raise SettingsError(why)
    if why := telemetry.wrong_ratio(settings.traces_sampler, settings.traces_sampler_arg):
        raise SettingsError(f"OTEL_TRACES_SAMPLER_ARG: {why}")
    if {*settings.exporters, traces} - {"prometheus", telemetry.NONE} and (
        entry := telemetry.wrong_attributes(settings.otel_resource_attributes)
    ):
        raise SettingsError(f"OTEL_RESOURCE_ATTRIBUTES: entry {entry[:40]!r} is not of the form name=value")


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
            f"HEARTBEATS_INTERVAL: without {{topic}} in {PREFIX}DESTINATION_TOPIC heartbeats would go into the same topic as what is copied; "
            f"name theirs in {PREFIX}DESTINATION_TOPIC_MAP: {topic}=..."
        )


def check_state_path(settings: Settings, labels: Mapping[str, str]) -> None:
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
