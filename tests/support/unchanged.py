"""All of a cluster that a command could have changed, and that it has not; what it is compared after is the
test's part."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from confluent_kafka.admin import AdminClient

from common.kafka.client import topics as common_topics
from common.ports import Deadline
from offsets.group_calls import GroupCalls
from tests.support.brokers import end_offsets, topics

CALL_S = 20.0
GROUPS_LOG = "__consumer_offsets"
"""Kafka makes it where a client library's consumer asks for the first coordinator of a cluster, and writes to
it by itself when a session ends or a group is forgotten: what is compared is what groups committed."""


def everything(bootstrap: str) -> dict[str, dict[Any, Any]]:
    """All that a command could have changed: topics, their ids, sizes, configuration and ends; groups and
    what they committed."""
    admin, deadline = AdminClient({"bootstrap.servers": bootstrap}), Deadline(CALL_S)
    names = sorted(topics(bootstrap))
    with closing(GroupCalls({"bootstrap.servers": bootstrap})) as calls:
        committed = dict(calls.committed(calls.listed(CALL_S), CALL_S))
    return {
        "topics": dict(common_topics.describe(admin, names, deadline)),
        "configs": dict(common_topics.configs(admin, names, deadline)),
        "ends": {
            name: end_offsets(bootstrap, name, "read_uncommitted") for name in names if name != GROUPS_LOG
        },
        "groups": committed,
    }


def assert_unchanged(bootstrap: str, before: dict[str, dict[Any, Any]]) -> None:
    """That nothing is new, gone or other than before; a group may be gone, whose empty ones Kafka forgets by
    itself."""
    after = everything(bootstrap)
    for what, found in before.items():
        if GROUPS_LOG not in found:
            after[what].pop(GROUPS_LOG, None)
        gone, new = found.keys() - after[what].keys(), after[what].keys() - found.keys()
        assert what == "groups" or not gone, f"{what}: gone: {gone}"
        assert not new, f"{what}: new: {new}"
        other = {key: (found[key], value) for key, value in after[what].items() if found[key] != value}
        assert not other, f"{what}: {other}"
