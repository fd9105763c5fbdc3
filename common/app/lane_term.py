"""What every lane does beside moving bytes: look at the control topic, know when its epoch ends."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from common import ports
from common.app.traces import spans_of
from common.config import credentials
from common.errors import Deposed, SettingsError
from common.link.control_kinds import EndEpoch
from common.link.control_log import ControlLog
from common.link.control_state import Control
from common.link.lane_plan import LanePlan
from common.link.lane_progress import Refused, Row, Unfinished, encode
from common.log_lines import setup_worker
from common.ports import Deadline

if TYPE_CHECKING:
    from common.app.otel.spans import Spans

LOOK_INTERVAL_S = 0.5


def tame_garbage_collector() -> None:
    """Let the collector look rarely: messages come by the thousand, none in a cycle, and each batch would set
    it off.

    Measured with 200 B records: it took up to half of a lane's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


class _Lane(Protocol):
    def run(self) -> Iterator[Row]: ...
    def close(self) -> None: ...


def run_lane(plan: dict[str, Any], make: Callable[[dict[str, Any], Spans | None], _Lane]) -> Iterator[str]:
    """Run a lane for one epoch and yield its progress rows, as JSON. `make` gets its plan, as JSON, with the
    secrets that this machine has, and what it sends spans with."""
    setup_worker(plan["log_level"], plan["log_format"], plan["log_link"])
    tame_garbage_collector()
    spans = spans_of(plan)
    try:
        lane = make(credentials.found_in_plan(plan), spans)
    except SettingsError as error:
        yield encode(Refused(str(error)))
        return
    try:
        for row in lane.run():
            yield encode(row)
    finally:
        lane.close()
        if spans is not None:
            spans.close()


class LaneTerm:
    """A lane's right to work: its application's term and epoch, as the control topic tells them."""

    def __init__(self, plan: LanePlan, control: ControlLog) -> None:
        self.application: str = plan.application
        self.term: int = plan.term
        self.epoch: int = plan.epoch
        self.again: bool = plan.again
        """Whether Spark runs this lane again."""
        self.control = control
        self._ends_at = ports.monotonic() + float(plan.epoch_s)
        self._looked = 0.0

    @property
    def state(self) -> Control:
        return self.control.state

    def look(self, now: float) -> bool:
        """Take in what is new in the control topic, at most every LOOK_INTERVAL_S; whether it looked."""
        if now - self._looked < LOOK_INTERVAL_S:
            return False
        self._looked = now
        self.control.poll()
        return True

    def over(self, now: float) -> bool:
        """Whether this epoch is to end: its time is up, the driver said so, or another leader has taken
        over."""
        return now >= self._ends_at or self.state.epoch_ended(self.application, self.term, self.epoch)

    def must_lead(self, deadline: Deadline) -> None:
        """Raise Deposed when a newer leader is on record, or the end of this epoch.

        Asked before anything that fences, for two owners would otherwise fence each other for ever: A pauses;
        B leads and fences A; A wakes, takes its fencing for a time-out, and fences B. The new leader's record
        is in the control topic before B's first fencing, so whoever was fenced by B finds it there. So is the
        end of an epoch that failed before the next one's, of the same term: one lane fails, and the others
        may go on.
        """
        state = self.control.refresh(deadline)
        if state.epoch_ended(self.application, self.term, self.epoch):
            deposed = state.deposed(self.application, self.term)
            over = "another instance leads" if deposed else f"epoch {self.epoch} is over"
            raise Deposed(f"{self.application}: {over}")

    def end_epoch(self, deadline: Deadline) -> None:
        """Ask all lanes of this epoch to finish, so that the driver plans anew."""
        self.control.append(EndEpoch(self.application, self.term, self.epoch), deadline)

    def plan_anew(self) -> Row:
        """What a lane that Spark runs again does instead of its work: it ends the epoch. Its progress row.

        Its plan is as old as the epoch: a source log may have been cut and written anew since, above the
        position in the plan and below what is delivered. And the first try may be alive: two of one term
        would fence each other until the epoch ends.
        """
        self.end_epoch(Deadline(30.0))
        return Unfinished()
