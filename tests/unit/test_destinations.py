"""Which destination topics are refused: those that would alter, refuse or delete what is copied; and no others."""

from __future__ import annotations

from typing import Any

import pytest

from common.control import SourceTopic
from deduplicator.destinations import refusal

WIDE = str(2**63 - 1)
SOURCE = {
    "cleanup.policy": "delete",
    "retention.ms": "1000",
    "retention.bytes": "-1",
    "max.message.bytes": "1000",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": "3600000",
}
FIT = {**SOURCE, "message.timestamp.before.max.ms": WIDE, "message.timestamp.after.max.ms": WIDE}


def refused(destination: dict[str, Any], source: dict[str, Any] | None = None) -> str | None:
    return refusal(
        SourceTopic("orders", "id", 1, {**SOURCE, **(source or {})}), "copy", {**FIT, **destination}
    )


@pytest.mark.parametrize(
    ("destination", "source"),
    [
        ({}, {}),
        ({"retention.ms": "1001", "max.message.bytes": "1001"}, {}),
        ({"retention.ms": "-1"}, {"retention.ms": "-1"}),
        ({"retention.bytes": "5"}, {"retention.bytes": "5"}),
        ({"cleanup.policy": "compact"}, {"cleanup.policy": "compact"}),
        ({"cleanup.policy": "compact,delete"}, {"cleanup.policy": "delete,compact"}),
        ({"cleanup.policy": "delete", "retention.ms": "-1"}, {"cleanup.policy": "compact"}),
        ({"cleanup.policy": "compact", "retention.ms": "1"}, {"cleanup.policy": "compact"}),
        ({"cleanup.policy": "", "retention.ms": "1"}, {}),
        # The source replaces timestamps; the copy keeps those that it gave.
        ({}, {"message.timestamp.type": "LogAppendTime"}),
        ({"message.timestamp.after.max.ms": "3600000"}, {}),
    ],
)
def test_a_destination_that_keeps_everything_is_fit(
    destination: dict[str, str], source: dict[str, str]
) -> None:
    assert refused(destination, source) is None


@pytest.mark.parametrize(
    ("key", "destination", "source"),
    [
        ("message.timestamp.type", {"message.timestamp.type": "LogAppendTime"}, {}),
        (
            "message.timestamp.type",
            {"message.timestamp.type": "LogAppendTime"},
            {"message.timestamp.type": "LogAppendTime"},
        ),
        ("max.message.bytes", {"max.message.bytes": "999"}, {}),
        ("message.timestamp.before.max.ms", {"message.timestamp.before.max.ms": str(2**63 - 2)}, {}),
        ("message.timestamp.after.max.ms", {"message.timestamp.after.max.ms": "3599999"}, {}),
        (
            "message.timestamp.after.max.ms",
            {"message.timestamp.after.max.ms": "3600000"},
            {"message.timestamp.after.max.ms": WIDE},
        ),
        ("cleanup.policy", {"cleanup.policy": "compact"}, {}),
        ("cleanup.policy", {"cleanup.policy": "compact,delete"}, {}),
        ("retention.ms", {"retention.ms": "999"}, {}),
        ("retention.ms", {"retention.ms": "1000"}, {"retention.ms": "-1"}),
        ("retention.bytes", {"retention.bytes": "5"}, {}),
        ("retention.bytes", {"retention.bytes": "5"}, {"retention.bytes": "6"}),
        # A compacted source keeps the last record of each key for ever, whatever its retention says.
        ("retention.ms", {"cleanup.policy": "delete"}, {"cleanup.policy": "compact"}),
        ("retention.ms", {"cleanup.policy": "compact,delete"}, {"cleanup.policy": "compact"}),
    ],
)
def test_one_that_does_not_is_refused_by_name(
    key: str, destination: dict[str, str], source: dict[str, str]
) -> None:
    why = refused(destination, source)
    assert why is not None and "copy" in why and "orders" in why
    assert f"{key}={ {**FIT, **destination}[key] }" in why
    assert "\n" not in why
