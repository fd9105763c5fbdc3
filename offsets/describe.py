"""What `offsets describe` shows: each group's partitions, on both sides. Reads only; without the source, from
the records of the last rounds."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from common.app.cli import aligned
from common.errors import KafkaTimeout
from common.kafka.client import topics
from common.partitions import PartitionName
from common.ports import Deadline
from offsets.groups import shown
from offsets.survey import Row, Survey, Unmoved

CALL_S = 30.0

COLUMNS = {
    "group": "GROUP",
    "topic": "TOPIC",
    "partition": "PARTITION",
    "source_offset": "SOURCE-OFFSET",
    "source_lag": "SOURCE-LAG",
    "offset": "TRANSLATED",
    "translation": "TRANSLATION",
    "target_offset": "TARGET-OFFSET",
    "target_lag": "TARGET-LAG",
    "outcome": "STATE",
}
"""Field -> heading of the table's columns."""


def describe(survey: Survey) -> list[dict[str, Any]]:
    """One mapping for each partition of each group: the table's fields and more. None stands for what is not
    known. A group of which nothing is translated has one, without topic and partition.

    `outcome` is what a round would do now ("due" instead of "written"); without the source, what the last
    round did.
    """
    live = survey.link.source_reached
    found = survey.look() if live else None
    rows = found.rows if found is not None else _recorded(survey)
    source = [(row.key.topic, row.key.partition) for row in rows] if live else []
    target = [(row.record.destination_topic, row.record.destination_partition) for row in rows]
    source_ends = _ends(survey.source_admin, source)
    target_ends = _ends(survey.target_admin, target)
    lines = [_line(row, source_ends, target_ends, live) for row in rows]
    return lines + [_unmoved_line(left) for left in (found.unmoved if found is not None else ())]


def table(lines: list[dict[str, Any]]) -> str:
    """The lines as aligned text, with a heading."""
    cells = [list(COLUMNS.values())]
    for line in lines:
        cells.append(["-" if line[name] is None else str(line[name]) for name in COLUMNS])
        cells[-1][0] = shown(line["group"])
        if line["route"]:
            cells[-1][1] += f" -> {line['route']}"
    return aligned(cells)


def _unmoved_line(left: Unmoved) -> dict[str, Any]:
    empty = dict.fromkeys(
        (*COLUMNS, "route", "target_group", "destination_topic", "destination_partition", "exact", "time")
    )
    return {**empty, "group": left.group, "outcome": left.outcome, "translation": left.detail}


def _recorded(survey: Survey) -> list[Row]:
    records = sorted(survey.records.items())
    names = sorted({record.target_group for _, record in records})
    committed = survey.target.committed(names, Deadline(CALL_S))
    rows = []
    for key, record in records:
        at = (record.destination_topic, record.destination_partition)
        have = committed.get(record.target_group, {}).get(at)
        rows.append(Row(key, record, have.offset if have else None))
    return rows


def _ends(admin: AdminClient, wanted: list[PartitionName]) -> dict[PartitionName, int]:
    """High watermarks, of those partitions that are there."""
    deadline = Deadline(CALL_S)
    names = sorted({topic for topic, _ in wanted})
    try:
        there = topics.describe(admin, names, deadline) if names else {}
        known = sorted({at for at in wanted if at[0] in there and at[1] < there[at[0]].partitions})
        return topics.ends(admin, known, deadline)
    except (KafkaException, KafkaTimeout):
        return {}


def _line(
    row: Row, source_ends: dict[PartitionName, int], target_ends: dict[PartitionName, int], live: bool
) -> dict[str, Any]:
    r = row.record
    source_end = source_ends.get((row.key.topic, row.key.partition))
    target_end = target_ends.get((r.destination_topic, r.destination_partition))
    translation = "exact" if r.exact else r.why
    return {
        "group": row.key.group,
        "topic": row.key.topic,
        "partition": row.key.partition,
        "source_offset": r.source_offset,
        "source_lag": None if source_end is None else max(0, source_end - r.source_offset),
        "route": row.key.route or None,
        "target_group": r.target_group,
        "destination_topic": r.destination_topic,
        "destination_partition": r.destination_partition,
        "offset": r.offset,
        "exact": r.exact,
        "translation": translation,
        "target_offset": row.committed,
        "target_lag": None if target_end is None or row.committed is None else max(0, target_end - row.committed),
        "outcome": "due" if live and r.outcome == "written" else r.outcome,
        "time": r.time_ms,
    }  # fmt: skip
