"""The few requests of Kafka's protocol that Verbatim speaks by itself. Bytes in, bytes out; sockets are
common/kafka/wire/connection.py's.

All else goes through the client library. It takes and hands out records one by one, though, and what moves
whole record batches needs to say so itself: see deduplicator/batch_producer.py. Versions are the newest
without tagged fields, which all brokers know that Verbatim accepts (https://kafka.apache.org/protocol): an
answer of such a version has no surprises.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException

from common.partitions import PartitionName

Buffer = bytes | memoryview | Any
"""What a socket takes: anything with a buffer."""
Address = tuple[str, int]
"""Host and port."""


@dataclass(frozen=True, slots=True)
class Api:
    """A kind of request: its number and the version that is spoken here; whether that version has tagged
    fields (KIP-482); and where an answer says for how many ms the broker wants to be left alone, since a
    quota is used up (KIP-219)."""

    name: str
    key: int
    version: int
    flexible: bool = False
    throttle: Literal["first", "last", "nowhere"] = "first"


PRODUCE = Api("Produce", 0, 8, throttle="last")
METADATA = Api("Metadata", 3, 7)
FIND_COORDINATOR = Api("FindCoordinator", 10, 1)
SASL_HANDSHAKE = Api("SaslHandshake", 17, 1, throttle="nowhere")
API_VERSIONS = Api("ApiVersions", 18, 0, throttle="nowhere")
INIT_PRODUCER_ID = Api("InitProducerId", 22, 1)
ADD_PARTITIONS_TO_TXN = Api("AddPartitionsToTxn", 24, 1)
ADD_OFFSETS_TO_TXN = Api("AddOffsetsToTxn", 25, 1)
END_TXN = Api("EndTxn", 26, 1)
TXN_OFFSET_COMMIT = Api("TxnOffsetCommit", 28, 2)
SASL_AUTHENTICATE = Api("SaslAuthenticate", 36, 1, throttle="nowhere")
DESCRIBE_TRANSACTIONS = Api("DescribeTransactions", 65, 0, flexible=True)

NO_TAGS = b"\0"
GROUP, TRANSACTION = 0, 1
"""What a coordinator is looked for by."""


class MalformedAnswer(KafkaException):
    """An answer that is not what its request asks for."""

    def __init__(self, words: str) -> None:
        super().__init__(KafkaError(KafkaError._TRANSPORT, f"a malformed answer: {words}"))


class Answer:
    """Reads an answer's fields one after the other. Raises MalformedAnswer where it ends too soon."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    def take(self, form: str) -> tuple[Any, ...]:
        """Fields of fixed size, as `struct` writes them (`>` is put before)."""
        form = f">{form}"
        try:
            values = struct.unpack_from(form, self._data, self._at)
        except struct.error as error:
            raise MalformedAnswer(str(error)) from None
        self._at += struct.calcsize(form)
        return values

    def number(self, form: str) -> int:
        return int(self.take(form)[0])

    def text(self) -> str | None:
        (size,) = self.take("h")
        return None if size < 0 else str(self.raw(size), "utf-8", "replace")

    def blob(self) -> bytes:
        (size,) = self.take("i")
        return b"" if size < 0 else bytes(self.raw(size))

    def each(self) -> range:
        """As many turns as an array that comes now has elements."""
        return self._turns(self.number("i"))

    def each_compact(self) -> range:
        """The same in versions with tagged fields."""
        return self._turns(self.unsigned() - 1)

    def _turns(self, count: int) -> range:
        if count > len(self._data):
            raise MalformedAnswer(f"an array of {count} elements in {len(self._data)} bytes")
        return range(max(0, count))

    def unsigned(self) -> int:
        """A varint, not zigzag."""
        value = 0
        for group in range(5):
            byte = self.number("B")
            value |= (byte & 0x7F) << 7 * group
            if byte < 0x80:
                return value
        raise MalformedAnswer("a number that has no end")

    def compact_text(self) -> str | None:
        """A text in versions with tagged fields."""
        size = self.unsigned() - 1
        return None if size < 0 else str(self.raw(size), "utf-8", "replace")

    def tags(self) -> dict[int, memoryview]:
        """The tagged fields that come now, by number."""
        found = {}
        for _ in range(self.unsigned()):
            tag = self.unsigned()
            found[tag] = self.raw(self.unsigned())
        return found

    def raw(self, size: int) -> memoryview:
        """So many bytes as they are, not copied."""
        end = self._at + size
        if not self._at <= end <= len(self._data):
            raise MalformedAnswer("it ends too soon")
        found = self._data[self._at : end]
        self._at = end
        return found


def throttle_ms(api: Api, body: bytes | bytearray | memoryview) -> int:
    """For how long a broker wants to be left alone; `body` is its answer with the correlation id."""
    if api.throttle == "nowhere" or (api.flexible and bytes(body[4:5]) != b"\0"):
        # Tagged fields in a header are of a time to come.
        return 0
    at = len(body) - 4 if api.throttle == "last" else 4 + api.flexible
    return max(0, struct.unpack_from(">i", body, at)[0]) if 4 <= at <= len(body) - 4 else 0


def unsigned(number: int) -> bytes:
    """A varint, seven bits a byte; not zigzag."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def compact_text(value: str) -> bytes:
    """A text in versions with tagged fields."""
    raw = value.encode()
    return unsigned(len(raw) + 1) + raw


def compact_count(items: Sized) -> bytes:
    """What comes before the elements of an array there."""
    return unsigned(len(items) + 1)


def text(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff"
    raw = value.encode()
    return struct.pack(">h", len(raw)) + raw


def framed(api: Api, correlation: int, client_id: str, body: Sequence[Buffer]) -> list[Buffer]:
    """A request as it goes into a socket."""
    head = struct.pack(">hhi", api.key, api.version, correlation) + text(client_id)
    if api.flexible:
        head += b"\0"
    size = len(head) + sum(map(len, body))
    return [struct.pack(">i", size) + head, *body]


def produce(
    transactional_id: str | None, timeout_ms: int, batches: Mapping[PartitionName, Sequence[Buffer]]
) -> list[Buffer]:
    """One record batch, in pieces, for each partition; acknowledged by all replicas that are in sync."""
    by_topic: dict[str, list[tuple[int, Sequence[Buffer]]]] = {}
    for (topic, partition), pieces in batches.items():
        by_topic.setdefault(topic, []).append((partition, pieces))
    head = text(transactional_id) + struct.pack(">hii", -1, timeout_ms, len(by_topic))
    out: list[Buffer] = []
    for topic, partitions in by_topic.items():
        head += text(topic) + struct.pack(">i", len(partitions))
        for partition, pieces in partitions:
            out.append(head + struct.pack(">ii", partition, sum(map(len, pieces))))
            out += pieces
            head = b""
    return out


@dataclass(frozen=True, slots=True)
class Produced:
    """What became of a batch: an error code (0: none), the offset of its first record, and the broker's
    words."""

    error: int
    base_offset: int
    words: str | None


def produced(answer: Answer) -> dict[PartitionName, Produced]:
    found = {}
    for _ in answer.each():
        topic = answer.text() or ""
        for _ in answer.each():
            partition, error, base_offset, _, _ = answer.take("ihqqq")
            words = None
            for _ in answer.each():
                answer.number("i")
                words = answer.text() or words
            found[topic, partition] = Produced(error, base_offset, answer.text() or words)
    return found


def metadata(topics: Iterable[str]) -> bytes:
    names = list(topics)
    return struct.pack(">i", len(names)) + b"".join(map(text, names)) + b"\0"


@dataclass(frozen=True, slots=True)
class Metadata:
    """Addresses of brokers by id; the leader of each partition, -1 where it has none; the error code of each
    topic that has one; the epochs of the leaders."""

    brokers: dict[int, Address]
    leaders: dict[PartitionName, int]
    errors: dict[str, int]
    epochs: dict[PartitionName, int]


def described(answer: Answer) -> Metadata:
    found = Metadata({}, {}, {}, {})
    answer.number("i")
    for _ in answer.each():
        node = answer.number("i")
        host, port = answer.text() or "", answer.number("i")
        answer.text()
        found.brokers[node] = (host, port)
    answer.text()
    answer.number("i")
    for _ in answer.each():
        error, topic = answer.number("h"), answer.text() or ""
        answer.number("b")
        if error:
            found.errors[topic] = error
        for _ in answer.each():
            _, partition, leader, epoch = answer.take("hiii")
            # Replicas: all, those in sync, those that are offline.
            for _ in range(3):
                for _ in answer.each():
                    answer.number("i")
            found.leaders[topic, partition] = leader
            found.epochs[topic, partition] = epoch
    return found


def find_coordinator(kind: int, key: str) -> bytes:
    return text(key) + struct.pack(">b", kind)


def coordinator(answer: Answer) -> tuple[int, str | None, str, int]:
    """Error code, the broker's words, host and port."""
    _, error = answer.take("ih")
    words = answer.text()
    answer.number("i")
    return error, words, answer.text() or "", answer.number("i")


def init_producer_id(transactional_id: str, timeout_ms: int) -> bytes:
    return text(transactional_id) + struct.pack(">i", timeout_ms)


def producer_id(answer: Answer) -> tuple[int, int, int]:
    """Error code, producer id, epoch."""
    _, error, number, epoch = answer.take("ihqh")
    return error, number, epoch


def add_partitions(
    transactional_id: str, number: int, epoch: int, partitions: Iterable[PartitionName]
) -> bytes:
    topics = by_topic(partitions)
    return (
        text(transactional_id)
        + struct.pack(">qhi", number, epoch, len(topics))
        + b"".join(
            text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
            for topic, numbers in topics.items()
        )
    )


def by_partition(answer: Answer) -> dict[PartitionName, int]:
    """Error codes of an answer that has one for each partition."""
    found = {}
    answer.number("i")
    for _ in answer.each():
        topic = answer.text() or ""
        for _ in answer.each():
            partition, error = answer.take("ih")
            found[topic, partition] = error
    return found


def add_offsets(transactional_id: str, number: int, epoch: int, group: str) -> bytes:
    return text(transactional_id) + struct.pack(">qh", number, epoch) + text(group)


def commit_offsets(
    transactional_id: str, group: str, number: int, epoch: int, offsets: Mapping[PartitionName, int]
) -> bytes:
    body = text(transactional_id) + text(group) + struct.pack(">qhi", number, epoch, len(offsets))
    for (topic, partition), offset in offsets.items():
        body += text(topic) + struct.pack(">iiqi", 1, partition, offset, -1) + text("")
    return body


def end(transactional_id: str, number: int, epoch: int, commit: bool) -> bytes:
    return text(transactional_id) + struct.pack(">qhb", number, epoch, commit)


def throttled(answer: Answer) -> int:
    """The error code of an answer that has little else."""
    return int(answer.take("ih")[1])


def blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def mechanisms(answer: Answer) -> tuple[int, list[str]]:
    error = answer.number("h")
    return error, [answer.text() or "" for _ in answer.each()]


def authenticated(answer: Answer) -> tuple[int, str | None, bytes, int]:
    """Error code, the broker's words, its token, and for how many ms the session lives (0: for ever)."""
    error = answer.number("h")
    return error, answer.text(), answer.blob(), answer.number("q")


def versions(answer: Answer) -> tuple[int, dict[int, tuple[int, int]]]:
    """Error code; of each kind of request the least and the greatest version."""
    error = answer.number("h")
    found: dict[int, tuple[int, int]] = {}
    for _ in answer.each():
        key, least, greatest = answer.take("hhh")
        found[key] = (least, greatest)
    return error, found


@dataclass(frozen=True, slots=True)
class KnownTransaction:
    """What a coordinator knows of a transactional id: the producer that has it, the state of its last
    transaction, when that began (ms since 1970), and its partitions; of one that is being completed, those
    without a marker."""

    state: str
    number: int
    epoch: int
    began_ms: int
    partitions: frozenset[PartitionName]


def describe_transaction(transactional_id: str) -> bytes:
    return compact_count([transactional_id]) + compact_text(transactional_id) + NO_TAGS


def known_transaction(answer: Answer) -> tuple[int, KnownTransaction]:
    """Error code, and what is known where there is none."""
    answer.tags()
    answer.number("i")
    if len(answer.each_compact()) != 1:
        raise MalformedAnswer("not one transactional id")
    error = answer.number("h")
    answer.compact_text()
    state = answer.compact_text() or ""
    _, began_ms, number, epoch = answer.take("iqqh")
    partitions = set()
    for _ in answer.each_compact():
        topic = answer.compact_text() or ""
        partitions |= {(topic, answer.number("i")) for _ in answer.each_compact()}
        answer.tags()
    return error, KnownTransaction(state, number, epoch, began_ms, frozenset(partitions))


def by_topic(partitions: Iterable[PartitionName]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return found
