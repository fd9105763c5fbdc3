"""The protocol as a whole, on one source partition, without clients: the production decisions, with a model of what lies between.

Real: replicator/copying.py, common/frame.py, common/control.py, deduplicator/{dedup,stuck,mappings,runs,trim}.py and the records that
they exchange. The model plays the source (offsets with gaps), the wires, the staging topic, transactions and the crashes. Whatever
happens, the destination must hold a prefix of the source's records, once and in order, and in the end all of them.

The second half breaks one rule at a time and asserts that the same machine then fails: a rule whose loss nothing notices is not tested.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from common import control
from common.control import DEDUPLICATOR, Control
from common.errors import FrameError
from common.frame import Frame, Header, Rows, decode_headers, decode_rows, encode_headers
from deduplicator import mappings, stuck
from deduplicator.dedup import Action, Decision, decide
from deduplicator.mappings import Mapping
from deduplicator.runs import Run, contiguous, merge, segments
from deduplicator.stuck import Stuck
from deduplicator.trim import limits
from replicator import positions
from replicator.copying import Copying, Cut
from replicator.positions import Position
from tests.strategies import Record

KEY = ("id", 0)
TOPIC = "orders"
ORIGIN = 3
SETTLE_ROUNDS = 40

Decide = Callable[[int | None, Frame, bool], Decision]


class Writer:
    """A replicator's writer: one life of replicator.lane.Lane for this partition. It may outlive its successors."""

    def __init__(self, machine: Protocol, copy: Copying, new: bool) -> None:
        self.machine = machine
        self.copy = copy
        self.queue: deque[Cut] = deque([copy.origin_frame()] if new else [])
        """Cut, and not handed to the producer yet."""
        self.wire: deque[Cut] = deque()
        self.unheard: deque[Cut] = deque()
        """Appended, and the acknowledgement still on its way."""

    def look(self) -> None:
        """Turn to the newest demand, as Lane._answer_demands and _resend do."""
        demand = self.machine.control.resends.get(KEY)
        if demand is None or demand.at <= self.copy.handled:
            return
        self.copy.handled = demand.at
        self.copy.rewind(ORIGIN if demand.next is None else demand.next)
        if demand.next is None:
            self.queue.append(self.copy.origin_frame())

    def read(self, most: int, stale: int) -> None:
        """Fetch some records from the position; `stale` ones from before it come first, as from an old fetch."""
        source = self.machine.source
        first = next((i for i, r in enumerate(source) if r.at >= self.copy.read), len(source))
        records = source[max(0, first - stale) : first + most]
        if records:
            self.copy.take(records, 0.0)
        if first + most >= len(source) and most > 0:
            self.copy.at_end(self.machine.source_end)

    def cut(self) -> None:
        self.queue.extend(self.copy.cut(True))

    def send(self) -> None:
        cut = self.queue.popleft()
        if cut.generation == self.copy.generation:
            self.wire.append(cut)

    def append(self) -> None:
        cut = self.wire.popleft()
        self.machine.append(cut)
        self.unheard.append(cut)

    def hear(self) -> None:
        self.copy.acknowledge(self.unheard.popleft())

    def remember(self) -> None:
        if self.copy.frames:
            self.machine.remember(Position(self.copy.acked, self.copy.leader_epoch, self.copy.answered))


@dataclasses.dataclass
class Staged:
    headers: list[Header]
    value: bytes


# What may happen in a step: how often, and with which arguments. One rule draws from all of it: a rule for each would let hypothesis
# switch off some of them for a whole run, and most runs would then bring nothing as far as the destination.
HAPPENINGS: dict[str, tuple[int, dict[str, list[Any]]]] = {
    "produce": (3, {"n": [1, 2, 4], "gap": [0, 0, 1, 3], "tail": [0, 0, 2]}),
    "write": (
        8,
        {
            "which": [-1, -1, 0, 1],
            "look": ["first", "with records in hand", "no"],
            "most": [1, 2, 100],
            "stale": [0, 0, 3],
            "far": [0, 1, 2, 3, 4, 4],
        },
    ),
    "move": (4, {"which": [-1, 0, 1], "what": [0, 1, 1, 2, 2, 3, 4, 5], "times": [1, 2]}),
    "deliver": (5, {"n": [1, 2, 100, 100], "outcome": ["commit", "commit", "commit", "abort", "unknown"]}),
    "restart_writer": (1, {}),
    "start_anywhere_allowed": (2, {"back": [0, 1, 2, 3, 5, 12], "far": [0, 3, 3]}),
    "crash_writer": (1, {"which": [-1, 0, 1], "keep": [0, 1, 2]}),
    "delivery_fails": (1, {"which": [-1, 0]}),
    "lose_frames": (
        2,
        {
            "back": [0, 0, 1, 2, 4],
            "frames": [1, 1, 2, 6],
            "how": ["gone", "gone", "value", "headers", "count"],
        },
    ),
    "lose_answer": (2, {"which": [-1, 0]}),
    "repeat_frame": (1, {"back": [0, 1, 2, 5, 9]}),
    "trim": (1, {}),
    "take_over": (1, {"lower": [0, 1, 4]}),
    "wait": (2, {"seconds": [1.0, 6.0, 700.0]}),
}


def happening(name: str) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    choices = HAPPENINGS[name][1]
    return st.tuples(
        st.just(name),
        st.sampled_from(
            [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
        ),
    )


ANYTHING = st.sampled_from([name for name, (weight, _) in HAPPENINGS.items() for _ in range(weight)]).flatmap(
    happening
)


class Protocol(RuleBasedStateMachine):
    """One source partition, any number of writers, one owner of the staging partition at a time."""

    decide: Decide = staticmethod(decide)
    copying: type[Copying] = Copying
    writer: type[Writer] = Writer
    reloads = True
    """Whether state is loaded again, together with the position, after a transaction that did not happen."""
    trouble: type[Stuck] = Stuck
    trims: Callable[..., dict[int, int]] = staticmethod(limits)

    def __init__(self) -> None:
        super().__init__()
        self.source: list[Record] = []
        self.source_end = ORIGIN
        self.staging: dict[int, Staged] = {}
        self.low = self.high = 0
        self.lost_anything = False
        self.appended: list[tuple[int, Frame]] = []
        """(control position at that time, frame), all that ever reached staging whole, in order."""
        self.writers: list[Writer] = []
        self.control = Control()
        self.demands: dict[int, int | None] = {}
        self.position_record: tuple[bytes, bytes] | None = None
        self.now = 0.0
        # the destination: written by committed transactions only
        self.delivered: list[int] = []
        self.mappings: list[bytes] = []
        self.committed = 0
        self.recover()

    # the source

    @initialize(loses_the_origin=st.sampled_from([False, False, False, True]))
    def begin(self, loses_the_origin: bool) -> None:
        self.start_writer(None)
        if loses_the_origin:
            self.produce(2, 1, 1)
            self.write(0, "no", 1, 0, 4)
            self.lose_frames(0, 2, "gone")
            self.write(0, "no", 100, 0, 3)

    def produce(self, n: int, gap: int, tail: int) -> None:
        """Records, with compacted or aborted offsets before them and perhaps markers behind."""
        for i in range(n):
            self.source_end += gap if i == 0 else 0
            self.source.append(Record(self.source_end, stamp=1))
            self.source_end += 1
        self.source_end += tail

    # the replicator

    def start_writer(self, position: Position | None) -> None:
        where = (
            (ORIGIN, None, -1)
            if position is None
            else (position.next, position.leader_epoch, position.handled)
        )
        copy = self.copying("c", TOPIC, KEY[0], KEY[1], f"w{len(self.appended)}", ORIGIN, *where)
        writer = self.writer(self, copy, position is None)
        writer.look()
        self.writers.append(writer)

    def restart_writer(self) -> None:
        """From the remembered position; the others become zombies."""
        del self.writers[:-3]
        found = positions.decode(*self.position_record) if self.position_record else None
        self.start_writer(found[1] if found else None)

    def start_anywhere_allowed(self, back: int, far: int) -> None:
        """Any position will do below which earlier writers had appended everything."""
        del self.writers[:-3]
        reach = self.reach(-1, ORIGIN, origin=True)
        if reach is not None:
            self.start_writer(Position(max(ORIGIN, reach - back), None, -1))
            self.write(-1, "no", 100, 0, far)

    def write(self, which: int, look: str, most: int, stale: int, far: int) -> None:
        """A writer reads and cuts, and brings all its frames some way: sent, appended, acknowledged, remembered."""
        writer = self.one_of_the_writers(which)
        if look == "first":
            writer.look()
        writer.read(most, stale)
        if look == "with records in hand":
            writer.look()
        writer.cut()
        if far == 4:
            writer.remember()  # what was acknowledged before
        for pending, act in [
            (writer.queue, writer.send),
            (writer.wire, writer.append),
            (writer.unheard, writer.hear),
        ][:far]:
            while pending:
                act()
        if far == 4:
            writer.remember()

    def move(self, which: int, what: int, times: int) -> None:
        for _ in range(times):
            self.step(self.one_of_the_writers(which), what)

    def one_of_the_writers(self, which: int) -> Writer:
        if not self.writers:
            self.restart_writer()
        return self.writers[which % len(self.writers)]

    def step(self, writer: Writer, what: int) -> None:
        if what <= 0 and writer.queue:
            writer.send()
        elif what <= 1 and writer.wire:
            writer.append()
        elif what <= 2 and writer.unheard:
            writer.hear()
        elif what <= 3:
            writer.remember()
        elif what == 4:
            writer.look()
        else:
            writer.read(2, 0)

    def crash_writer(self, which: int, keep: int) -> None:
        """Some of what is in flight still arrives, in order."""
        writer = self.one_of_the_writers(which)
        self.writers.remove(writer)
        while keep and writer.wire:
            writer.append()
            keep -= 1

    def delivery_fails(self, which: int) -> None:
        """A frame is not appended: its writer ends, and what is behind it on the wire never arrives."""
        writer = self.one_of_the_writers(which)
        for _ in range(3):
            writer.read(1, 0)
            writer.cut()
        while writer.queue:
            writer.send()
        self.fail(writer)

    def fail(self, writer: Writer) -> None:
        if writer.wire:
            self.writers.remove(writer)

    def append(self, cut: Cut) -> None:
        self.staging[self.high] = Staged(encode_headers(cut.frame, cut.value), bytes(cut.value))
        self.high += 1
        self.appended.append((self.control.position, cut.frame))

    def remember(self, position: Position) -> None:
        """The positions topic is compacted: the last writer wins, be it a zombie."""
        since = position.handled
        start = self.demands[since] if since >= 0 else None
        reach = self.reach(since, ORIGIN if start is None else start, origin=start is None)
        assert reach is not None and position.next <= reach, (
            f"position {position} is remembered, but what was appended since reaches {reach} only"
        )
        self.position_record = positions.encode(TOPIC, KEY, position)

    def reach(self, since: int, start: int, origin: bool) -> int | None:
        """How far the frames appended after control offset `since` go on from `start` without a hole; None without an origin frame."""
        seen = not origin
        for at, frame in self.appended:
            if at <= since:
                continue
            seen = seen or frame.origin
            if frame.start <= start:
                start = max(start, frame.next)
        return start if seen else None

    # staging misbehaves

    def lose_frames(self, back: int, frames: int, how: str) -> None:
        """Frames at or below the end of staging are deleted or harmed."""
        for offset in range(max(self.low, self.high - back - frames), self.high - back):
            staged = self.staging.get(offset)
            if staged is None:
                continue
            self.lost_anything = True
            if how == "gone":
                del self.staging[offset]
            elif how == "value":
                staged.value = staged.value[:-1] + bytes([staged.value[-1] ^ 1]) if staged.value else b"\1"
            elif how == "headers":
                staged.headers = staged.headers[1:]
            else:
                staged.headers = [(k, b"999" if k == "count" else v) for k, v in staged.headers]

    def lose_answer(self, which: int) -> None:
        """A writer sends again what was asked for, and that is lost too."""
        writer, end = self.one_of_the_writers(which), self.high
        writer.look()
        self.write(which, "no", 100, 0, 4)
        self.lose_frames(0, self.high - end, "gone")

    def repeat_frame(self, back: int) -> None:
        """A frame that was appended before arrives once more."""
        again = self.staging.get(self.high - 1 - back)
        if again is not None:
            self.staging[self.high] = dataclasses.replace(again)
            self.high += 1

    def trim(self) -> None:
        """Up to what is committed, and not past what is held."""
        limit = self.trims({0: self.committed}, self.control)[0]
        assert limit <= self.committed
        held = [t.held for t in self.stuck.values()]
        assert all(limit <= h for h in held if h < self.committed), "a frame that is held would be trimmed"
        self.low = max(self.low, limit)
        self.staging = {o: s for o, s in self.staging.items() if o >= self.low}

    # the deduplicator

    def tell(self, kind: str, **fields: Any) -> int:
        at = self.control.position
        self.control.apply(at, control.encode(kind, topic=TOPIC, topic_id=KEY[0], partition=KEY[1], **fields))
        return at

    def recover(self, lower: int = 0) -> None:
        """A new owner, or the same after an unclean transaction: state and position, loaded together."""
        self.next: dict[Any, int] = {}
        for value in self.mappings:
            mapping = mappings.decode(value)
            self.next[(mapping.topic_id, mapping.partition)] = mapping.next
        self.position = max(self.low, self.committed - lower)
        self.stuck: dict[Any, Stuck] = {}
        hold = self.control.holds.get(KEY)
        if hold is not None and hold.held is not None:
            start = hold.held_start or 0
            self.stuck[KEY] = self.trouble(stuck.MISSING, hold.held[1], start, start + 1, self.position)
        self.open()

    def open(self) -> None:
        self.rows: list[int] = []
        self.moved: dict[str, Any] | None = None
        self.closing = False

    def take_over(self, lower: int) -> None:
        """A new owner of the staging partition; the group's offset may be lost, then it starts lower."""
        self.recover(lower)

    def deliver(self, n: int, outcome: str) -> None:
        for _ in range(n):
            if self.position < self.high:
                staged = self.staging.get(self.position)
                if staged is not None:
                    self.judge(staged, self.position)
                self.position += 1
        if outcome == "abort":
            if self.reloads:
                self.recover()
            else:
                self.position = self.committed
                self.open()
            return
        self.commit()
        if outcome == "unknown":
            self.recover()

    def judge(self, staged: Staged, offset: int) -> None:
        """As deduplicator.delivery.Delivery._judge."""
        try:
            frame, crc = decode_headers(staged.headers)
        except FrameError:
            return
        decision = self.decide(self.next.get(KEY), frame, True)
        if decision.action is Action.SEEN:
            self.close_gap()
        elif decision.action in (Action.HOLE, Action.UNKNOWN):
            assert self.lost_anything, f"{frame} shows a hole at {self.next}, and nothing was lost"
            self.skip(frame, offset)
        else:
            try:
                rows = decode_rows(frame, crc, staged.value)
            except FrameError:
                assert self.lost_anything, f"{frame} does not decode, and nothing was harmed"
                self.skip(frame, offset)
                return
            self.take(frame, rows.from_offset(decision.from_offset), decision)

    def take(self, frame: Frame, rows: Rows, decision: Decision) -> None:
        assert decision.next is not None and decision.lost == 0
        before = self.next.get(KEY)
        assert decision.first == (before is None)
        if self.moved is None:
            self.moved = {
                "start": frame.start if before is None else before,
                "first": before is None,
                "runs": [],
            }
        for begin, end in segments(rows.offsets):
            at = len(self.delivered) + len(self.rows) + begin
            self.moved["runs"].append(Run(rows.offsets[begin], end - begin, at, at + end - begin - 1))
        self.rows += rows.offsets
        self.moved["next"] = self.next[KEY] = decision.next
        self.close_gap()

    def skip(self, frame: Frame, offset: int) -> None:
        trouble = self.stuck.get(KEY)
        if trouble is None:
            trouble = self.stuck[KEY] = self.trouble(stuck.MISSING, offset, frame.start, frame.next)
        trouble.held_end = max(trouble.held_end, frame.next)
        if trouble.asks_now(self.now):
            at = self.tell(
                "resend", next=self.next.get(KEY), held=[0, trouble.held], held_start=trouble.held_start
            )
            self.demands[at] = self.next.get(KEY)

    def close_gap(self) -> None:
        trouble = self.stuck.get(KEY)
        if trouble is not None and trouble.closed(self.next[KEY], self.position):
            self.closing = True

    def commit(self) -> None:
        if self.moved is not None:
            first, start, reached = self.moved["first"], self.moved["start"], self.moved["next"]
            last = mappings.decode(self.mappings[-1]).next if self.mappings else None
            assert start == (ORIGIN if last is None else last), "mappings do not join"
            assert reached > start or first, "a mapping for a partition that has not moved"
            assert all(contiguous(run) for run in self.moved["runs"])
            runs = merge(self.moved["runs"])
            expected = list(zip(self.rows, itertools.count(len(self.delivered)), strict=False))
            assert [(s + i, d + i) for s, d, n in runs for i in range(n)] == expected
            self.delivered += self.rows
            mapping = Mapping(
                "c", TOPIC, *KEY, start, reached, TOPIC, 0, self.position, len(self.rows), 0, 0, runs
            )
            self.mappings.append(mappings.encode(mapping)[1])
        self.committed = self.position
        if self.closing and self.stuck.pop(KEY, None) is not None:
            self.tell("resumed", application=DEDUPLICATOR)
        self.open()

    def wait(self, seconds: float) -> None:
        self.now += seconds

    # what happens, and what must hold

    @rule(action=ANYTHING)
    def happens(self, action: tuple[str, dict[str, Any]]) -> None:
        name, arguments = action
        getattr(self, name)(**arguments)

    @invariant()
    def exactly_once_in_order(self) -> None:
        wanted = [r.at for r in self.source]
        assert self.delivered == wanted[: len(self.delivered)], f"{self.delivered} of {wanted}"
        if self.mappings:
            reached = mappings.decode(self.mappings[-1]).next
            assert all(at in self.delivered for at in wanted if at < reached), (
                f"passed over below {reached}: {self.delivered}"
            )

    @invariant()
    def writers_keep_their_order(self) -> None:
        for writer in self.writers:
            copy = writer.copy
            assert copy.acked <= copy.cut_at <= copy.read
            assert copy.answered <= copy.handled

    def teardown(self) -> None:
        """However it came to this: once nothing fails any more, everything arrives."""
        self.writers.clear()
        self.restart_writer()
        for _ in range(SETTLE_ROUNDS):
            writer = self.writers[-1]
            writer.look()
            writer.read(1000, 0)
            writer.cut()
            for pending, act in (
                (writer.queue, writer.send),
                (writer.wire, writer.append),
                (writer.unheard, writer.hear),
            ):
                while pending:
                    act()
            writer.remember()
            self.deliver(self.high, "commit")
            self.exactly_once_in_order()
            if (
                len(self.delivered) == len(self.source)
                and self.next.get(KEY) == self.source_end
                and not self.stuck
            ):
                self.trim()
                assert self.low == self.committed == self.high, "something is held for ever"
                return
            self.now += 700.0
            # What a lost last frame held is missed only when another one comes.
            self.produce(1, 0, 0)
        raise AssertionError(f"stuck at {self.next} of {self.source_end}: {self.stuck}")


MODEL = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_every_record_arrives_once_and_in_order_whatever_happens() -> None:
    run_state_machine_as_test(Protocol, settings=MODEL)


# Careless versions of one rule each


def seen_if_next_is_below(next_offset: int | None, frame: Frame, complete: bool) -> Decision:
    if next_offset is not None and frame.next == next_offset:
        return Decision(Action.DELIVER, next_offset, frame.next)
    return decide(next_offset, frame, complete)


def hole_if_it_begins_at_next(next_offset: int | None, frame: Frame, complete: bool) -> Decision:
    if next_offset is not None and frame.start == next_offset < frame.next:
        return Decision(Action.HOLE, next=next_offset)
    return decide(next_offset, frame, complete)


def no_start_check(next_offset: int | None, frame: Frame, complete: bool) -> Decision:
    if next_offset is not None and frame.start > next_offset:
        return Decision(Action.DELIVER, next_offset, frame.next)
    return decide(next_offset, frame, complete)


def start_may_be_one_too_high(next_offset: int | None, frame: Frame, complete: bool) -> Decision:
    if next_offset is not None and frame.start == next_offset + 1:
        return Decision(Action.DELIVER, next_offset, frame.next)
    return decide(next_offset, frame, complete)


def whole_frames_only(next_offset: int | None, frame: Frame, complete: bool) -> Decision:
    return dataclasses.replace(decide(next_offset, frame, complete), from_offset=frame.start)


def seen_if_it_begins_below_next(next_offset: int | None, frame: Frame, complete: bool) -> Decision:
    if next_offset is not None and frame.start < next_offset:
        return Decision(Action.SEEN, next=next_offset)
    return decide(next_offset, frame, complete)


def first_frame_need_not_be_the_origin(next_offset: int | None, frame: Frame, complete: bool) -> Decision:
    return decide(next_offset, dataclasses.replace(frame, origin=True), complete)


def next_counts_records(next_offset: int | None, frame: Frame, complete: bool) -> Decision:
    decision = decide(next_offset, frame, complete)
    if decision.action is Action.DELIVER and decision.next is not None:
        return dataclasses.replace(decision, next=max(next_offset or 0, frame.start + frame.count))
    return decision


class PositionBeforeAcknowledgement(Copying):
    def cut(self, all_of_it: bool) -> list[Cut]:
        cuts = super().cut(all_of_it)
        self.acked = self.cut_at
        return cuts


class OldAcknowledgementsCount(Copying):
    def acknowledge(self, cut: Cut) -> None:
        super().acknowledge(dataclasses.replace(cut, generation=self.generation))


class RewindKeepsTheGeneration(Copying):
    def rewind(self, position: int, leader_epoch: int | None = None) -> None:
        super().rewind(position, leader_epoch)
        self.generation -= 1


class RewindKeepsWhatIsPending(Copying):
    def rewind(self, position: int, leader_epoch: int | None = None) -> None:
        pending = self.pending
        super().rewind(position, leader_epoch)
        self.pending = pending


class AnsweredWhenTurnedTo(Copying):
    def rewind(self, position: int, leader_epoch: int | None = None) -> None:
        super().rewind(position, leader_epoch)
        self.answered = self.handled


class TakesStaleRecords(Copying):
    def take(self, records: Any, now: float) -> None:
        self.read = min(self.read, records[0].offset())
        super().take(records, now)


class NoFrameForTheTail(Copying):
    def cut(self, all_of_it: bool) -> list[Cut]:
        return [cut for cut in super().cut(all_of_it) if cut.frame.count]


class FrameBeginsAtItsFirstRecord(Copying):
    def cut(self, all_of_it: bool) -> list[Cut]:
        if self.pending:
            self.cut_at = self.pending[0].offset()
        return super().cut(all_of_it)


class EndsBeforeWhatWasRead(Copying):
    """Only what was asked for is cut: the rest of what is pending is forgotten, and its offsets are covered all the same."""

    def cut(self, all_of_it: bool) -> list[Cut]:
        self.pending = self.pending[:2]
        return super().cut(all_of_it)


class DeafWriter(Writer):
    """Never sends again."""

    def look(self) -> None:
        pass


class AsksOnce(Stuck):
    def asks_now(self, now: float) -> bool:
        asked, self.ask_at = self.ask_at > 0, 1.0
        return not asked


class NeverCloses(Stuck):
    def closed(self, next_offset: int, position: int) -> bool:
        return False


def fail_and_go_on(self: Protocol, writer: Writer) -> None:
    if writer.wire:
        writer.wire.popleft()


def trim_what_is_held(delivered: dict[int, int], _: Control) -> dict[int, int]:
    return delivered


CARELESS: dict[str, dict[str, Any]] = {
    "seen_if_next_is_below": {"decide": staticmethod(seen_if_next_is_below)},
    "hole_if_it_begins_at_next": {"decide": staticmethod(hole_if_it_begins_at_next)},
    "no_start_check": {"decide": staticmethod(no_start_check)},
    "start_may_be_one_too_high": {"decide": staticmethod(start_may_be_one_too_high)},
    "whole_frames_only": {"decide": staticmethod(whole_frames_only)},
    "seen_if_it_begins_below_next": {"decide": staticmethod(seen_if_it_begins_below_next)},
    "first_frame_need_not_be_the_origin": {"decide": staticmethod(first_frame_need_not_be_the_origin)},
    "next_counts_records": {"decide": staticmethod(next_counts_records)},
    "position_before_acknowledgement": {"copying": PositionBeforeAcknowledgement},
    "old_acknowledgements_count": {"copying": OldAcknowledgementsCount},
    "rewind_keeps_the_generation": {"copying": RewindKeepsTheGeneration},
    "rewind_keeps_what_is_pending": {"copying": RewindKeepsWhatIsPending},
    "answered_when_turned_to": {"copying": AnsweredWhenTurnedTo},
    "takes_stale_records": {"copying": TakesStaleRecords},
    "no_frame_for_the_tail": {"copying": NoFrameForTheTail},
    "frame_begins_at_its_first_record": {"copying": FrameBeginsAtItsFirstRecord},
    "forgets_what_it_read": {"copying": EndsBeforeWhatWasRead},
    "writer_deaf_to_demands": {"writer": DeafWriter},
    "writer_goes_on_past_a_failed_delivery": {"fail": fail_and_go_on},
    "state_kept_over_an_abort": {"reloads": False},
    "asks_only_once": {"trouble": AsksOnce},
    "a_hole_never_closes": {"trouble": NeverCloses},
    "trims_what_is_held": {"trims": staticmethod(trim_what_is_held)},
}
CARELESS_MODEL = settings(
    MODEL,
    max_examples=600,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    report_multiple_bugs=False,
)


@pytest.mark.parametrize("rule_broken", CARELESS)
def test_a_careless_version_fails(rule_broken: str) -> None:
    mutant = type("Careless", (Protocol,), CARELESS[rule_broken])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(mutant, settings=CARELESS_MODEL)
