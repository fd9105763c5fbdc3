"""A Kafka cluster as far as this project relies on it: logs, transactions and their coordinator, group
offsets, topic ids.

The broker's side, without time-outs or losses of its own: what the network and the clients do is in
tests/simulation/clients.py.
"""

from __future__ import annotations

import bisect
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException, Uuid

Headers = list[tuple[str, bytes | None]] | None


@dataclass(eq=False, slots=True)
class Txn:
    """A transaction of a producer: `state` is open, then committed or aborted; `logs` those it wrote to,
    `unmarked` those that lack its marker."""

    state: str = "open"
    producer: int = 0
    started: float = 0.0
    timeout: float = 60.0
    logs: list[Log] = field(default_factory=list)
    unmarked: list[Log] = field(default_factory=list)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Entry:
    """A record, or (`marker`) the end of a transaction."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    leader_epoch: int
    txn: Txn | None
    marker: bool = False


class Log:
    """One partition: [start, end), of which [start, high watermark) is replicated and [start, last stable
    offset) is decided."""

    def __init__(self, topic: Topic, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.entries: list[Entry] = []
        self.offsets: list[int] = []
        self.start = self.end = self.high = 0
        self.leader_epoch = 0
        self.open: dict[Txn, int] = {}
        self.leaderless = False
        """For the moment in which the next marker is due, which never comes then (KRaft)."""
        self.refuses: int | None = None
        """The error that whoever writes here is answered with, for as long as it is set."""
        self.silent = False
        """Whether its leader hangs: nobody who writes here is answered."""
        self.elections = 0
        self.on_append: Callable[[Entry], None] | None = None

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = None,
        timestamp: int = 1,
        txn: Txn | None = None,
        marker: bool = False,
        replicated: bool = True,
    ) -> int:
        offset = self.end
        self.entries.append(Entry(offset, key, value, headers, timestamp, self.leader_epoch, txn, marker))
        self.offsets.append(offset)
        self.end += 1
        if txn is not None and not marker:
            self.open.setdefault(txn, offset)
        if replicated:
            self.high = self.end
        if self.on_append is not None:
            self.on_append(self.entries[-1])
        return offset

    def skip(self, n: int) -> None:
        """Offsets that hold nothing: compacted away."""
        self.end += n
        self.high = self.end

    def mark(self, txn: Txn, replicated: bool) -> None:
        """Put a transaction's marker: it decides all that its producer has open here, also what hangs of
        another transaction."""
        self.append(None, None, txn=txn, marker=True, replicated=replicated)
        for other in [other for other in self.open if other.producer == txn.producer]:
            if other is not txn:
                for entry in self.entries:
                    if entry.txn is other:
                        entry.txn = txn
            del self.open[other]

    def stable(self) -> int:
        return min(self.high, *self.open.values()) if self.open else self.high

    def read(self, start: int, most: int, committed: bool) -> tuple[list[Entry], int]:
        """Records from `start`, and where to read on."""
        end = self.stable() if committed else self.high
        out: list[Entry] = []
        i = bisect.bisect_left(self.offsets, start)
        at = start
        while i < len(self.entries) and self.offsets[i] < end:
            entry = self.entries[i]
            if len(out) >= most:
                return out, at
            i += 1
            at = entry.offset + 1
            if not entry.marker and (not committed or entry.txn is None or entry.txn.state == "committed"):
                out.append(entry)
        return out, max(at, end)

    def committed(self) -> list[Entry]:
        return self.read(self.start, 1 << 30, True)[0]

    def trim(self, offset: int) -> None:
        """Delete what is below."""
        self.start = max(self.start, min(offset, self.high))
        i = bisect.bisect_left(self.offsets, self.start)
        del self.entries[:i], self.offsets[:i]

    def cut(self, offset: int) -> None:
        """An unclean election: what is above is gone, and a new epoch begins."""
        i = bisect.bisect_left(self.offsets, offset)
        del self.entries[i:], self.offsets[i:]
        self.end = self.high = offset
        self.leader_epoch += 1

    def end_of_epoch(self, epoch: int) -> int:
        """Where the records of leader epochs up to this one end (OffsetsForLeaderEpoch)."""
        for entry in self.entries:
            if entry.leader_epoch > epoch:
                return entry.offset
        return self.end


@dataclass(eq=False)
class Topic:
    name: str
    id: Uuid
    config: dict[str, str]
    logs: list[Log] = field(default_factory=list)


class Coordinated:
    """A transactional id."""

    def __init__(self, producer: int) -> None:
        self.producer = producer
        self.epoch = -1
        self.txn: Txn | None = None
        self.ended: str | None = None
        """How the last transaction of this epoch ended."""

    def completing(self) -> bool:
        return self.txn is not None and self.txn.state != "open" and bool(self.txn.unmarked)


def refuse(code: int, fatal: bool = False) -> KafkaException:
    return KafkaException(KafkaError(code, None, fatal))


class Cluster:
    """`clock` tells the time; `lazy` whether markers and replication take a while."""

    def __init__(self, name: str, clock: Callable[[], float], lazy: Callable[[], bool]) -> None:
        self.name = name
        self.clock = clock
        self.lazy = lazy
        self.topics: dict[str, Topic] = {}
        self.coordinated: dict[str, Coordinated] = {}
        self.group_offsets: dict[tuple[str, str, int], int] = {}
        self.unfinished: list[Txn] = []
        self.lagging: list[Log] = []
        self.on_commit: Callable[[Txn], None] = lambda txn: None
        self.on_decision: Callable[[Txn], None] = lambda txn: None
        """The same before its markers are there."""
        self._made = 0

    # topics

    def create(self, name: str, partitions: int, config: dict[str, str] | None = None) -> Topic:
        self._made += 1
        made = uuid.UUID(int=(self._made << 64) + len(self.name)).int
        topic = Topic(name, Uuid(made >> 64, made & ((1 << 63) - 1)), dict(config or {}))
        topic.logs = [Log(topic, p) for p in range(partitions)]
        self.topics[name] = topic
        return topic

    def delete(self, name: str) -> None:
        del self.topics[name]

    def log(self, name: str, partition: int) -> Log:
        """Raises the error of a partition that is not there."""
        topic = self.topics.get(name)
        if topic is None or partition >= len(topic.logs):
            raise refuse(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return topic.logs[partition]

    # transactions

    def init_producer(self, tid: str) -> int | None:
        """A new epoch, or None while an earlier transaction is being completed."""
        known = self.coordinated.setdefault(tid, Coordinated(len(self.coordinated)))
        self._expire(known)
        if known.completing():
            return None
        if known.txn is not None and known.txn.state == "open":
            known.epoch += 1  # fences at once, whoever is slow
            self._end(known, "aborted")
            if known.completing():
                return None
        known.epoch += 1
        known.txn = None
        known.ended = None
        return known.epoch

    def ongoing(self, tid: str, epoch: int, timeout: float) -> Txn | None:
        """AddPartitionsToTxn: the transaction under way, begun if there is none; None while the last one is
        being completed."""
        known = self._current(tid, epoch)
        if known.completing():
            return None
        if known.txn is None or known.txn.state != "open":
            known.txn = Txn("open", known.producer, self.clock(), timeout)
            self.unfinished.append(known.txn)
        return known.txn

    def write(
        self,
        tid: str,
        epoch: int,
        log: Log,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp: int,
    ) -> int:
        """Append a record of a transaction: only where the partition was added to it (verified by brokers
        from 3.6 on)."""
        known = self._current(tid, epoch)
        txn = known.txn
        if txn is None or txn.state != "open" or log not in txn.logs:
            raise refuse(KafkaError.INVALID_TXN_STATE)
        return log.append(key, value, headers, timestamp, txn)

    def end(self, tid: str, epoch: int, result: str) -> bool:
        """EndTxn; False while an earlier end is being completed. Repeated, it does nothing, unless another
        transaction has begun."""
        known = self._current(tid, epoch)
        if known.txn is not None and known.txn.state == "open":
            self._end(known, result)
            return True
        if known.completing() and known.ended == result:
            return True
        if known.ended == result:
            return True
        raise refuse(KafkaError.INVALID_TXN_STATE)

    def _current(self, tid: str, epoch: int) -> Coordinated:
        known = self.coordinated[tid]
        self._expire(known)
        if epoch != known.epoch:
            raise refuse(KafkaError._FENCED, True)
        return known

    def _expire(self, known: Coordinated) -> None:
        txn = known.txn
        if txn is not None and txn.state == "open" and self.clock() - txn.started > txn.timeout:
            known.epoch += 1
            self._end(known, "aborted")

    def expire_transactions(self) -> None:
        """Abort those that took longer than they may."""
        for known in self.coordinated.values():
            self._expire(known)

    def _end(self, known: Coordinated, result: str) -> None:
        txn = known.txn
        assert txn is not None
        txn.state = known.ended = result
        txn.unmarked = list(txn.logs)
        if result == "aborted":
            txn.offsets = {}
        else:
            self.on_decision(txn)
        if not self.lazy():
            self.complete(txn)

    def complete(self, txn: Txn, logs: int = 1 << 30) -> None:
        """Write the markers of an ended transaction to (some of) its partitions."""
        while txn.unmarked and logs:
            logs -= 1
            log = txn.unmarked.pop(0)
            if log.leaderless:
                log.leaderless = False
                log.elections += 1
                continue
            lagging = self.lazy()
            begins = log.open.get(txn, log.high)
            log.mark(txn, not lagging)
            if lagging:
                # The leader that acknowledged is gone; the next one knows of less until its followers have
                # fetched.
                log.high = min(log.high, begins)
                self.lagging.append(log)
        if not txn.unmarked:
            if txn in self.unfinished:
                self.unfinished.remove(txn)
            if txn.state == "committed":
                self.group_offsets |= txn.offsets
                self.on_commit(txn)

    def pending_offset(self, at: tuple[str, str, int]) -> bool:
        """Whether an offset of a transaction that is not over hides the committed one."""
        return any(at in txn.offsets for txn in self.unfinished)

    def replicate(self) -> None:
        for log in self.lagging:
            log.high = log.end
        self.lagging = []
