"""confluent_kafka's clients, as far as this project uses them, on the clusters of
tests/simulation/cluster.py.

They honour the configuration that correctness needs (isolation level, idempotence, gapless guarantee, offset
reset, transactional id), so production code that leaves it out fails here. Each call is a scheduling point.
What may go wrong on the way is an outcome that the chooser decides: requests that arrive late or never,
answers that are lost.

librdkafka as it is known to be: a record that fails lets those behind it go on unless the gapless guarantee
is set and messages do not time out.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from confluent_kafka import (
    OFFSET_END,
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec
from greenlet import GreenletExit

from tests.simulation.cluster import Cluster, Headers, Log, Topic, Txn, refuse
from tests.simulation.scheduler import Process, Scheduler

if TYPE_CHECKING:
    from tests.simulation.batches import BatchConsumer

Config = dict[str, Any]
T = TypeVar("T")


class Surroundings(Protocol):
    """What clients need of the world."""

    scheduler: Scheduler
    clusters: dict[str, Cluster]
    zombies: list[Process]
    late: list[Callable[[], None]]
    """Requests that may still arrive, in any order."""
    held_up: set[str]
    consumers: list[Consumer | BatchConsumer]
    by_names: bool
    """Whether the source's brokers are asked for topics by name."""

    def outcome(self, what: str, *ways: str) -> str: ...
    def visited(self, state: str) -> None: ...


class Message:
    """A record, or an error in its place."""

    __slots__ = (
        "_epoch",
        "_error",
        "_headers",
        "_key",
        "_offset",
        "_partition",
        "_stamp",
        "_topic",
        "_value",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int | None,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers = None,
        stamp: int = 1,
        epoch: int | None = None,
        error: KafkaError | None = None,
    ) -> None:
        self._topic, self._partition, self._offset = topic, partition, offset
        self._key, self._value, self._headers = key, value, headers
        self._stamp, self._epoch, self._error = stamp, epoch, error

    def __len__(self) -> int:
        return len(self._value or b"")

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int | None:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Headers:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return (1, self._stamp)

    def leader_epoch(self) -> int | None:
        return self._epoch

    def error(self) -> KafkaError | None:
        return self._error


class Client:
    """What all clients share: their process and cluster, and the way there."""

    def __init__(self, world: Surroundings, config: Config) -> None:
        self.world = world
        self.scheduler = world.scheduler
        task = world.scheduler.current
        assert task is not None, "clients are made by tasks"
        self.process: Process = task.process
        self.config = config
        self.cluster = world.clusters[config["bootstrap.servers"]]

    def call(self, timeout: float = 30.0) -> None:
        """A request: others may come first. Raises when no broker is reached in time."""
        if not self.process.alive:
            raise GreenletExit
        self.scheduler.point()
        if self.process.cut_off_until > self.scheduler.now:
            wait = self.process.cut_off_until - self.scheduler.now
            self.scheduler.wait(min(wait, timeout))
            if wait > timeout:
                raise refuse(KafkaError._TIMED_OUT)

    def reachable(self) -> bool:
        return self.process.cut_off_until <= self.scheduler.now

    def _leave(self, sent: list[T], append: Callable[[T], KafkaError | None]) -> None:
        """Nobody hears any more of what was sent; it may arrive all the same."""
        if sent and self.world.outcome("what was sent", "is lost", "still arrives") == "still arrives":
            # In order, and some of it at least; behind anything that this producer ever sent.
            sent = sent[: 1 + self.scheduler.chooser.pick(len(sent), "arrives")]
            self.world.visited("a record arrived after its producer was gone")

            def arrive() -> None:
                for one in sent:
                    if append(one) is not None:
                        break

            self.world.late.append(arrive)


# producing


@dataclass(slots=True, eq=False)
class Queued:
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    report: Callable[[KafkaError | None, Message], None] | None


class Transactional(Client):
    """What has a transactional id: its way to the coordinator, and what it leaves behind there."""

    def __init__(self, world: Surroundings, config: Config) -> None:
        super().__init__(world, config)
        self.tid: str | None = config.get("transactional.id")
        self.epoch = -1

    def init_transactions(self, timeout: float = 30.0) -> None:
        assert self.tid is not None
        tid = self.tid
        self.call(timeout)
        way = self.world.outcome("InitProducerId", "answers", "answer is lost", "is lost")
        if way == "is lost":
            self.scheduler.wait(timeout)
            raise refuse(KafkaError._TIMED_OUT)
        end = self.scheduler.now + timeout
        known = self.cluster.coordinated.get(tid)
        if known is not None and known.txn is not None and known.txn.state == "open":
            self.world.visited("fenced a transaction under way")

        def ask() -> int | None:
            if (epoch := self.cluster.init_producer(tid)) is None:
                self.world.visited("fencing waited for a commit that was being completed")
            return epoch

        epoch = self._until_ready(ask, end)
        if way == "answer is lost":
            raise refuse(KafkaError._TIMED_OUT)
        self.epoch = epoch

    def _until_ready(self, ask: Callable[[], T | None], end: float) -> T:
        """What is asked of the coordinator again while the last transaction is being completed."""
        while (answer := ask()) is None:
            if self.scheduler.now >= end:
                raise refuse(KafkaError._TIMED_OUT)
            self.scheduler.wait(0.1)
        return answer

    def _ongoing(self) -> Txn | None:
        return self.cluster.ongoing(self.tid or "", self.epoch, self._timeout())

    def _timeout(self) -> float:
        return float(self.config.get("transaction.timeout.ms", 60000)) / 1000

    def _late_end(self, tid: str, epoch: int, result: str) -> None:
        def arrive() -> None:
            known = self.cluster.coordinated[tid]
            if known.epoch == epoch and known.txn is not None and known.txn.state == "open":
                self.world.visited("a late EndTxn ended a transaction")
            with contextlib.suppress(KafkaException):
                self.cluster.end(tid, epoch, result)

        self.world.late.append(arrive)


class Producer(Client):
    """An idempotent producer, without transactions."""

    def __init__(self, world: Surroundings, config: Config) -> None:
        super().__init__(world, config)
        self.gapless = bool(config.get("enable.gapless.guarantee")) and config.get("message.timeout.ms") == 0
        self.queue: deque[Queued] = deque()
        self.reports: deque[tuple[Queued, KafkaError | None, int | None]] = deque()
        self.fatal: KafkaError | None = None
        self.refuse_next: int | None = None
        """The error that the next record meets."""
        self.stuck: set[str] = set()
        """Topics to which nothing is sent any more, for ever and without a word."""
        self.process.on_death.append(self.died)
        self.process.producers.append(self)

    def __len__(self) -> int:
        return len(self.queue)

    def list_topics(self, topic: str, timeout: float = 10.0) -> None:
        """Only so that the client is connected: what it answers is used by nobody."""
        self.call(timeout)

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        callback: Any = None,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        if not self.process.alive:
            raise GreenletExit
        if self.fatal is not None:
            raise KafkaException(self.fatal)
        report = callback if callback is not None else on_delivery
        kept = [(k, v) for k, v in headers] if headers else None
        if not self.queue:
            self.scheduler.events.append(self._wire)
        self.queue.append(
            Queued(
                topic,
                max(partition, 0),
                key,
                None if value is None else bytes(value),
                kept,
                timestamp or 1,
                report,
            )
        )

    def poll(self, timeout: float = 0) -> int:
        if not self.process.alive:
            raise GreenletExit
        if timeout and not self.reports:
            self.scheduler.wait(timeout, lambda: bool(self.reports))
        n = 0
        while self.reports:
            queued, error, offset = self.reports.popleft()
            n += 1
            if queued.report is not None:
                queued.report(error, Message(queued.topic, queued.partition, offset, queued.key))
        return n

    def flush(self, timeout: float = 1e9) -> int:
        self.call(timeout)
        self.scheduler.wait(timeout, lambda: not self.queue)
        self.poll(0)
        return len(self.queue)

    def purge(self, **_: Any) -> None:
        """What was queued is dropped, but for what the broker may have had already."""
        if not self.process.alive:
            raise GreenletExit
        self._leave_on_the_wire()
        for queued in self.queue:
            self.reports.append((queued, KafkaError(KafkaError._PURGE_QUEUE), None))
        self._emptied()

    def died(self) -> None:
        """The process is gone; what it had sent may still arrive."""
        self._leave_on_the_wire()
        self._emptied()

    def _emptied(self) -> None:
        if self.queue:
            self.queue.clear()
            self.scheduler.events.remove(self._wire)

    def _leave_on_the_wire(self) -> None:
        self._leave(list(self.queue), lambda queued: self._append(queued)[0])

    # the wire

    def _wire(self) -> Callable[[], None] | None:
        return self._arrive if self.reachable() and self._sends() else None

    def _sends(self) -> bool:
        return not self.stuck or any(q.topic not in self.stuck for q in self.queue)

    def _arrive(self) -> None:
        """A batch gets through, of one partition: nothing keeps partitions in step. (Its answer gets through
        too: a process that dies before it looks has not heard it.)"""
        self.scheduler.moved = self.process.name
        pick = self.scheduler.chooser.pick
        partitions = list(
            dict.fromkeys((q.topic, q.partition) for q in self.queue if q.topic not in self.stuck)
        )
        chosen = partitions[pick(len(partitions), "partition")] if len(partitions) > 1 else partitions[0]
        batch = [q for q in self.queue if (q.topic, q.partition) == chosen]
        for queued in batch[: 1 + pick(len(batch), "batch")] if len(batch) > 1 else batch:
            error, offset = self._append(queued)
            self.queue.remove(queued)
            self.reports.append((queued, error, offset))
            if error is not None:
                self._failed(error)
                break
        if not self.queue:
            self.scheduler.events.remove(self._wire)

    def _failed(self, error: KafkaError) -> None:
        if not self.gapless:
            return  # those behind go on
        behind = KafkaError(KafkaError._GAPLESS_GUARANTEE)
        self.fatal = KafkaError(KafkaError._GAPLESS_GUARANTEE, None, True)
        while self.queue:
            self.reports.append((self.queue.popleft(), behind, None))

    def _append(self, queued: Queued) -> tuple[KafkaError | None, int | None]:
        try:
            if self.refuse_next is not None:
                code, self.refuse_next = self.refuse_next, None
                raise refuse(code)
            log = self.cluster.log(queued.topic, queued.partition)
            if self.process in self.world.zombies and queued.headers:
                self.world.visited("a zombie's frame reached staging")
            return None, log.append(queued.key, queued.value, queued.headers, queued.timestamp)
        except KafkaException as exception:
            return exception.args[0], None


# consuming


@dataclass(slots=True)
class Reading:
    """A partition that a consumer reads: `at` is what it fetches next, `waiting` what it has fetched."""

    topic: str
    partition: int
    at: int
    leader_epoch: int | None = None
    waiting: deque[Message] = field(default_factory=deque)
    ended_at: int = -1
    stopped: bool = False
    high: int = -1
    log: Log | None = None


class Consumer(Client):
    """A consumer that assigns itself what it reads."""

    def __init__(self, world: Surroundings, config: Config) -> None:
        super().__init__(world, config)
        self.committed_only = config.get("isolation.level", "read_committed") == "read_committed"
        self.eof = bool(config.get("enable.partition.eof"))
        self.group: str = config["group.id"]
        assert config["auto.offset.reset"] == "error" and config["enable.auto.commit"] is False
        self.readings: dict[tuple[str, int], Reading] = {}
        self.heard_of: set[str] = set()
        self.made_at = self.scheduler.steps
        self.closed = False
        world.consumers.append(self)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self.readings = {}
        self.incremental_assign(partitions)

    def incremental_assign(self, partitions: Iterable[TopicPartition]) -> None:
        for p in partitions:
            # Of a topic that a connected one has not heard of, librdkafka asks when it next looks, up to a
            # second later.
            assert p.topic in self.heard_of or self.scheduler.steps == self.made_at, f"{p.topic}: late"
            self.heard_of.add(p.topic)
            offset = p.offset
            if offset == OFFSET_END:
                offset = self.cluster.log(p.topic, p.partition).high
            epoch = p.leader_epoch if p.leader_epoch is not None and p.leader_epoch >= 0 else None
            self.readings[(p.topic, p.partition)] = Reading(p.topic, p.partition, offset, epoch)

    def incremental_unassign(self, partitions: Iterable[TopicPartition]) -> None:
        for p in partitions:
            self.readings.pop((p.topic, p.partition), None)

    def unassign(self) -> None:
        self.readings = {}

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition(*at) for at in self.readings]

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Only where all that is wanted has come."""
        self.incremental_unassign(partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """What is paused is not assigned."""

    def poll(self, timeout: float = 0) -> Message | None:
        if not self.process.alive:
            raise GreenletExit
        if timeout > 0:
            # A poll of a millisecond, while others wait for a minute, would only cost steps.
            self.scheduler.wait(max(timeout, 0.2 if self.reachable() else 5.0), self._something)
        else:
            self.scheduler.point()
        messages = self._take(1)
        return messages[0] if messages else None

    def consume(self, n: int = 1, timeout: float = 0) -> list[Message]:
        if not self.process.alive:
            raise GreenletExit
        assert timeout == 0
        return self._take(n)

    def _something(self) -> bool:
        # Asked of every waiting consumer before every step: a quarter of all time once.
        readings = self.readings.values()
        for r in readings:
            if r.waiting:
                return True
        if not self.reachable():
            return False
        return any(not r.stopped and self._to_fetch(r) for r in readings)

    def _fetchable(self, r: Reading) -> bool:
        return not r.stopped and self.reachable() and self._to_fetch(r)

    def _to_fetch(self, r: Reading) -> bool:
        topic = self.cluster.topics.get(r.topic)
        if topic is None or r.partition >= len(topic.logs):
            return True
        log = topic.logs[r.partition]
        at = r.at
        end = log.stable() if self.committed_only else log.high
        return at < end or at > log.end or at < log.start or (self.eof and r.ended_at != at)

    def _take(self, n: int) -> list[Message]:
        out: list[Message] = []
        for r in self.readings.values():
            if not r.waiting and self._fetchable(r):
                self._fetch(r)
        for r in self.readings.values():
            if r.waiting and len(out) < n:
                most = min(n - len(out), len(r.waiting))
                # Not all that was fetched has come to the front yet.
                if most > 2 and self.world.outcome("consumed", "all", "some") == "some":
                    most = 1 + self.scheduler.chooser.pick(most, "consumed")
                out += [r.waiting.popleft() for _ in range(most)]
        return out

    def _fetch(self, r: Reading) -> None:
        topic = self.cluster.topics.get(r.topic)
        if topic is None or r.partition >= len(topic.logs):
            self._error(r, KafkaError.UNKNOWN_TOPIC_OR_PART)
            return
        log = topic.logs[r.partition]
        if r.leader_epoch is not None and log.leader_epoch > r.leader_epoch and r.log in (None, log):
            epoch, r.leader_epoch = r.leader_epoch, log.leader_epoch
            if log.end_of_epoch(epoch) < r.at:
                self.world.visited("truncation noticed")
                self._error(r, KafkaError._LOG_TRUNCATION)
                return
        if r.at < log.start or r.at > log.end:
            self.world.visited("out of range")
            self._error(r, KafkaError._AUTO_OFFSET_RESET)
            return
        entries, r.at = log.read(r.at, 1000, self.committed_only)
        r.high, r.log = log.high, log
        if entries:
            r.leader_epoch = entries[-1].leader_epoch
            if r.topic.endswith(".offset-mappings"):
                self.world.visited("rolled forward from the mappings")
        for e in entries:
            r.waiting.append(
                Message(
                    r.topic, r.partition, e.offset, e.key, e.value, e.headers, e.timestamp, e.leader_epoch
                )
            )
        end = log.stable() if self.committed_only else log.high
        if self.eof and r.at >= end and r.ended_at != r.at:
            r.ended_at = r.at
            self._end_of(r)

    def _end_of(self, r: Reading) -> None:
        error = KafkaError(KafkaError._PARTITION_EOF)
        r.waiting.append(Message(r.topic, r.partition, r.at, error=error))

    def _error(self, r: Reading, code: int) -> None:
        r.stopped = True
        r.waiting.append(Message(r.topic, r.partition, r.at, error=KafkaError(code)))

    def committed(self, partitions: list[TopicPartition], timeout: float = 10.0) -> list[TopicPartition]:
        self.call(timeout)
        out = []
        for p in partitions:
            at = (self.group, p.topic, p.partition)
            if self.committed_only and self.cluster.pending_offset(at):
                raise refuse(KafkaError.UNSTABLE_OFFSET_COMMIT)
            out.append(
                TopicPartition(p.topic, p.partition, self.cluster.group_offsets.get(at, OFFSET_INVALID))
            )
        return out

    def list_topics(self, topic: str, timeout: float = 10.0) -> None:
        """Only so that the client has heard of the topic: what it answers is used by nobody."""
        self.heard_of.add(topic)
        self.call(timeout)

    def get_watermark_offsets(
        self, partition: TopicPartition, cached: bool = False
    ) -> tuple[int, int] | None:
        assert cached
        r = self.readings.get((partition.topic, partition.partition))
        return None if r is None else (0, r.high)

    def close(self) -> None:
        self.readings = {}
        self.closed = True


# administration


class Answer:
    """A future. Asked when it was made, answered some time later, and heard of later still: by itself, or
    when it is waited for."""

    def __init__(self, client: Client, ask: Callable[[], Any]) -> None:
        self._client = client
        self._ask = ask
        self._answered = self._arrived = False
        self._value: Any = None
        self._error: KafkaException | None = None

    def done(self) -> bool:
        return self._arrived

    def arrive(self) -> None:
        self.answer()
        self._arrived = True

    def answer(self) -> None:
        if self._answered:
            return
        self._answered = True
        try:
            self._value = self._ask()
        except KafkaException as error:
            self._error = error

    def result(self, timeout: float | None = None) -> Any:
        if not self._arrived:
            self._client.call(timeout or 30.0)
            self.arrive()
        if self._error is not None:
            raise self._error
        return self._value


@dataclass(frozen=True)
class Leader:
    id: int


@dataclass(frozen=True)
class Partition:
    id: int
    leader: Leader = Leader(1)
    isr: tuple[Leader, ...] = (Leader(1),)
    replicas: tuple[Leader, ...] = (Leader(1),)


@dataclass(frozen=True)
class Described:
    topic_id: Any
    partitions: list[Partition]
    authorized_operations: None = None


@dataclass(frozen=True)
class Offset:
    offset: int


@dataclass(frozen=True)
class Value:
    value: str
    source: int = 5


@dataclass(frozen=True)
class Names:
    topics: dict[str, None]
    brokers: dict[int, None]


_LATEST, _EARLIEST = type(OffsetSpec.latest()), type(OffsetSpec.earliest())


class AdminClient(Client):
    def list_offsets(
        self, wanted: dict[TopicPartition, OffsetSpec], **options: Any
    ) -> dict[TopicPartition, Answer]:
        committed = options.get("isolation_level") == IsolationLevel.READ_COMMITTED

        def ask(at: TopicPartition, spec: OffsetSpec) -> Offset:
            log = self.cluster.log(at.topic, at.partition)
            if isinstance(spec, _EARLIEST):
                return Offset(log.start)
            assert isinstance(spec, _LATEST)
            return Offset(log.stable() if committed else log.high)

        return {at: Answer(self, lambda at=at, spec=spec: ask(at, spec)) for at, spec in wanted.items()}  # type: ignore[misc]

    def describe_topics(self, wanted: Any, **_: Any) -> dict[str, Answer]:
        def ask(name: str) -> Described:
            topic: Topic | None = self.cluster.topics.get(name)
            if topic is None:
                raise refuse(KafkaError.UNKNOWN_TOPIC_OR_PART)
            return Described(topic.id, [Partition(p) for p in range(len(topic.logs))])

        answers = {name: Answer(self, lambda name=name: ask(name)) for name in wanted.topic_names}  # type: ignore[misc]
        self.scheduler.events.append(_Arriving(self, list(answers.values())))
        return answers

    def describe_configs(self, resources: list[Any], **_: Any) -> dict[Any, Answer]:
        def ask(name: str) -> dict[str, Value]:
            if name not in self.cluster.topics:
                raise refuse(KafkaError.UNKNOWN_TOPIC_OR_PART)
            return {k: Value(v) for k, v in self.cluster.topics[name].config.items()}

        answers = {r: Answer(self, lambda r=r: ask(r.name)) for r in resources}  # type: ignore[misc]
        self.scheduler.events.append(_Arriving(self, list(answers.values())))
        return answers

    def create_topics(self, new: list[Any], **_: Any) -> dict[str, Answer]:
        def ask(topic: Any) -> None:
            if topic.topic in self.cluster.topics:
                raise refuse(KafkaError.TOPIC_ALREADY_EXISTS)
            self.cluster.create(topic.topic, topic.num_partitions, {**DEFAULTS, **topic.config})

        return {t.topic: Answer(self, lambda t=t: ask(t)) for t in new}  # type: ignore[misc]

    def create_partitions(self, new: list[Any], **_: Any) -> dict[str, Answer]:
        def ask(wanted: Any) -> None:
            topic = self.cluster.topics[wanted.topic]
            for p in range(len(topic.logs), wanted.new_total_count):
                topic.logs.append(Log(topic, p))

        return {t.topic: Answer(self, lambda t=t: ask(t)) for t in new}  # type: ignore[misc]

    def list_topics(self, timeout: float = 10.0) -> Names:
        self.call(timeout)
        return Names(dict.fromkeys(self.cluster.topics), {0: None})

    def delete_records(self, wanted: list[TopicPartition], **_: Any) -> dict[TopicPartition, Answer]:
        def ask(at: TopicPartition) -> None:
            self.cluster.log(at.topic, at.partition).trim(at.offset)

        return {at: Answer(self, lambda at=at: ask(at)) for at in wanted}  # type: ignore[misc]


DEFAULTS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": "8388608",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.after.max.ms": "9223372036854775807",
}


class _Arriving:
    """Answers on their way: first the broker gives them, then they are heard of."""

    def __init__(self, client: Client, answers: list[Answer]) -> None:
        self._client = client
        self._answers = answers
        self._given = False

    def __call__(self) -> Callable[[], None] | None:
        if not self._client.process.alive:
            self._client.scheduler.events.remove(self)
            return None
        if not self._client.reachable():
            return None
        if not self._given:
            return self._give
        return None if "answers" in self._client.world.held_up else self._arrive

    def _give(self) -> None:
        self._given = True
        self._client.scheduler.moved = self._client.process.name
        for answer in self._answers:
            answer.answer()

    def _arrive(self) -> None:
        self._client.scheduler.moved = self._client.process.name
        self._client.scheduler.events.remove(self)
        for answer in self._answers:
            answer.arrive()


# threads


class Condition:
    """A condition whose lock nobody needs: no task is interrupted between two calls to the outside."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._notified = 0

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout: float) -> bool:
        before = self._notified
        if timeout > 0:
            self._scheduler.wait(timeout, lambda: self._notified > before)
        return self._notified > before

    def notify(self) -> None:
        self._notified += 1


class Lock:
    """A lock that its holder may take again."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._holder: object = None
        self._depth = 0

    def __enter__(self) -> bool:
        me = self._scheduler.current
        while self._holder not in (None, me):
            self._scheduler.wait(1e9, lambda: self._holder is None)
        self._holder = me
        self._depth += 1
        return True

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None


class Thread:
    """A thread of the process that makes it."""

    def __init__(self, scheduler: Scheduler, target: Callable[[], None], name: str) -> None:
        assert scheduler.current is not None
        self._scheduler = scheduler
        self._process = scheduler.current.process
        self._target = target
        self._name = name
        self._task: Any = None

    def start(self) -> None:
        self._task = self._scheduler.spawn(self._process, self._name, self._target)

    def is_alive(self) -> bool:
        return self._task is not None and self._task.is_alive()

    def join(self, timeout: float) -> None:
        self._scheduler.wait(timeout, lambda: not self.is_alive())
