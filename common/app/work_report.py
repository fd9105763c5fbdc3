"""What an instance that leads tells of its lanes' work: halts, each once in the log, and counters; in a
bounded run what it could not copy."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from common.app.health import Health
from common.link.control_records import Halt
from common.link.control_state import Control
from common.link.lane_progress import PartitionHalted, Row
from common.partitions import PartitionName

log = logging.getLogger(__name__)


class WorkReport:
    """Shows it in the instance's health. `totals`: what the epochs that ended did, by name of the counter."""

    def __init__(self, health: Health) -> None:
        self.totals: Counter[str] = Counter()
        self._health = health
        self._halted: set[PartitionName] = set()

    def show_counters(self, running: Mapping[str, int]) -> None:
        """Show the totals, and with them what the lanes of the epoch that runs say they have done. `lag` is a
        level."""
        done = self.totals.copy()
        done.update(running)
        self._health.counters = {n if n == "lag" else f"{n}_total": value for n, value in done.items()}

    def show_halts(self, control: Control) -> None:
        """Say once what has halted or goes on again."""
        halts = halts_of(self._health.application, control)
        for topic, partition in self._halted - halts.keys():
            log.info("%s-%d goes on", topic, partition)
        for at in halts.keys() - self._halted:
            log.error(
                "%s-%d is halted, the others go on: %s; what to do is in docs: operations/halts#%s",
                *at,
                halts[at].detail,
                halts[at].reason,
            )
        self._halted = set(halts)
        self._health.halted = {f"{topic}-{p}": halt.reason for (topic, p), halt in halts.items()}
        self._health.deleted = control.deleted_topics()


def halts_of(application: str, control: Control) -> dict[PartitionName, Halt]:
    """By topic and partition. Pure."""
    return {(halt.topic, key[1]): halt for (name, key), halt in control.halts.items() if name == application}


def halted_lines(application: str, control: Control, rows: Iterable[Row]) -> list[str]:
    """One line for each partition that a bounded run could not copy. Pure."""
    seen = {at: halt.detail for at, halt in halts_of(application, control).items()}
    seen |= {(row.topic, row.partition): row.detail for row in rows if isinstance(row, PartitionHalted)}
    return [f"{topic}-{partition} halted: {detail}" for (topic, partition), detail in sorted(seen.items())]
