"""When the replicator's lane asks for its topics, waits for records, and sends frames."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Uuid

from common import ports
from common.link.control_state import Control
from replicator.lane.batching_delay import ANSWER_REST, BatchingDelay
from replicator.lane.halts import Halts
from replicator.lane.lane import ANSWER_S, ANSWER_TIMES, IDLE_POLL_S, POLL_S, Lane
from replicator.lane.partition_copy import CutFrame, Status
from replicator.lane.source_reader import Source
from replicator.lane.staging_writer import HELD_S
from replicator.lane.topic_id_check import DESCRIBED_PARTITION_S, TopicIdCheck
from replicator.lane.unreadable import Unreadable


def sent_unasked(_: CutFrame) -> None:
    raise AssertionError("sent before anybody was asked")


def test_the_cost_of_answers_is_known_by_their_partitions() -> None:
    sizes = {"wide": 1000, "narrow": 4}
    topic_id = Uuid(1, 2)

    def answer(topic: str) -> Future[Any]:
        future: Future[Any] = Future()
        if topic in sizes:
            future.set_result(SimpleNamespace(topic_id=topic_id, partitions=[None] * sizes[topic]))
        else:
            future.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        return future

    def cut(topic: str) -> CutFrame:
        return cast(
            CutFrame, SimpleNamespace(frame=SimpleNamespace(topic=topic, topic_id=str(topic_id)), value=b"")
        )

    source = SimpleNamespace(
        describe=lambda topics: {topic: answer(topic) for topic in topics}, by_id=lambda: False
    )
    confirming = TopicIdCheck(cast(Source, source), sent_unasked)
    for topics, cost in (
        (("wide", "narrow", "gone"), 1004 * DESCRIBED_PARTITION_S),
        (("narrow", "narrow"), 4 * DESCRIBED_PARTITION_S),
        (("gone",), 0.0),
    ):
        for topic in topics:
            confirming.hold_back(cut(topic))
        confirming.ask(0.0)
        told = [(cut.frame.topic, same) for cut, same in confirming.answers(0.0)]
        assert told == [(topic, topic in sizes) for topic in topics]
        assert confirming.answer_s == pytest.approx(cost)


def test_what_was_asked_for_by_its_topics_id_is_confirmed_at_once() -> None:
    """Nobody is asked: there is no `describe` here."""
    source = SimpleNamespace(by_id=lambda: True)
    sent: list[CutFrame] = []
    confirming = TopicIdCheck(cast(Source, source), sent.append)
    frames = [cast(CutFrame, SimpleNamespace(value=b"x" * size)) for size in (3, 2)]
    for frame in frames:
        confirming.hold_back(frame)
    confirming.ask(0.0)
    assert not confirming.asking()
    assert sent == frames, "in order"
    assert not confirming.waits() and confirming._bytes == 0
    assert confirming.answers(0.0) == []


def test_full_frames_of_one_partition_do_not_put_off_what_fills_none_of_another() -> None:
    sent: list[CutFrame] = []
    lane = cast(Any, object.__new__(Lane))
    lane.topic_id_check = TopicIdCheck(cast(Source, SimpleNamespace(by_id=lambda: True)), sent.append)
    lane.rest, lane.many = BatchingDelay(), True
    lane.rest.until = until = ports.monotonic() + 60
    frame = cast(CutFrame, SimpleNamespace(value=b""))
    lane._cut = lambda all_of_it: lane.topic_id_check.hold_back(frame)
    lane._frame()
    assert sent == [frame] and lane.rest.until == until


def test_after_frames_it_reads_when_it_has_rested_and_waits_for_a_record_only_if_none_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever waits at a partition that has many records is handed the next one alone, and has to ask again
    for the others."""
    slept: list[float] = []
    monkeypatch.setattr(ports, "sleep", slept.append)
    monkeypatch.setattr(ports, "monotonic", lambda: 7.0)
    sent: list[CutFrame] = []
    lane = cast(Any, object.__new__(Lane))
    lane.writer = SimpleNamespace(
        send=lambda _, cut: sent.append(cut), holds=lambda: False, awaits=lambda: bool(sent)
    )
    lane.bounded = False
    lane.topic_id_check = TopicIdCheck(cast(Source, SimpleNamespace(by_id=lambda: True)), lane._send)
    lane.copies, lane.uncut = {("t", 0): None}, {}
    lane.rest, lane.many, lane.held_back, lane.flows = BatchingDelay(), False, False, False
    lane.rest.until = 7.25
    lane.source = SimpleNamespace(more_comes=lambda: False, answer_s=lambda: 0.0)
    assert (lane._wait(), slept) == (IDLE_POLL_S, [])
    lane.topic_id_check.hold_back(
        cast(CutFrame, SimpleNamespace(frame=SimpleNamespace(topic="t", partition=0, count=3), value=b""))
    )
    assert len(sent) == 1
    lane.rest.rate.look(7.0)
    lane.rest.rate.look(8.0)
    assert lane.rest.rate.per_s == 3.0
    assert (lane._wait(), slept) == (0.0, [0.25])
    assert (lane._wait(), slept) == (POLL_S, [0.25]), "what was sent is to be acknowledged"
    sent.clear()
    assert (lane._wait(), slept) == (IDLE_POLL_S, [0.25])


def test_a_broker_whose_answers_cost_much_is_asked_less_often_and_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 5,000 partitions an answer takes 20 ms. Frames that were cut without it would leave what it has to
    wait for another rest."""
    slept: list[float] = []
    monkeypatch.setattr(ports, "sleep", slept.append)
    monkeypatch.setattr(ports, "monotonic", lambda: 7.0)
    lane = cast(Any, object.__new__(Lane))
    lane.source = SimpleNamespace(more_comes=lambda: False, by_id=lambda: True, answer_s=lambda: 0.02)
    lane.topic_id_check = TopicIdCheck(cast(Source, lane.source), lambda cut: None)
    lane.rest, lane.many, lane.held_back, lane.flows = BatchingDelay(), False, False, True
    lane.uncut, lane._cut = {}, lambda all_of_it: None
    lane._frame()
    assert lane.rest.until == pytest.approx(7.0 + ANSWER_REST * 0.02)
    assert lane._wait() == ANSWER_TIMES * 0.02
    assert slept == [pytest.approx(ANSWER_REST * 0.02)]


@pytest.mark.parametrize(("many", "waits_s"), [(True, ANSWER_S), (False, 0.25)])
def test_more_that_was_asked_for_already_is_waited_for_and_nothing_is_slept_over(
    monkeypatch: pytest.MonkeyPatch, many: bool, waits_s: float
) -> None:
    """Who looked once and slept then copied one partition, of which an answer has a megabyte, at a fifth of
    its speed."""
    slept: list[float] = []
    monkeypatch.setattr(ports, "sleep", slept.append)
    monkeypatch.setattr(ports, "monotonic", lambda: 7.0)
    lane = cast(Any, object.__new__(Lane))
    lane.source = SimpleNamespace(more_comes=lambda: True, by_id=lambda: True)
    lane.topic_id_check = TopicIdCheck(cast(Source, lane.source), lambda cut: None)
    lane.uncut, lane.rest, lane.many, lane.held_back, lane.flows = {}, BatchingDelay(), many, False, True
    lane.rest.until = 7.25
    assert (lane._wait(), slept) == (waits_s, [])


def test_frames_that_are_held_are_waited_for_and_not_looked_at_all_the_time() -> None:
    """`poll` returns as soon as one that they wait for has arrived."""
    waited: list[float] = []
    lane = cast(Any, object.__new__(Lane))
    lane.topic_id_check = TopicIdCheck(cast(Source, SimpleNamespace(by_id=lambda: True)), lambda cut: None)
    lane.writer = SimpleNamespace(holds=lambda: True, poll=waited.append)
    lane.uncut, lane.rest, lane.many, lane.held_back, lane.flows = {}, BatchingDelay(), False, False, False
    assert (lane._wait(), waited) == (0.0, [HELD_S])


class Sick:
    """A copy of which every step fails."""

    topic, partition, key, name = "t", 0, ("id", 0), "t-0"
    topic_id, status, cut_at, read, acked = "id", Status.RUNNING, 5, 9, 5

    def __init__(self, error: Exception) -> None:
        self.error = error

    def take_chunk(self, *_: Any) -> None:
        raise self.error

    cut = take_chunk

    def full(self) -> bool:
        return True

    def rewind(self, _: int) -> None:
        pass


@pytest.mark.parametrize("step", ["take_chunk", "cut"])
def test_a_bug_in_one_partition_halts_it_by_name_and_no_other(
    step: str, caplog: pytest.LogCaptureFixture
) -> None:
    lane = cast(Any, object.__new__(Lane))
    said: list[Any] = []
    cuts: list[Any] = []
    sick, sound = Sick(IndexError("secret")), Sick(IndexError())
    sound.cut = lambda *_: [cast(CutFrame, "frame")]  # type: ignore[method-assign,assignment]
    sound.partition = 1
    lane.copies = {("t", 0): sick, ("t", 1): sound}
    lane.unreadable = Unreadable(cast(Source, None), cast(Halts, None), cast(Any, None))
    lane.trace = None
    lane.uncut = {("t", 0): sick, ("t", 1): sound} if step == "cut" else {}
    control = SimpleNamespace(append=lambda record, _: said.append(record))
    lane.halts = Halts(cast(Any, SimpleNamespace(state=Control(), control=control)), [])
    lane.throttle = SimpleNamespace(
        limits=lambda copy: False, spend=lambda cut: None, holds_back=lambda *_: False
    )
    lane.topic_id_check = SimpleNamespace(hold_back=cuts.append)
    for _ in range(2):
        if step == "take_chunk":
            lane._take_chunk(SimpleNamespace(topic="t", partition=0))
        else:
            lane._cut(True)
    halted = said[0]
    assert (halted.kind, halted.partition, halted.reason) == ("halted", 0, "internal-error")
    assert "t-0: IndexError at test_lane.py" in halted.detail
    assert "secret" not in halted.detail and "Traceback" in caplog.text
    assert ("t", 0) not in lane.uncut
    assert cuts == ["frame"] * (1 if step == "cut" else 0) or step == "cut"
    lane.copies["t", 0] = Sick(MemoryError())
    with pytest.raises(MemoryError):
        lane._take_chunk(SimpleNamespace(topic="t", partition=0))
