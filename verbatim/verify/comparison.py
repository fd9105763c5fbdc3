"""Compares the records of a source partition with those of its destination, in one streaming pass with
bounded memory.

Pure: it is given batches of (offsets, digests) and knows nothing of Kafka. Reading is the part of
verbatim/verify/reading.py, offset mappings of mappings.py, compacted topics of compacted.py. It shares no
code with the applications it checks.

How it decides. As long as both sides agree, whole lists of digests are compared. Where they differ, both
sides are read ahead by up to `window` records and the nearest place is sought from which they agree again
(`resync`). What lies between is a gap: inside it the longest common subsequence counts as in order, and each
record that is left over is judged by its content:

    destination record, equal to a source record that is missing      reordered
    destination record, equal to a source record that has been met    duplicated
    source and destination record left over at the same place         altered
    source record left over                                           lost, or behind when nothing later has
    arrived destination record left over                                      foreign source record before all
    that the destination still has           gone-at-target (gone.py)

Identical records are legal, so of a run of equal records that is one short, it is the last that is called
lost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b

Batch = tuple[list[int], list[bytes]]
"""Ascending offsets, and the digest of the record at each."""

_ABSENT = bytes(12)
_NO_VALUE = bytes(16)
_PARTS = {"timestamp": slice(0, 8), "key": slice(8, 20), "value": slice(20, 36), "headers": slice(36, 48)}
CONFIRM = (32, 8, 3)
NEAR = 48


def digest(
    timestamp_ms: int, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]] | None
) -> bytes:
    """48 bytes that are equal exactly when timestamp, key, value and headers are: 8 + 12 + 16 + 12, each part
    by itself, so that it can be said what was altered. Null and empty differ; no headers and an empty list
    are one thing on the wire."""
    return (
        timestamp_ms.to_bytes(8, "big", signed=True)
        + (_ABSENT if key is None else blake2b(key, digest_size=12).digest())
        + (_NO_VALUE if value is None else blake2b(value, digest_size=16).digest())
        # repr of a list of (str, bytes | None) is unambiguous: quoted, escaped, None without quotes.
        + (blake2b(repr(headers).encode(), digest_size=12).digest() if headers else _ABSENT)
    )


Judge = Callable[[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]] | None], bytes | None]
"""Offset, timestamp in ms, key, value and headers of a record -> the digest that it is compared by; None: it
is not."""


def as_it_is(
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]] | None,
) -> bytes | None:
    """The record's own digest."""
    return digest(timestamp_ms, key, value, headers)


def differing_parts(one: bytes, other: bytes) -> list[str]:
    return [name for name, part in _PARTS.items() if one[part] != other[part]]


def key_part(record: bytes) -> bytes:
    return record[8:20]


def has_key(record: bytes) -> bool:
    return record[8:20] != _ABSENT


def is_tombstone(record: bytes) -> bool:
    return record[20:36] == _NO_VALUE


class Kind(StrEnum):
    LOST = "lost"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    ALTERED = "altered"
    FOREIGN = "foreign"
    MAPPING = "mapping"
    GONE = "gone-at-target"
    HALTED = "halted"


@dataclass
class Finding:
    """How often something was found in a partition, and where it was first; `version`: of the pipeline, that
    the first is of."""

    count: int
    source_offset: int | None
    destination_offset: int | None
    detail: str = ""
    version: int = 0

    def place(self) -> tuple[int, int]:
        last = 1 << 63
        return (
            last if self.source_offset is None else self.source_offset,
            last if self.destination_offset is None else self.destination_offset,
        )


@dataclass
class PartitionReport:
    """What was found in one partition. `transformed`: of the source records that have been copied those that
    a pipeline changes; `filtered`: those that it leaves out; `dead_letters`: those that are to be in the
    topic of dead letters instead; `routed`: those that it takes to another topic, which has a report of its
    own. `behind` counts source records at the end that are not at the destination
    yet; below the source offset `gone_to` are those that it has no more."""

    topic: str
    partition: int
    destination_topic: str
    source_records: int = 0
    destination_records: int = 0
    equal: int = 0
    transformed: int = 0
    filtered: int = 0
    dead_letters: int = 0
    routed: int = 0
    behind: int = 0
    first_behind: int | None = None
    gone_to: int = 0
    findings: dict[Kind, Finding] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(
        self, kind: Kind, source: int | None, destination: int | None, detail: str = "", count: int = 1
    ) -> None:
        new = Finding(count, source, destination, detail)
        old = self.findings.get(kind)
        if old is None:
            self.findings[kind] = new
            return
        total = old.count + count
        # A duplicate is a thing of the destination; all else is placed by its source offset.
        first = _first_duplicate(old, new) if kind is Kind.DUPLICATED else min(old, new, key=Finding.place)
        self.findings[kind] = Finding(total, first.source_offset, first.destination_offset, first.detail)

    def add_behind(self, source: int, count: int = 1) -> None:
        self.behind += count
        if self.first_behind is None or source < self.first_behind:
            self.first_behind = source

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _first_duplicate(old: Finding, new: Finding) -> Finding:
    return min(old, new, key=lambda f: (f.destination_offset is None, f.destination_offset or 0))


class Side:
    """One stream of batches with what has been read ahead of it."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches: Iterator[Batch] = iter(batches)
        self.offsets: list[int] = []
        self.digests: list[bytes] = []
        self.ended = False

    def __len__(self) -> int:
        return len(self.digests)

    def fill(self, count: int) -> int:
        """Reads until `count` records are at hand or the stream has ended; returns how many are."""
        while len(self.digests) < count and not self.ended:
            batch = next(self._batches, None)
            if batch is None:
                self.ended = True
            else:
                self.offsets += batch[0]
                self.digests += batch[1]
        return len(self.digests)

    def take(self, count: int) -> Batch:
        taken = self.offsets[:count], self.digests[:count]
        del self.offsets[:count], self.digests[:count]
        return taken


def common_prefix(one: Sequence[bytes], other: Sequence[bytes], i: int = 0, j: int = 0) -> int:
    """How many records agree from one[i] and other[j] on."""
    most = min(len(one) - i, len(other) - j)
    done, step = 0, 16
    while done < most:
        step = min(step, most - done)
        if one[i + done : i + done + step] == other[j + done : j + done + step]:
            done += step
            step *= 2
        elif step == 1:
            break
        else:
            step = max(1, step // 4)
    return done


def resync(
    source: Sequence[bytes],
    destination: Sequence[bytes],
    confirm: int,
    prefer_altered: bool = False,
    ended: bool = False,
) -> tuple[int, int] | None:
    """The nearest (i, j) from which `confirm` records agree, or all that one side still has; None when there
    is none.

    Nearby, the longest agreement wins, so that a run of equal records does not hide where it was broken.
    `prefer_altered` decides between equally good ones for i == j: the record at the head is one the source
    has never had. `ended`: both are all that there is, so a place from which both end together is the
    best."""
    found: list[tuple[int, int, int]] = []
    rest = max(len(source), len(destination))
    for cost in range(1, NEAR + 1):
        for i in range(max(0, cost - len(destination)), min(cost, len(source)) + 1):
            j = cost - i
            if i >= len(source) or j >= len(destination) or source[i] != destination[j]:
                continue
            length = common_prefix(source, destination, i, j)
            if length >= min(confirm, len(source) - i, len(destination) - j):
                found.append((i, j, length))
        if len(found) >= 8 or (any(length >= rest - cost for _, _, length in found) and cost > 1):
            break
    if found:
        # An agreement that reaches the end of what was read can't be told from a longer one.
        def merit(hit: tuple[int, int, int]) -> tuple[bool, int, bool, int]:
            i, j, length = hit
            left = len(source) - i, len(destination) - j
            together = ended and left == (length, length)
            return (together, rest if length >= min(left) else length, prefer_altered and i == j, -(i + j))

        i, j, _ = max(found, key=merit)
        return i, j
    return _resync_far(source, destination, confirm)


def _resync_far(
    source: Sequence[bytes], destination: Sequence[bytes], confirm: int
) -> tuple[int, int] | None:
    """As `resync`, with an index of the sequences of `confirm` records, for blocks that are lost or
    inserted."""
    length = min(confirm, len(source), len(destination))
    if length == 0:
        return None
    places: dict[int, int] = {}
    for j in range(len(destination) - length, -1, -1):
        places[hash(tuple(destination[j : j + length]))] = j
    best: tuple[int, int] | None = None
    for i in range(len(source) - length + 1):
        if best is not None and i >= best[0] + best[1]:
            break
        j = places.get(hash(tuple(source[i : i + length])), -1)
        if (
            j >= 0
            and (best is None or i + j < best[0] + best[1])
            and source[i : i + length] == destination[j : j + length]
        ):
            best = i, j
    return best


def in_order(source: Sequence[bytes], destination: Sequence[bytes]) -> list[tuple[int, int]]:
    """Index pairs of a long common subsequence: the longest for small inputs, a good one for large ones."""
    rows, columns = len(source), len(destination)
    if rows * columns > 250_000:
        return _in_order_large(source, destination)
    longest = [[0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        here, below, record = longest[i], longest[i + 1], source[i]
        for j in range(columns - 1, -1, -1):
            here[j] = below[j + 1] + 1 if record == destination[j] else max(below[j], here[j + 1])
    pairs, i, j = [], 0, 0
    while i < rows and j < columns:
        if source[i] == destination[j] and longest[i][j] == longest[i + 1][j + 1] + 1:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif longest[i + 1][j] >= longest[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def _in_order_large(source: Sequence[bytes], destination: Sequence[bytes]) -> list[tuple[int, int]]:
    """The longest increasing subsequence of the places where each destination record stands in the source."""
    places: dict[bytes, deque[int]] = {}
    for i, record in enumerate(source):
        places.setdefault(record, deque()).append(i)
    tails: list[int] = []
    ends: list[int] = []
    back: dict[int, int] = {}
    at: list[tuple[int, int]] = []
    for j, record in enumerate(destination):
        where = places.get(record)
        if not where:
            continue
        i = where.popleft()
        at.append((i, j))
        slot = bisect_left(tails, i)
        if slot:
            back[len(at) - 1] = ends[slot - 1]
        tails[slot : slot + 1] = [i]
        ends[slot : slot + 1] = [len(at) - 1]
    pairs: list[tuple[int, int]] = []
    last = ends[-1] if ends else -1
    while last >= 0:
        pairs.append(at[last])
        last = back.get(last, -1)
    return pairs[::-1]


def similar(one: bytes, other: bytes) -> bool:
    return one[:8] == other[:8] or (one[20:36] == other[20:36] and not is_tombstone(one))


class Pending:
    """Records that wait for their counterpart, by content, oldest first. Bounded: what is pushed out is
    final."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_place: OrderedDict[int, bytes] = OrderedDict()
        self._by_record: dict[bytes, deque[int]] = {}

    def __len__(self) -> int:
        return len(self._by_place)

    def __contains__(self, record: bytes) -> bool:
        return record in self._by_record

    def add(self, offset: int, record: bytes) -> int | None:
        """Returns the offset that was pushed out, if one was."""
        self._by_place[offset] = record
        self._by_record.setdefault(record, deque()).append(offset)
        if len(self._by_place) <= self._limit:
            return None
        oldest = next(iter(self._by_place.values()))
        return self.pop(oldest)

    def pop(self, record: bytes) -> int:
        offsets = self._by_record[record]
        offset = offsets.popleft()
        if not offsets:
            del self._by_record[record]
        del self._by_place[offset]
        return offset

    def offsets(self) -> list[int]:
        return list(self._by_place)


class History:
    """The source records met last, by content. Costs nothing until the first difference: it is indexed on
    demand."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._batches: deque[Batch] = deque()
        self._new = 0
        self._size = 0
        self._index: dict[bytes, int] = {}

    def add(self, offsets: list[int], digests: list[bytes]) -> None:
        self._batches.append((offsets, digests))
        self._new += 1
        self._size += len(offsets)
        while self._size - len(self._batches[0][0]) >= self._limit:
            self._size -= len(self._batches.popleft()[0])
        self._new = min(self._new, len(self._batches))

    def get(self, record: bytes) -> int | None:
        if len(self._index) > 2 * self._limit:
            self._index.clear()
            self._new = len(self._batches)
        while self._new:
            offsets, digests = self._batches[-self._new]
            self._index.update(zip(digests, offsets, strict=True))
            self._new -= 1
        return self._index.get(record)
