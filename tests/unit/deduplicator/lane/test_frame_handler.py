"""What becomes of a frame, where the state alone does not decide it: one destination a transaction, records
that Kafka would refuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from common.errors import KafkaTimeout
from common.kafka.wire.records import MAX_RECORDS, Rows, encode_rows
from common.link.batch_frame import BatchFrame
from common.link.control_kinds import DeadLetters
from common.link.control_records import Destination
from common.link.control_state import Control
from common.link.frame import Frame, encode_headers, pack
from common.link.frame_errors import merged
from common.link.frame_routes import with_routes
from common.link.halt_reasons import HaltReason
from common.pipeline.route_names import place
from deduplicator.lane.frame_handler import CommitFirst, FrameHandler
from deduplicator.lane.hanging import Unsettled
from deduplicator.lane.letter_topic import LetterTopic
from deduplicator.lane.partition_state import StagingPartitionState
from deduplicator.lane.transaction import Again
from deduplicator.lane.unavailable import Waiting
from tests.support.control_json import encode
from tests.unit.common.kafka.wire.test_chunks import frame_of, unreadable
from tests.unit.common.kafka.wire.test_chunks import whole as whole_batch

KEY = ("id", 0)


class Message:
    """A frame as staging holds it."""

    def __init__(self, offset: int, start: int, keys: list[bytes | None], pipeline: int = 0) -> None:
        at = list(range(start, start + len(keys)))
        rows = encode_rows(at, [1] * len(at), [1] * len(at), keys, [b"v"] * len(at), None)
        self._value = pack(rows, pa.Codec("lz4")).to_pybytes()
        frame = Frame("c", "orders", "id", 0, start, start + len(keys), len(keys), "w", pipeline=pipeline)
        self._headers = encode_headers(frame, self._value)
        self._offset = offset

    def __len__(self) -> int:
        return len(self._value)

    def error(self) -> None:
        return None

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value  # type: ignore[no-any-return]

    def headers(self) -> Any:
        return self._headers


class Recorder:
    """Stands in for the transaction under way, and for the partitions in trouble."""

    def __init__(self) -> None:
        self.moved: dict[Any, Any] = {}
        self.bad: dict[Any, Any] = {}
        self.bytes = 0
        self.batch_bytes = 1
        self.trace = None
        self.produced: list[tuple[str, list[int]]] = []
        self.skipped: list[tuple[str, int | None]] = []
        self.told: list[tuple[str, tuple[str, int] | None]] = []
        self.plan = SimpleNamespace(link="link")
        self.stuck: dict[Any, Any] = {}
        self.end = 1

    def staging_end(self) -> int:
        return self.end

    def begin(self) -> None:
        pass

    def close_gap(self, key: Any, topic: str) -> None:
        pass

    def takes_whole(self, wholes: Any, destination: Any) -> bool:
        return not destination.compacted

    def produce(
        self, moved: Any, rows: Rows | BatchFrame, to: Destination, partition: int | None = None
    ) -> None:
        offsets = list(rows.offsets) if isinstance(rows, Rows) else []
        self.produced.append((place(to.topic, partition), offsets))

    def produce_letters(self, _: Any, __: Frame, failed: Rows, topic: DeadLetters) -> None:
        self.produced.append((topic.topic, list(failed.offsets)))

    def skip(
        self,
        key: Any,
        frame: Frame,
        offset: int,
        reason: str,
        detail: str,
        available: int | None = None,
        to: tuple[str, int] | None = None,
    ) -> None:
        self.skipped.append((reason, available))
        self.told.append((detail, to))


def judgement() -> tuple[FrameHandler, Recorder, Control]:
    control = Control()
    owned = StagingPartitionState("staging-0", 0, {KEY: 0}, True)
    recorder: Any = Recorder()
    term: Any = SimpleNamespace(state=control, control=SimpleNamespace(refresh=lambda _: control))
    unavailable: Any = SimpleNamespace(aside={}, unsettled={})
    plan: Any = SimpleNamespace(cluster="c", staging_partitions=1)
    recorder.letter_topic = LetterTopic(term, unavailable, 0)
    return (
        FrameHandler(plan, term, owned, recorder, recorder, unavailable),
        recorder,
        control,
    )


def go_to(control: Control, destination: str, **more: Any) -> None:
    said = {"topic": "orders", "topic_id": "id", "partitions": 1, "max_message_bytes": 1 << 20}
    control.apply(control.position, encode("destination", **said, destination=destination, **more))


def take(judge: FrameHandler, message: Any) -> None:
    judge.take(message)


def test_a_transaction_goes_to_one_destination_though_its_name_is_changed_meanwhile() -> None:
    judge, recorder, control = judgement()
    go_to(control, "old")
    take(judge, Message(0, 0, [b"k"]))
    go_to(control, "new")
    take(judge, Message(1, 1, [b"k"]))
    recorder.moved.clear()
    take(judge, Message(2, 2, [b"k"]))
    assert recorder.produced == [("old", [0]), ("old", [1]), ("new", [2])]


def test_what_lies_beyond_the_end_of_a_promoted_topic_is_left_out_until_it_is_copied_again() -> None:
    """Promise: nothing of the link comes behind the end that is written down, also of a topic made again, and
    nobody waits for it."""
    judge, recorder, control = judgement()
    go_to(control, "copy")
    take(judge, Message(0, 0, [b"k"]))
    said = {"topic": "orders", "topic_id": "id", "destination": "copy"}
    control.apply(1, encode("promotion", **said, state="promoting", ends=[2]))
    take(judge, Message(1, 1, [b"k"]))
    take(judge, Message(2, 1, [b"k", b"k"]))
    take(judge, Message(3, 2, [b"k"]))
    again = Message(4, 0, [b"k"])
    frame = Frame("c", "orders", "made again", 0, 0, 1, 1, "w", origin=True)
    again._headers = encode_headers(frame, again._value)
    take(judge, again)
    assert recorder.produced == [("copy", [0]), ("copy", [1])]
    assert (judge.state.next, judge.state.position, recorder.skipped) == ({KEY: 2}, 5, [])
    control.apply(2, encode("promotion", **said, state="copied", answers=1))
    take(judge, Message(5, 2, [b"k"]))
    assert recorder.produced[2:] == [("copy", [2])]


def test_a_mapping_is_of_one_pipeline_and_an_older_one_is_asked_for_again() -> None:
    """Promise: what a version has delivered of a partition is told exactly, and it never goes back."""
    judge, recorder, control = judgement()
    go_to(control, "copy")
    take(judge, Message(0, 0, [b"k"], 1))
    take(judge, Message(1, 1, [b"k"], 1))
    with pytest.raises(CommitFirst):
        take(judge, Message(2, 2, [b"k"], 2))
    assert judge.state.position == 2, "it is judged again"
    recorder.moved.clear()
    take(judge, Message(2, 1, [b"k", b"k"], 2))
    take(judge, Message(3, 2, [b"k", b"k"], 1))
    take(judge, Message(4, 1, [b"k", b"k"], 1))
    assert recorder.skipped == [(HaltReason.MISSING, None)], "but what is seen is seen"
    assert recorder.produced == [("copy", [0]), ("copy", [1]), ("copy", [2])]
    assert (judge.state.next[KEY], judge.state.pipelines[KEY]) == (3, 2)
    assert [moved.frame.pipeline for moved in recorder.moved.values()] == [2]


def test_records_without_a_key_stop_a_partition_at_a_compacted_destination_and_nowhere_else() -> None:
    judge, recorder, control = judgement()
    go_to(control, "plain")
    take(judge, Message(0, 0, [None, b"k"]))
    recorder.moved.clear()
    go_to(control, "compacted", compacted=True)
    take(judge, Message(1, 2, [b"k", b"", None, b"k"]))
    assert recorder.produced == [("plain", [0, 1]), ("compacted", [2, 3])]
    assert recorder.skipped == [(HaltReason.NO_KEY, 5)]


def test_a_transaction_is_as_large_as_what_its_frames_unpack_into() -> None:
    """Staging is told of by what it holds; the producer's queue has to take the records."""
    judge, recorder, control = judgement()
    go_to(control, "plain")
    packed = Message(0, 0, [bytes(1000)] * 100)
    assert len(packed) < 10_000
    take(judge, packed)
    assert recorder.bytes > 100_000
    assert judge.state.bytes == len(packed)


@pytest.mark.parametrize(("from_offset", "whole"), [(0, True), (1, False), (3, False), (5, False)])
def test_a_batch_of_which_a_part_is_delivered_is_taken_apart(from_offset: int, whole: bool) -> None:
    """Handed on whole, what is below `next` would come again."""
    judge, _, _ = judgement()
    batches = [whole_batch(0, 3), whole_batch(3, 3)]
    frame, crc, value = frame_of(batches)
    got = judge._decoded(KEY, frame, crc, value, from_offset, Destination("orders", 1, 1_000_000, None, {}))
    assert isinstance(got, BatchFrame) == whole
    if isinstance(got, Rows):
        assert list(got.offsets) == list(range(from_offset, 6))
        assert got.values[0] == b"%d" % from_offset + b"v" * 10


@pytest.mark.parametrize(("damaged", "reason"), [(False, HaltReason.UNREADABLE), (True, HaltReason.MISSING)])
def test_a_batch_that_can_t_be_taken_apart_is_not_asked_for_again(damaged: bool, reason: str) -> None:
    """It would come as it is; a frame that was damaged on its way comes whole the next time. Where nobody has
    to look into it, it goes."""
    judge, recorder, control = judgement()
    frame, _, value = frame_of([unreadable(0)], next=1)
    message: Any = Message(0, 0, [])
    message._headers = encode_headers(frame, value)
    message._value = value[:-1] if damaged else value
    go_to(control, "compacted", compacted=True)
    take(judge, message)
    assert (recorder.skipped, recorder.produced) == ([(reason, None)], [])
    message._offset = 1
    go_to(control, "plain")
    take(judge, message)
    assert len(recorder.produced) == (0 if damaged else 1)


class Impossible(Message):
    """A frame that says what no writer would, and is otherwise well."""

    def __init__(self, offset: int, start: int, value: bytes = b"x") -> None:
        super().__init__(offset, start, [b"k"])
        frame = Frame("c", "orders", "id", 0, start, start + MAX_RECORDS + 1, MAX_RECORDS + 1, "w")
        self._headers = encode_headers(frame, value)


class Damaged(Message):
    """A frame whose value is not the one that its checksum is of."""

    def value(self) -> bytes:
        return b"something else"


@pytest.mark.parametrize("kind", [Impossible, lambda offset, start: Damaged(offset, start, [b"k"])])
def test_a_frame_that_comes_again_as_it_was_and_can_t_be_read_halts_its_partition(kind: Any) -> None:
    """Asked for again it would come so for ever. The same one read again after a recovery is no other, and a
    copy that was there before it was asked for tells nothing."""
    judge, recorder, control = judgement()
    go_to(control, "d")
    recorder.end = 9
    take(judge, kind(5, 0))
    judge.state.position = 0
    recorder.end = 20
    take(judge, kind(5, 0))
    take(judge, kind(8, 0))
    assert recorder.skipped == [(HaltReason.MISSING, None)] * 3
    take(judge, kind(9, 0))
    assert recorder.skipped[3:] == [(HaltReason.UNREADABLE, None)]


def test_frames_that_can_t_be_read_for_one_reason_and_another_are_asked_for_again() -> None:
    judge, recorder, control = judgement()
    go_to(control, "d")
    take(judge, Impossible(5, 0, b"x"))
    take(judge, Impossible(9, 0, b"y"))
    assert recorder.skipped == [(HaltReason.MISSING, None)] * 2
    take(judge, Message(10, 0, [b"k"]))
    judge.state.next[KEY] = MAX_RECORDS + 1
    take(judge, Impossible(11, 0))
    assert recorder.produced == [("d", [0])] and len(recorder.skipped) == 2, "what was delivered is left out"


def test_a_frame_that_brings_up_a_bug_is_left_out_by_name_and_all_under_way_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Five in a row would end the application, for one frame of one partition."""
    judge, recorder, control = judgement()
    go_to(control, "orders")
    take(judge, Message(0, 0, [b"k"]))

    def bug(*_: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(judge, "_decoded", bug)
    recorder.moved.clear()
    with pytest.raises(Again):
        take(judge, Message(1, 1, [b"k"]))
    assert judge.state.position == 1, "it comes again"
    take(judge, Message(1, 1, [b"k"]))
    assert recorder.skipped == [(HaltReason.INTERNAL, None)] and judge.state.position == 2
    assert caplog.text.count("Traceback") == 1
    assert "ZeroDivisionError at test_frame_handler.py" in judge._bugs[KEY, 1]
    assert "secret" not in judge._bugs[KEY, 1], "it may quote a record"


@pytest.mark.parametrize("error", [MemoryError(), Again("other"), KafkaTimeout("late")])
def test_what_is_not_about_a_frame_is_not_confined_to_it(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    judge, _, control = judgement()
    go_to(control, "orders")

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(judge, "_decoded", fail)
    with pytest.raises(type(error)):
        take(judge, Message(0, 0, [b"k"]))
    assert judge._bugs == {}


@pytest.mark.parametrize("gone", [True, False])
def test_frames_for_what_is_set_aside_are_skipped_and_those_beside_it_delivered(gone: bool) -> None:
    judge, recorder, control = judgement()
    go_to(control, "orders")
    judge.state.next["id", 1] = 0
    reason = HaltReason.GONE if gone else HaltReason.UNAVAILABLE
    judge._destinations._unavailable.aside["orders", 1] = SimpleNamespace(reason=reason, detail="why")  # type: ignore[assignment]
    take(judge, Message(0, 0, [b"k"]))
    recorder.moved.clear()
    judge._destinations._unavailable.aside["orders", 0] = judge._destinations._unavailable.aside["orders", 1]
    take(judge, Message(1, 1, [b"k"]))
    assert recorder.produced == [("orders", [0])] and recorder.skipped == [(reason, None)]


class WithFailures(Message):
    """A frame of pipeline 1, with keys for those that go on, and None for each that a stage failed on."""

    def __init__(self, offset: int, start: int, keys: list[bytes | None]) -> None:
        super().__init__(offset, start, keys)
        at = [*range(start, start + len(keys))]
        given = encode_rows(at, [1] * len(at), [1] * len(at), [b"k"] * len(at), [b"v"] * len(at), None)
        why = {n: ("stage 1 (mask)", "bad") for n, key in zip(at, keys, strict=True) if key is None}
        kept = given.filter(pa.array([key is not None for key in keys], pa.bool_()))
        rows, failed = merged(given, kept, why, False)
        self._value = pack(rows).to_pybytes()
        frame = Frame(
            "c", "orders", "id", 0, start, start + len(keys), len(kept), "w", pipeline=1, failed=failed
        )
        self._headers = encode_headers(frame, self._value)


def piped(control: Control, on_error: str) -> None:
    definition = '{"flows":[{"onError":"%s"}]}' % on_error  # noqa: UP031 - JSON
    control.apply(control.position, encode("pipeline", n=1, definition=definition, sha256=""))


def letters_to(control: Control, refused: str | None = None) -> None:
    said = {"topic": "dead", "topic_id": "d", "max_message_bytes": 1 << 20, "refused": refused}
    control.apply(control.position, encode("dead-letters", **said))


def test_records_that_a_stage_failed_on_become_dead_letters_and_nothing_else() -> None:
    """Promise: each of those that are new, in the order of the frame, also where the destination takes no
    record without a key; and a frame of them alone moves its partition on."""
    judge, recorder, control = judgement()
    go_to(control, "copy", compacted=True)
    piped(control, "dead-letter")
    letters_to(control)
    judge.state.next[KEY] = 1
    take(judge, WithFailures(0, 0, [None, b"k", None, b"k"]))
    assert recorder.produced == [("copy", [1, 3]), ("dead", [2])]
    take(judge, WithFailures(1, 4, [None, None]))
    assert recorder.produced[2:] == [("dead", [4, 5])] and judge.state.next[KEY] == 6
    moved = recorder.moved[KEY]
    assert (moved.records, moved.duplicates, moved.next) == (2, 0, 6)
    take(judge, WithFailures(2, 4, [None, None]))
    assert len(recorder.produced) == 3, "seen"


def test_behind_a_record_that_can_not_be_delivered_there_are_no_dead_letters() -> None:
    judge, recorder, control = judgement()
    go_to(control, "copy")
    piped(control, "dead-letter")
    letters_to(control)
    recorder.bad[KEY] = (2, HaltReason.TOO_LARGE, "why", "copy")
    take(judge, WithFailures(0, 0, [None, b"k", None, b"k", None]))
    assert recorder.produced == [("copy", [1]), ("dead", [0])]
    assert recorder.skipped == [(HaltReason.TOO_LARGE, 3)] and judge.state.next[KEY] == 2


def test_frames_with_dead_letters_wait_for_their_topic_and_halt_where_it_is_refused() -> None:
    judge, recorder, control = judgement()
    go_to(control, "copy")
    piped(control, "dead-letter")
    frame = WithFailures(0, 0, [None, b"k"])
    with pytest.raises(Waiting):
        take(judge, frame)
    letters_to(control, "it may not be written")
    take(judge, frame)
    assert recorder.skipped == [(HaltReason.DEAD_LETTERS, None)] and recorder.produced == []
    letters_to(control)
    judge._destinations._unavailable.aside["dead", 0] = SimpleNamespace(detail="no leader")  # type: ignore[assignment]
    take(judge, WithFailures(1, 0, [None, b"k"]))
    assert recorder.skipped == [(HaltReason.DEAD_LETTERS, None)] * 2
    judge._destinations._unavailable.aside.clear()
    judge._destinations._unavailable.unsettled["dead", 0] = KafkaError(KafkaError._STATE)
    with pytest.raises(Unsettled):
        take(judge, WithFailures(2, 0, [None, b"k"]))
    judge._destinations._unavailable.unsettled.clear()
    take(judge, WithFailures(2, 0, [None, b"k"]))
    assert recorder.produced == [("copy", [1]), ("dead", [0])]


def test_a_frame_with_dead_letters_that_no_pipeline_has_asked_for_is_asked_for_again() -> None:
    """The topic would be waited for in vain, and all beside it would wait too."""
    judge, recorder, control = judgement()
    go_to(control, "copy")
    piped(control, "skip")
    take(judge, WithFailures(0, 0, [None, b"k"]))
    assert recorder.skipped == [(HaltReason.MISSING, None)] and recorder.produced == []


class WithRoutes(Message):
    """A frame whose records go to these topics, None to the link's own destination; those whose topic is ""
    are some that a stage failed on, those of `no_key` have none."""

    def __init__(self, offset: int, start: int, to: list[str | None], no_key: tuple[int, ...] = ()) -> None:
        at = [*range(start, start + len(to))]
        keys = [None if n in no_key else b"k" for n in at]
        given = encode_rows(at, [1] * len(at), [1] * len(at), keys, [b"v"] * len(at), None)
        why = {n: ("stage 1 (mask)", "bad") for n, name in zip(at, to, strict=True) if name == ""}
        kept = given.filter(pa.array([name != "" for name in to], pa.bool_()))
        rows, failed = merged(given, kept, why, False) if why else (given, None)
        topics = sorted({name for name in to if name})
        numbers = np.array([topics.index(n) if n else -1 for n in to if n != ""], np.int16)
        rows, topics_of = with_routes(rows, kept.column(0), topics, numbers)
        self._offset, self._value = offset, pack(rows).to_pybytes()
        self.frame = Frame(
            "c", "orders", "id", 0, start, start + len(to), len(kept), "w", pipeline=1, failed=failed,
            routes=topics_of,
        )  # fmt: skip
        self._headers = encode_headers(self.frame, self._value)


def versioned(control: Control, number: int, *names: str, count: int | None = None) -> None:
    """A pipeline that names these; `count`: over so many partitions by their keys."""
    cases = [{"when": {"size": 1}, "topic": name} for name in names]
    route: dict[str, Any] = {"cases": cases} | ({"partition": {"hash": count}} if count else {})
    flows = [{"topics": [".*"], "onError": "dead-letter", "stages": [{"route": route}]}]
    definition = orjson.dumps({"flows": flows}).decode()
    control.apply(control.position, encode("pipeline", n=number, definition=definition, sha256=""))


def routed_to(control: Control, *names: str, count: int | None = None, **more: Any) -> None:
    """A first pipeline, and what was found of each."""
    versioned(control, 1, *names, count=count)
    for name in names:
        go_by_route(control, name, **more)


def go_by_route(control: Control, name: str, **more: Any) -> None:
    said = {"topic": "orders", "topic_id": "id", "partitions": 1, "max_message_bytes": 1 << 20} | more
    control.apply(control.position, encode("route", **said, destination=name))


def test_records_go_where_their_frame_says_once_and_its_dead_letters_beside_them() -> None:
    """Promise: each record of a frame goes to one topic, those that were seen to none again, and what is left
    out for it is one offset, `next`, for all of them."""
    judge, recorder, control = judgement()
    go_to(control, "copy")
    letters_to(control)
    routed_to(control, "de", "fr")
    judge.state.next[KEY] = 1
    take(judge, WithRoutes(0, 0, ["de", "de", None, "fr", "", "de", None]))
    assert sorted(recorder.produced) == [("copy", [2, 6]), ("de", [1, 5]), ("dead", [4]), ("fr", [3])]
    moved = recorder.moved[KEY]
    assert (moved.records, moved.duplicates, moved.next, moved.destination.topic) == (5, 1, 7, "copy")
    take(judge, WithRoutes(1, 3, ["fr", "", "de", None]))
    assert len(recorder.produced) == 4, "seen"


def test_a_route_that_is_called_as_the_own_destination_is_that() -> None:
    judge, recorder, control = judgement()
    go_to(control, "copy")
    routed_to(control, "de")
    control.apply(
        control.position,
        encode("pipeline", n=2, sha256="", definition=control.pipelines[1].definition.replace("de", "copy")),
    )
    take(judge, WithRoutes(0, 0, ["copy", None, "copy"]))
    assert recorder.produced == [("copy", [0, 1, 2])]


def test_a_frame_waits_for_the_topics_of_its_routes_and_is_held_where_one_is_refused() -> None:
    judge, recorder, control = judgement()
    go_to(control, "copy")
    routed_to(control, "de", "fr")
    control.routes.clear()
    frame = WithRoutes(0, 0, ["de", None, "fr"])
    with pytest.raises(Waiting):
        take(judge, frame)
    go_by_route(control, "de")
    with pytest.raises(Waiting):
        take(judge, frame)
    go_by_route(control, "fr", refused="it is full")
    take(judge, frame)
    assert recorder.skipped == [(HaltReason.REFUSED, None)] and recorder.told == [("it is full", ("fr", 0))]
    go_by_route(control, "fr", refused="it was deleted", gone=True)
    take(judge, WithRoutes(1, 0, ["de", None, "fr"]))
    assert recorder.skipped[1:] == [(HaltReason.GONE, None)]
    go_by_route(control, "fr")
    unavailable: Any = judge._destinations._unavailable
    unavailable.aside["fr", 0] = SimpleNamespace(reason="no-leader", detail="none")
    take(judge, WithRoutes(2, 0, ["fr"]))
    assert recorder.skipped[2:] == [("no-leader", None)] and recorder.told[2:] == [("none", ("fr", 0))]
    take(judge, WithRoutes(3, 0, ["de", None]))
    assert recorder.produced == [("de", [0]), ("copy", [1])], "what does not go there goes on"
    unavailable.aside.clear()
    unavailable.unsettled["fr", 0] = KafkaError(KafkaError._STATE)
    with pytest.raises(Unsettled):
        take(judge, WithRoutes(4, 2, ["fr"]))
    unavailable.unsettled.clear()
    take(judge, WithRoutes(4, 2, ["fr"]))
    assert recorder.produced[2:] == [("fr", [2])]


def test_records_go_to_the_partitions_that_their_frame_says_if_its_version_has_so_many() -> None:
    judge, recorder, control = judgement()
    go_to(control, "copy")
    routed_to(control, "de", count=3, partitions=3)
    take(judge, WithRoutes(0, 0, ["de/2", "de/0", None, "de/2", "copy/7"]))
    assert sorted(recorder.produced) == [("copy", [2, 4]), ("de/0", [1]), ("de/2", [0, 3])]
    for at, wrong in enumerate(("de/3", "de", "fr/0"), 1):
        take(judge, WithRoutes(at, 5, [wrong] * at))
    assert recorder.skipped == [(HaltReason.MISSING, None)] * 3 and len(recorder.produced) == 3
    assert all("pipeline 1 takes none there" in why for why, _ in recorder.told)


def test_a_partition_that_takes_nothing_keeps_back_what_goes_there_and_nothing_else() -> None:
    judge, recorder, control = judgement()
    go_to(control, "copy")
    routed_to(control, "de", count=3, partitions=3)
    unavailable: Any = judge._destinations._unavailable
    unavailable.aside["de", 2] = SimpleNamespace(reason="no-leader", detail="none")
    take(judge, WithRoutes(0, 0, ["de/0", "de/1"]))
    take(judge, WithRoutes(1, 2, ["de/0", "de/2"]))
    assert recorder.produced == [("de/0", [0]), ("de/1", [1])]
    assert recorder.told == [("none", ("de", 2))]


def test_a_frame_waits_until_its_topic_has_all_partitions_of_its_version() -> None:
    """Also for those that are there: while they are few, keys would lie where nobody looks for them."""
    judge, recorder, control = judgement()
    go_to(control, "copy")
    routed_to(control, "de", count=6, partitions=3)
    with pytest.raises(Waiting):
        take(judge, WithRoutes(0, 0, ["de/1"]))
    go_by_route(control, "de", partitions=6)
    take(judge, WithRoutes(0, 0, ["de/1"]))
    assert recorder.produced == [("de/1", [0])]


def test_a_frame_of_an_earlier_version_is_asked_for_again_once_its_topic_has_grown() -> None:
    """Promise: no record lies where the newest version would not put its key."""
    judge, recorder, control = judgement()
    go_to(control, "copy")
    routed_to(control, "de", count=3, partitions=6)
    with pytest.raises(Waiting):
        take(judge, WithRoutes(0, 0, ["de/1"]))
    versioned(control, 2, "de", count=6)
    take(judge, WithRoutes(0, 0, ["de/1"]))
    assert recorder.produced == [] and recorder.skipped == [(HaltReason.MISSING, None)]
    assert "pipeline 1 spreads keys over 3 of 6 partitions of de" in recorder.told[0][0]


def test_a_partition_that_came_later_waits_until_the_topic_of_its_route_has_grown() -> None:
    judge, _, control = judgement()
    go_to(control, "copy")
    routed_to(control, "de", partitions=0)
    with pytest.raises(Waiting):
        take(judge, WithRoutes(0, 0, ["de"]))


def test_a_route_that_no_pipeline_has_is_asked_for_again() -> None:
    """Its topic would be waited for in vain, and all beside it would wait too."""
    judge, recorder, control = judgement()
    go_to(control, "copy")
    routed_to(control, "de")
    take(judge, WithRoutes(0, 0, ["other"]))
    assert recorder.skipped == [(HaltReason.MISSING, None)] and recorder.produced == []
    assert "pipeline 1 takes none there" in recorder.told[0][0]


def test_a_record_without_a_key_stops_at_a_route_that_is_compacted_and_names_it() -> None:
    judge, recorder, control = judgement()
    go_to(control, "copy")
    letters_to(control)
    routed_to(control, "de", compacted=True)
    take(judge, WithRoutes(0, 0, ["de", None, "", "de", "de"], no_key=(1, 3)))
    assert sorted(recorder.produced) == [("copy", [1]), ("de", [0]), ("dead", [2])]
    assert recorder.skipped == [(HaltReason.NO_KEY, 4)] and recorder.told[0][1] == ("de", 0)
    assert judge.state.next[KEY] == 3


def test_a_release_that_knows_no_routes_halts_the_partition_by_name() -> None:
    """Promise: it delivers nothing of a frame with routes, and says that the replicator is of another
    release. What it reads is the frame without the header that it does not know."""
    judge, recorder, control = judgement()
    go_to(control, "copy")
    frames = [WithRoutes(number, 0, ["de", None]) for number in range(2)]
    for frame in frames:
        frame._headers = [one for one in frame._headers if one[0] != "routes"]
        take(judge, frame)
    assert recorder.skipped == [(HaltReason.MISSING, None), (HaltReason.UNREADABLE, None)]
    assert "the replicator is of another release" in recorder.told[1][0] and recorder.produced == []
