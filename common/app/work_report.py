"""What an instance that leads tells of its lanes' work: halts, each once in the log, and what was done; in a
bounded run what it could not copy."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from common.app.health import Health
from common.link.control_records import Halt
from common.link.control_state import Control
from common.link.lane_progress import PartitionHalted, Row
from common.link.lane_work import Work, together
from common.partitions import PartitionName

log = logging.getLogger(__name__)


class WorkReport:
    """Shows it in the instance's health. `totals`: what the epochs that ended did."""

    def __init__(self, health: Health) -> None:
        self.totals = Work()
        self._running: Work | None = None
        self._levels = Work()
        """As they were when the last epoch ended: the lanes of the next one say theirs some moments later."""
        self._health = health
        self._halted: set[PartitionName] = set()

    def show_running(self, running: Work) -> None:
        """Show the totals, and with them what the lanes of the epoch that runs say they have done."""
        self._running = running
        self._health.work = together((self.totals, running, self._not_said_of(running)))

    def epoch_ended(self, works: Iterable[Work]) -> None:
        """What its lanes did counts for good."""
        self._health.epochs += 1
        done = together(works)
        self._keep(done, done.levels())

    def epoch_failed(self) -> None:
        """What its lanes said last is all that is known of it: no counter goes back."""
        self._health.epochs_failed += 1
        done = self._running or Work()
        self._keep(done, together((done.levels(), self._not_said_of(done))))

    def leads_no_more(self) -> None:
        """How far the link is, is for another instance to say. What was done stays, also in an epoch that was
        cut off."""
        self._keep(self._running or Work(), Work())

    def _keep(self, work: Work, levels: Work) -> None:
        self.totals.add(work.done())
        self._running, self._levels = None, levels
        self._health.work = together((self.totals, self._levels))

    def _not_said_of(self, work: Work) -> Work:
        """The last levels of partitions of which lanes have said nothing yet."""
        return Work(of={at: levels for at, levels in self._levels.of.items() if at not in work.of})

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
    halts = control.halts.copy().items()
    return {(halt.topic, key[1]): halt for (name, key), halt in halts if name == application}


def halted_lines(application: str, control: Control, rows: Iterable[Row]) -> list[str]:
    """One line for each partition that a bounded run could not copy. Pure."""
    seen = {at: halt.detail for at, halt in halts_of(application, control).items()}
    seen |= {(row.topic, row.partition): row.detail for row in rows if isinstance(row, PartitionHalted)}
    return [f"{topic}-{partition} halted: {detail}" for (topic, partition), detail in sorted(seen.items())]
