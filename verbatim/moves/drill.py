"""A disaster drill: the source is cut off, consumers are failed over, the source comes back, and what it had
that was never copied is counted. Nothing of the link is lost by it: it goes on copying afterwards. Options
and output are verbatim/commands/drill.py's part.

How the source is cut off is the operator's business: by commands that are given, or by hand, which is waited
for. What is told is what was seen from here.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from common.errors import VerbatimError
from common.kafka.client import cluster_check, topics
from common.link import identity
from common.link.control_records import REPLICATOR
from common.link.routed import NO_WAY_BACK, refuse_routes
from common.ports import Deadline
from offsets.service import NAME as OFFSETS
from offsets.survey import Row, Survey, refuse_provenance
from replicator.driver.planner import selected
from verbatim.moves import back as backward
from verbatim.moves import back_rules, cutover_rules, rehearsal_rules
from verbatim.moves import failover as over
from verbatim.moves.link_progress import Standings
from verbatim.moves.steps import Doubt, Step, Steps, listed, wait_for
from verbatim.moves.uncopied import Left

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 30.0
ASK_S = 3.0
"""After so long without an answer the source counts as cut off."""
HOOK_S = 600.0
"""The longest that a command of the operator's may take."""


@dataclass
class Options:
    """`cut`, `stop`, `restore`: shell commands that cut the source off, stop replicator and `offsets`, and
    let the source back; None: the operator does, when `ask` has told so. `wait_s`: how long each is waited
    for to be seen."""

    cut: str | None = None
    stop: str | None = None
    restore: str | None = None
    wait_s: float = 300.0
    tell: Callable[[Step], None] = lambda step: None
    ask: Callable[[str], None] = lambda what: None


@dataclass
class Result:
    """What a drill came to. `lost`: records that the source had when it was cut off, by their timestamps, and
    that were never copied; `lost_s`: the age that the oldest of them had then; `after`: records that it got
    later, since it lived on; `gone`: offsets that it has no more itself. `recovered_s`: from the cut until
    consumers could go on at the target. `lag`: source offsets that were not delivered before; `still`:
    partitions that stood still then. None: not come to."""

    cut_ms: int | None = None
    lag: int | None = None
    seen_s: float | None = None
    stopped_s: float | None = None
    recovered_s: float | None = None
    lost: int | None = None
    lost_s: float | None = None
    after: int | None = None
    gone: int | None = None
    still: int | None = None

    def count(self, left: Left) -> None:
        """Takes in a record that was never copied."""
        assert self.cut_ms is not None
        if left.timestamp_ms > self.cut_ms:
            self.after = (self.after or 0) + 1
            return
        self.lost = (self.lost or 0) + 1
        self.lost_s = max(self.lost_s or 0.0, (self.cut_ms - left.timestamp_ms) / 1000)


class Drill:
    """One run. `steps` is the report, with those of the failover among them; `rows` what became of each
    group."""

    def __init__(self, settings: Settings, options: Options) -> None:
        self.settings = settings
        self.options = options
        self.steps = Steps(options.tell)
        self.result = Result()
        self.rows: list[Row] = []
        self.uncopied: list[backward.Count] = []
        self._cut_at = 0.0

    def run(self) -> None:
        """Raises Doubt, or whatever else stopped it; `steps` says where. The source is let back whatever
        happens, where there is a command for it."""
        refuse_provenance(self.settings)
        with self.steps.step("ready") as step:
            self._ready(step)
        try:
            with self.steps.step("cut") as step:
                self._cut(step)
            with self.steps.step("stop") as step:
                self._stop(step)
            self._fail_over()
        except BaseException:
            if self.options.restore is not None:
                with suppress(VerbatimError):
                    _call("--restore", self.options.restore)
            raise
        with self.steps.step("restore") as step:
            self._restore(step)
        with self.steps.step("rejoin") as step:
            self._rejoin(step)

    def _ready(self, step: Step) -> None:
        """A link that is not well would be drilled for another disaster."""
        deadline = Deadline(CALL_S)
        link, control = identity.prepare(self.settings, True, deadline, make=False)
        refuse_routes(control.refresh(deadline), self.settings.application_name, NO_WAY_BACK)
        with closing(Survey(self.settings, link, control)) as survey:
            found = selected(self.settings, survey.source_admin, deadline)
            partitions = [(t.name, p) for t in found for p in range(t.partitions)]
            ends = topics.ends(survey.source_admin, partitions, deadline, committed=True)
            ids = {t.name: t.id for t in found}
            with closing(Standings(self.settings, survey.target_admin, control, survey.tail)) as standings:
                names = {(ids[topic], p): f"{topic}-{p}" for topic, p in ends}
                standing = standings.look(deadline)
                lag = rehearsal_rules.lag(standing, {(ids[t], p): end for (t, p), end in ends.items()}, names)
                doubts = [f"{name} does not run" for name in standings.idle(deadline)]
                doubts += lag.never + cutover_rules.paused(control.state, sorted(ids))
                doubts += back_rules.promoted(control.state, ids)
        if doubts:
            raise Doubt(listed(doubts))
        self.result.lag = lag.offsets
        step.found = [f"{len(ends)} partitions of {len(found)} topics, {lag.offsets:,} offsets behind"]

    def _cut(self, step: Step) -> None:
        self.result.cut_ms, self._cut_at = int(time.time() * 1000), time.monotonic()
        self._do("--cut", self.options.cut, "cut the source off now")
        wait_for(self._answers, Deadline(self.options.wait_s))
        self.result.seen_s = time.monotonic() - self._cut_at
        step.found = [f"the source does not answer any more, {self.result.seen_s:.1f} s after it was cut off"]

    def _stop(self, step: Step) -> None:
        self._do(
            "--stop", self.options.stop, "stop replicator and offsets now; leave the deduplicator running"
        )
        step.found = ["replicator and offsets are to be stopped by now"]

    def _fail_over(self) -> None:
        run = over.Failover(self.settings, over.Options(self.options.wait_s, self._tell))
        try:
            run.run()
        finally:
            self.rows = run.rows
        self.result.still = sum(of.why is not None for of in run.missing)
        self.result.recovered_s = time.monotonic() - self._cut_at

    def _tell(self, step: Step) -> None:
        """A step of the failover is one of the drill's."""
        self.steps.steps.append(step)
        self.options.tell(step)
        if step.name == "stopped" and step.state == "done":
            self.result.stopped_s = time.monotonic() - self._cut_at

    def _restore(self, step: Step) -> None:
        self._do("--restore", self.options.restore, "let the source back now")
        wait_for(
            lambda: [] if self._answers() else ["the source can't be reached"], Deadline(self.options.wait_s)
        )
        step.found = ["the source answers again"]

    def _rejoin(self, step: Step) -> None:
        options = backward.Options(tails="keep", stopped=(REPLICATOR, OFFSETS), wait_s=self.options.wait_s)
        self.result.lost, self.result.lost_s, self.result.after = 0, 0.0, 0
        options.left = self.result.count
        run = backward.Back(self.settings, options)
        run.run()
        self.uncopied = run.report.uncopied
        self.result.gone = sum(of.gone for of in self.uncopied)
        step.found = [f"{run.report.records:,} records of the source were never copied"]

    def _answers(self) -> list[str]:
        """That the source does. By hand it is cut off some time after this was asked for: after it answered
        last."""
        now_ms, now = int(time.time() * 1000), time.monotonic()
        try:
            cluster_check.cluster_id(self.settings, "source", Deadline(ASK_S), tell=lambda _: None)
        except (VerbatimError, KafkaException):
            return []
        if self.options.cut is None and self.result.recovered_s is None:
            self.result.cut_ms, self._cut_at = now_ms, now
        return ["the source still answers"]

    def _do(self, option: str, command: str | None, words: str) -> None:
        if command is None:
            self.options.ask(words)
        else:
            _call(option, command)


def _call(option: str, command: str) -> None:
    """Run a command of the operator's. Raises Doubt where it fails, with the last that it said."""
    try:
        ended = subprocess.run(  # noqa: S602 - it is the operator's own, as in a shell
            command, shell=True, timeout=HOOK_S, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        raise Doubt(f"{option}: {command} has not ended after {HOOK_S:.0f} s") from None
    if ended.returncode:
        said = (ended.stderr or ended.stdout).strip().splitlines()[-1:]
        raise Doubt(
            f"{option}: {command} ended with {ended.returncode}{''.join(f': {line}' for line in said)}"
        )
