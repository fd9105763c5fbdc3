"""Writes what a survey found: first its records to the group-offsets topic, then the offsets to the target's
groups. Decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from common.errors import KafkaTimeout
from common.kafka.client.appender import Appender
from common.kafka.errors import retriable
from common.partitions import PartitionName
from common.ports import Deadline
from offsets.group_offsets import GroupKey, GroupOffset, encode_key, encode_value
from offsets.group_protocol import Committed
from offsets.groups import NOT_EMPTY, Groups, shown
from offsets.survey import Row

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)


class RecordLog:
    """Appends to the group-offsets topic; `known` is what it says, and is kept up."""

    def __init__(self, settings: Settings, known: dict[GroupKey, GroupOffset]) -> None:
        self.known = known
        self._appender = Appender(
            settings.group_offsets_topic, settings.client_config("destination", "producer")
        )

    def write(self, records: Iterable[tuple[GroupKey, GroupOffset | None]], deadline: Deadline) -> int:
        """Write those that say something new (None: the key is gone) and wait until they are safe; how many.
        Raises KafkaTimeout, KafkaException, LinkRefused."""
        new = [
            (key, record)
            for key, record in records
            if not (key not in self.known if record is None else record.same(self.known.get(key)))
        ]
        if not new:
            return 0
        # After a failure some may still come, in this order; what is known is read again before anything is
        # written.
        encoded = [(encode_key(key), None if record is None else encode_value(record)) for key, record in new]
        self._appender.append(encoded, deadline.left(10.0))
        for key, record in new:
            if record is None:
                del self.known[key]
            else:
                self.known[key] = record
        return len(new)

    def close(self) -> None:
        self._appender.close()


def write_offsets(rows: list[Row], groups: Groups, record_log: RecordLog, deadline: Deadline) -> list[Row]:
    """Write the offsets of the rows that are to be written; all rows, with what became of them.

    The records go out first. After a crash between the two, the record says what was about to be written and
    what was there before: whichever the group has, it is recognised as this link's. The other way round, it
    would look like somebody else's.
    """
    before = {row.key: record_log.known.get(row.key) for row in rows}
    record_log.write(((row.key, row.record) for row in rows), deadline)
    wanted: dict[str, dict[PartitionName, Committed]] = {}
    for row in rows:
        r = row.record
        if r.outcome == "written" and r.offset is not None:
            at = (r.destination_topic, r.destination_partition)
            wanted.setdefault(r.target_group, {})[at] = Committed(r.offset, r.metadata)
    if not wanted:
        return rows
    if deadline.passed():
        raise KafkaTimeout("writing group offsets: what was found is too old by now")
    refused = groups.commit(wanted, deadline)
    out, corrected = [], []
    for row in rows:
        r = row.record
        error = refused.get((r.target_group, (r.destination_topic, r.destination_partition)))
        if r.outcome == "written" and error is not None:
            out.append(_refused(row, error, before[row.key]))
            corrected.append(out[-1])
        else:
            out.append(row)
    record_log.write(((row.key, row.record) for row in corrected), deadline)
    return out


def _refused(row: Row, error: KafkaError, before: GroupOffset | None) -> Row:
    if retriable(error):
        # Perhaps it was written all the same: the record stays as it is, and the next round sees.
        log.warning("group %s: %s", shown(row.record.target_group), error.str())
        return replace(row, doubt=error.str())
    active = error.code() in NOT_EMPTY
    if not active:
        log.error("group %s: its offsets can't be written: %s", shown(row.record.target_group), error.str())
    record = replace(
        row.record,
        outcome="active" if active else "failed",
        detail="" if active else error.str(),
        written=before.written if before is not None else None,
    )
    return Row(row.key, record, row.committed)
