"""Which destinations are refused for their name alone: what may meet there, and what may not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from common.config import loading
from common.errors import LinkRefused
from common.link.control_kinds import SourceTopic
from common.link.control_state import Control
from deduplicator.driver.destinations import Destinations
from tests.support.control_json import encode

MERGE = {"SEVERAL_SOURCES": "merge"}
BEATS = {"HEARTBEATS_INTERVAL": "1s"}
PULSE = "verbatim.heartbeats"


def destinations(copied: dict[str, str], **variables: str) -> Destinations:
    """Of a link that has copied these topics, each into the one named."""
    state = Control()
    for topic, to in copied.items():
        said = {"topic": topic, "topic_id": topic, "partitions": 1, "max_message_bytes": 1}
        state.apply(state.position, encode("destination", destination=to, **said))
    settings = loading.load(
        environ={
            "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "127.0.0.1:1",
            "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "127.0.0.1:1",
            "KAFKA_CLUSTERS_SOURCE_TOPIC": ".*",
            **variables,
        }
    )
    link: Any = SimpleNamespace(source_cluster="s", target_cluster="t", source_name="s")
    control: Any = SimpleNamespace(state=state)
    return Destinations(settings, link, control, admin=object())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("copied", "variables", "topic", "refused"),
    [
        ({}, {}, "b", None),
        ({"a": "x"}, {}, "a", None),
        ({"a": "x"}, {}, "b", "topic a is copied there already, and SEVERAL_SOURCES is fail"),
        ({"a": "x"}, MERGE, "b", None),
        ({"a": "x", "b": "x"}, {}, "a", "topic b is copied there already"),
        ({"a": "x"}, MERGE | BEATS, "b", None),
        ({"a": "x"}, MERGE | BEATS, PULSE, "heartbeats"),
        ({PULSE: "x"}, MERGE | BEATS, "b", "heartbeats"),
        ({PULSE: "x"}, MERGE | BEATS, PULSE, None),
    ],
)
def test_topics_meet_only_where_that_is_asked_for_and_heartbeats_never(
    copied: dict[str, str], variables: dict[str, str], topic: str, refused: str | None
) -> None:
    checked = destinations(copied, **variables)
    source = SourceTopic(topic, topic, 1, {})
    if refused is None:
        checked.verdicts._check_name(source, "x")
        return
    with pytest.raises(LinkRefused, match=refused):
        checked.verdicts._check_name(source, "x")
