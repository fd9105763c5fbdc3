"""A transaction: how long it waits for more, what goes into its batches, which run each becomes, where these
are foreseen to lie, and what a refusal leads to."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from common import ports
from common.errors import UncleanTransaction
from common.kafka.wire.batch_producer import Refused
from common.kafka.wire.record_batch import BatchHeader, Records, decode, seal
from common.kafka.wire.records import Rows
from common.link import provenance
from common.link.batch_frame import BatchFrame
from common.link.control_kinds import DeadLetters
from common.link.control_records import Destination
from common.link.frame import Frame
from common.link.frame_errors import merged, split
from common.link.halt_reasons import HaltReason
from common.link.offset_mappings import Letters, Routed
from common.link.offset_mappings import decode as mapping
from deduplicator.lane.moved import Moved
from deduplicator.lane.offset_runs import Run
from deduplicator.lane.partition_state import StagingPartitionState
from deduplicator.lane.transaction import (
    PREDICTED_RUNS,
    Again,
    Transaction,
)
from deduplicator.lane.transaction_linger import LINGER_S, MUCH_BYTES, MUCH_S, QUEUED_TIMES
from tests.support.strategies import rows_of
from tests.unit.common.kafka.wire.test_chunks import whole

KEY = ("id", 0)


class Broker:
    """A BatchProducer whose batches land one behind the other; `others` records of somebody else's come
    before the batch of that number."""

    def __init__(self, others: dict[int, int] | None = None, error: int = 0) -> None:
        self.end = 0
        self.batches: list[tuple[str, int, list[bytes | None]]] = []
        self.headers: list[Any] = []
        self.mappings: list[Any] = []
        self.committed = 0
        self.blamed = False
        self._others = others or {}
        self._error = error
        self._waiting: list[tuple[int, Callable[..., None]]] = []
        self.refuses: Exception | None = None

    @property
    def client(self) -> Broker:
        return self

    def begin_transaction(self) -> None:
        pass

    def __len__(self) -> int:
        return len(self._waiting)

    def _got(self, topic: str, count: int, found: list[Any], reported: Callable[..., None]) -> None:
        self.batches.append((topic, count, [r.value for r in found]))
        self.headers.append([r.headers for r in found])
        self._waiting.append((count, reported))

    def produce_batch(
        self,
        topic: str,
        _: int,
        records: Records,
        reported: Callable[..., None],
        most_bytes: int | None = None,
    ) -> None:
        raw = b"".join(bytes(piece) for piece in seal(records, "none"))
        self._got(topic, records.count, decode(raw), reported)

    def produce_whole(
        self, topic: str, _: int, header: BatchHeader, batch: Any, reported: Callable[..., None]
    ) -> None:
        self._got(topic, header.count, decode(bytes(batch)), reported)

    def produce(self, _: str, value: bytes, __: Any, ___: int, on_delivery: Any = None) -> None:
        self.mappings.append(mapping(value))

    def flush(self, _: float = 0) -> int:
        if self.refuses is not None:
            raise self.refuses
        for number, (count, reported) in enumerate(self._waiting):
            if self._error:
                reported(KafkaError(self._error), -1)
                continue
            self.end += self._others.get(number, 0)
            reported(None, self.end)
            self.end += count
        self._waiting = []
        return 0

    def blame_unanswered(self) -> None:
        self.blamed = True

    def commit_transaction(self, _: float) -> None:
        self.committed += 1
        self.end += 1

    def send_offsets_to_transaction(self, *_: Any) -> None:
        pass


def begun(broker: Broker, marked: bool = False, several: bool = False) -> tuple[Transaction, Moved]:
    plan = SimpleNamespace(
        provenance=marked, cluster="c", mappings_topic="m", staging_topic="s", group="g", link="link"
    )
    owned = StagingPartitionState("staging-0", 0)
    owned.position = 1
    transaction = Transaction(cast(Any, plan), owned, lambda topic, ask: several)
    transaction.use(broker, (0, None))  # type: ignore[arg-type]
    return transaction, under_way(transaction)


def under_way(transaction: Transaction) -> Moved:
    transaction.begin()
    moved = Moved(
        Frame("c", "orders", "id", 0, 0, 10, 1, "w"), 0, 10, Destination("orders", 1, 1_000_000, None, {})
    )
    transaction.moved[KEY] = moved
    return moved


def rows(offsets: list[int]) -> Any:
    return rows_of(offsets, [1] * len(offsets), [None] * len(offsets), [b"%d" % o for o in offsets])


def runs(broker: Broker) -> list[list[list[int]]]:
    return [m.runs for m in broker.mappings]


def test_only_one_that_is_open_waits_for_more_and_the_longer_the_longer_commits_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    takes = [0.01, 0.04, 0.04]

    class Slow(Broker):
        def commit_transaction(self, timeout: float) -> None:
            nonlocal now
            now += takes.pop(0)
            super().commit_transaction(timeout)

    monkeypatch.setattr(ports, "monotonic", lambda: now)
    transaction, _ = begun(Slow())
    transaction.moved = {}  # the quickest is of the position alone
    while takes:
        transaction.bytes = MUCH_BYTES
        assert transaction.waits_s(now) == LINGER_S
        transaction.commit()
        assert transaction.waits_s(now) == 0
        under_way(transaction)
    transaction.bytes = MUCH_BYTES
    much_s = QUEUED_TIMES * 0.03
    assert transaction.waits_s(now) == pytest.approx(LINGER_S * much_s / MUCH_S)
    assert not transaction.full(now + much_s - 0.01)
    assert transaction.full(now + much_s)


def test_runs_are_foreseen_to_follow_each_other_from_the_end_of_the_last_transaction_on() -> None:
    broker = Broker()
    transaction, moved = begun(broker)
    transaction.produce(moved, rows([0, 1, 2]))
    assert transaction._predicted() is None, "nothing is committed yet"
    transaction.commit()
    moved = under_way(transaction)
    transaction.produce(moved, rows([5, 6, 9]))
    assert transaction._predicted() == [[Run(5, 2, 4), Run(9, 1, 6)]], "the marker takes one"
    transaction.commit()
    assert runs(broker)[1] == [[5, 4, 2], [9, 6, 1]]
    assert transaction._ends == {("orders", 0): 8}


@pytest.mark.parametrize("count", [PREDICTED_RUNS, PREDICTED_RUNS + 1])
def test_of_many_runs_nothing_is_foreseen(count: int) -> None:
    transaction, moved = begun(Broker())
    transaction._ends = {("orders", 0): 10}
    transaction.produce(moved, rows(list(range(0, 2 * count, 2))))
    assert (transaction._predicted() is None) == (count > PREDICTED_RUNS)


def test_where_several_write_to_a_destination_nothing_is_foreseen() -> None:
    transaction, moved = begun(Broker(), several=True)
    transaction._ends = {("orders", 0): 10}
    transaction.produce(moved, rows([0]))
    assert transaction._predicted() is None


def test_records_go_in_one_batch_whatever_offsets_are_missing_and_each_run_is_mapped() -> None:
    broker = Broker()
    transaction, moved = begun(broker)
    transaction.produce(moved, rows([3, 4, 7, 9, 10]))
    transaction.commit()
    assert broker.batches == [("orders", 5, [b"3", b"4", b"7", b"9", b"10"])]
    assert runs(broker) == [[[3, 0, 2], [7, 2, 1], [9, 3, 2]]]


def test_a_batch_is_no_larger_than_the_smallest_destination_takes() -> None:
    broker = Broker()
    transaction, moved = begun(broker)
    transaction.batch_bytes = 30
    transaction.produce(moved, rows(list(range(10))))
    transaction.commit()
    assert len(broker.batches) > 2
    assert [value for _, _, values in broker.batches for value in values] == [b"%d" % o for o in range(10)]
    assert runs(broker) == [[[0, 0, 10]]]


def test_another_writers_records_between_two_batches_are_in_no_run() -> None:
    broker = Broker(others={1: 5})
    transaction, moved = begun(broker)
    transaction.produce(moved, rows([0, 1]))
    transaction.produce(moved, rows([2, 3]))
    transaction.commit()
    assert runs(broker) == [[[0, 0, 2], [2, 7, 2]]]
    assert broker.committed == 1, "nothing was foreseen, so nothing is done again"


def test_whole_batches_are_mapped_as_they_come() -> None:
    broker = Broker()
    transaction, moved = begun(broker)
    batches = [whole(0, 3), whole(5, 2)]
    transaction.produce(
        moved, BatchFrame(_value(batches), [(0, batches[0][0]), (batches[0][0].size, batches[1][0])])
    )
    transaction.commit()
    assert [count for _, count, _ in broker.batches] == [3, 2]
    assert runs(broker) == [[[0, 0, 3], [5, 3, 2]]]


def _value(batches: list[Any]) -> Any:
    return pa.py_buffer(b"".join(bytes(data) for _, data in batches))


def test_what_was_foreseen_wrongly_is_done_again_and_not_foreseen_any_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Broker()
    transaction, moved = begun(broker)
    transaction.produce(moved, rows([0]))
    transaction.commit()
    broker._others = {0: 1}
    moved = under_way(transaction)
    transaction.produce(moved, rows([1]))
    assert transaction._predicted() == [[Run(1, 1, 2)]]
    with pytest.raises(Again, match="broken by another writer"):
        transaction.commit()
    assert "another writer" in caplog.text
    transaction.drop = lambda: None  # type: ignore[method-assign]
    transaction.open, broker._waiting = False, []
    moved = under_way(transaction)
    transaction.produce(moved, rows([1]))
    assert transaction._predicted() is None
    assert broker.batches[-1][1] == 1


@pytest.mark.parametrize("count", [1, 3])
def test_a_record_that_is_too_large_is_found_by_sending_each_by_itself(count: int) -> None:
    broker = Broker(error=KafkaError.MSG_SIZE_TOO_LARGE)
    transaction, moved = begun(broker)
    transaction.produce(moved, rows(list(range(count))))
    with pytest.raises(Again, match="too large"):
        transaction.commit()
    if count == 1:
        assert transaction.bad[KEY][0] == 0
        assert not transaction._alone, "found: the others go together again"
        return
    assert not transaction.bad
    wholes = BatchFrame(None, [(0, whole(0, 1)[0])])
    assert not transaction.takes_whole(wholes, moved.destination)
    transaction.open, transaction.moved, broker._waiting = False, {}, []
    moved = under_way(transaction)
    broker.batches = []
    transaction.produce(moved, rows(list(range(count))))
    assert [c for _, c, _ in broker.batches] == [1] * count
    broker._error = 0
    transaction.commit()
    moved = under_way(transaction)
    transaction.produce(moved, rows([5, 6]))
    assert broker.batches[-1][1] == 2, "what followed was taken: together again"


def test_a_refused_record_is_an_unclean_end_and_a_refused_mapping_a_missing_right() -> None:
    for topics, wanted in ((["orders"], UncleanTransaction), (["m"], Refused)):
        broker = Broker()
        transaction, moved = begun(broker)
        transaction.produce(moved, rows([0]))
        broker.refuses = Refused(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), topics)
        with pytest.raises(wanted):
            transaction.commit()


def test_which_batches_may_go_as_they_are() -> None:
    header, _ = whole(0, 3)
    wholes = BatchFrame(None, [(0, header)])

    def takes(limit: int = 1_000_000, compacted: bool = False, marked: bool = False) -> bool:
        transaction, _ = begun(Broker(), marked)
        config = {"cleanup.policy": "compact"} if compacted else {}
        destination = Destination("orders", 1, limit, None, config, compacted=compacted)
        return transaction.takes_whole(wholes, destination)

    assert takes() and takes(header.size)
    assert not takes(header.size - 1), "the destination would refuse it"
    assert not takes(compacted=True), "a record without a key would not be noticed"
    assert not takes(marked=True), "each record gets a header"


def test_each_record_bears_the_mark() -> None:
    broker = Broker()
    transaction, moved = begun(broker, marked=True)
    transaction.produce(moved, rows([0, 1]))
    assert broker.headers == [[[provenance.header("c")]] * 2]


def test_an_endless_wait_is_an_unclean_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(ports, "monotonic", lambda: now.__setitem__(0, now[0] + 1) or now[0])
    broker = Broker()
    monkeypatch.setattr(broker, "flush", lambda _: 1)
    transaction, moved = begun(broker)
    transaction.produce(moved, rows([0]))
    with pytest.raises(UncleanTransaction, match="not acknowledged in time"):
        transaction.commit()
    assert broker.blamed


LETTERS = DeadLetters("dead", "id", 1_000_000)


def letters_of(offsets: list[int]) -> tuple[Frame, Any]:
    """A frame's records on which a stage failed, and the frame."""
    given = rows(offsets).batch
    both, failed = merged(given, given.slice(0, 0), dict.fromkeys(offsets, ("stage 1 (mask)", "bad")), True)
    frame = Frame("c", "orders", "id", 0, offsets[0], offsets[-1] + 1, 0, "w", pipeline=1, failed=failed)
    return frame, split(Rows.of(offsets, both))[1]


def second(broker: Broker) -> tuple[Any, Any]:
    """A transaction behind one that has come through, with two records in it, between which others fit."""
    transaction, moved = begun(broker)
    transaction.produce(moved, rows([0, 1]))
    transaction.commit()
    transaction.open, broker._waiting = False, []
    moved = under_way(transaction)
    transaction.produce(moved, rows([2, 5]))
    return transaction, moved


def test_dead_letters_go_with_the_transaction_and_its_mapping_tells_where_they_are() -> None:
    broker = Broker()
    transaction, moved = second(broker)
    transaction.produce_letters(moved, *letters_of([3, 4, 7]), LETTERS)
    assert broker.committed == 1 and transaction.written() == {("orders", 0), ("dead", 0)}
    assert transaction._predicted() is None, "where a letter will lie is not foreseen"
    transaction.commit()
    assert [(topic, count) for topic, count, _ in broker.batches[1:]] == [("orders", 2), ("dead", 3)]
    (told,) = broker.mappings[1:]
    assert told.runs == [[2, 3, 1], [5, 4, 1]]
    assert told.dead_letters == Letters("dead", 0, [[3, 5, 2], [7, 7, 1]])
    assert transaction.state.done["orders", 0]["dead_letters"] == 3


def test_a_dead_letter_that_is_not_acknowledged_is_an_unclean_end() -> None:
    broker = Broker(error=KafkaError.NOT_ENOUGH_REPLICAS)
    transaction, moved = begun(broker)
    transaction.produce_letters(moved, *letters_of([3]), LETTERS)
    with pytest.raises(UncleanTransaction):
        transaction.commit()
    assert broker.committed == 0


def test_a_dead_letter_that_is_too_large_is_found_and_its_topic_named() -> None:
    broker = Broker(error=KafkaError.MSG_SIZE_TOO_LARGE)
    transaction, moved = begun(broker)
    transaction.produce_letters(moved, *letters_of([3, 4]), LETTERS)
    with pytest.raises(Again):
        transaction.commit()
    assert not transaction.bad
    transaction.open, transaction.moved, broker._waiting, broker.batches = False, {}, [], []
    moved = under_way(transaction)
    transaction.produce_letters(moved, *letters_of([3, 4]), LETTERS)
    assert [count for _, count, _ in broker.batches] == [1, 1]
    with pytest.raises(Again):
        transaction.commit()
    at, reason, detail, topic = transaction.bad[KEY]
    assert (at, reason, topic) == (
        3,
        HaltReason.TOO_LARGE,
        "dead",
    ) and "max.message.bytes of dead allows" in detail


def to(topic: str, most_bytes: int = 1_000_000) -> Destination:
    return Destination(topic, 1, most_bytes, None, {})


def test_records_of_routes_go_with_the_transaction_and_its_mapping_tells_where_they_are() -> None:
    broker = Broker()
    transaction, moved = second(broker)
    transaction.produce(moved, rows([3, 4, 7]), to("fr"))
    transaction.produce(moved, rows([6]), to("de"))
    assert transaction.written() == {("orders", 0), ("fr", 0), ("de", 0)}
    assert transaction._predicted() is None, "where a routed record will lie is not foreseen"
    transaction.commit()
    assert [(topic, count) for topic, count, _ in broker.batches[1:]] == [("orders", 2), ("fr", 3), ("de", 1)]
    (told,) = broker.mappings[1:]
    assert told.runs == [[2, 3, 1], [5, 4, 1]]
    assert told.routed == (Routed("de", [[6, 8, 1]]), Routed("fr", [[3, 5, 2], [7, 7, 1]]))


def test_records_of_one_source_partition_go_to_several_of_a_topic_and_the_mapping_tells_which() -> None:
    broker = Broker()
    transaction, moved = second(broker)
    transaction.produce(moved, rows([3, 7]), to("de"), 4)
    transaction.produce(moved, rows([4, 6]), to("de"), 0)
    assert transaction.written() == {("orders", 0), ("de", 4), ("de", 0)}
    transaction.commit()
    (told,) = broker.mappings[1:]
    assert told.runs == [[2, 3, 1], [5, 4, 1]]
    assert [(one.topic, one.partition, [s for s, _, _ in one.runs]) for one in told.routed] == [
        ("de", 0, [4, 6]), ("de", 4, [3, 7]),
    ]  # fmt: skip


def test_a_routed_record_that_is_not_acknowledged_is_an_unclean_end() -> None:
    broker = Broker(error=KafkaError.NOT_ENOUGH_REPLICAS)
    transaction, moved = begun(broker)
    transaction.produce(moved, rows([3]), to("de"))
    with pytest.raises(UncleanTransaction):
        transaction.commit()
    assert broker.committed == 0


def test_a_routed_record_whose_report_has_not_come_is_an_unclean_end() -> None:
    broker = Broker()
    transaction, moved = begun(broker)
    transaction.produce(moved, rows([3]), to("de"))
    broker._waiting = []
    with pytest.raises(UncleanTransaction, match="not all reported"):
        transaction.commit()
    assert broker.committed == 0


def test_a_routed_record_that_is_too_large_is_found_and_its_topic_named() -> None:
    broker = Broker(error=KafkaError.MSG_SIZE_TOO_LARGE)
    transaction, moved = begun(broker)
    transaction.produce(moved, rows([3, 4]), to("de"))
    with pytest.raises(Again):
        transaction.commit()
    assert not transaction.bad
    transaction.open, transaction.moved, broker._waiting, broker.batches = False, {}, [], []
    moved = under_way(transaction)
    transaction.produce(moved, rows([3, 4]), to("de"))
    assert [count for _, count, _ in broker.batches] == [1, 1]
    with pytest.raises(Again):
        transaction.commit()
    at, reason, detail, topic = transaction.bad[KEY]
    assert (at, reason, topic) == (3, HaltReason.TOO_LARGE, "de")
    assert "max.message.bytes of de allows" in detail
