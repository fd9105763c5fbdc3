"""The source's topics as the control topic tells of them: with all their settings, and which of these were
set on the topic itself."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from common.kafka.client.topics import TopicInfo, topic_settings
from common.link.control_kinds import SourceTopic
from common.ports import Deadline


def source_topics(client: AdminClient, found: list[TopicInfo], deadline: Deadline) -> list[SourceTopic]:
    """Topics with their settings; one that was deleted since it was found is left out."""
    settings = topic_settings(client, [info.name for info in found], deadline)
    return [
        SourceTopic(
            info.name,
            info.id,
            info.partitions,
            {key: value.value for key, value in settings[info.name].items()},
            frozenset(key for key, value in settings[info.name].items() if value.explicit),
        )
        for info in found
        if info.name in settings
    ]
