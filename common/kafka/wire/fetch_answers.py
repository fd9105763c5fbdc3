"""What a broker sent of one partition, taken apart: each batch checked before anything is believed of it,
then told apart into chunks. Pure.

A batch's checksum covers neither its length nor its offset. A wrong length shows, for the checksum is of
other bytes then, or of more than have come. An offset is right where it is the position that is expected. It
may lie behind that, since compaction leaves gaps, and before it where reading begins in the middle of a
batch: then the batch behind it must fit, or the log end where it does. Where neither tells, it is fetched
once more, with room for the batch behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from common.kafka.wire import batch_runs, message_sets, record_batch, record_decoder
from common.kafka.wire.batch_runs import BatchRun, Found, OneOrMany
from common.kafka.wire.chunks import Chunk, Whole
from common.kafka.wire.fetch_protocol import Aborted, Part
from common.kafka.wire.record_batch import BatchError, BatchHeader
from common.kafka.wire.record_decoder import UNPACKED_BYTES as UNPACKED_BYTES
from common.kafka.wire.records import MAX_RECORDS

LEAST_BYTES = UNPACKED_BYTES // 8
"""With less of that left, of what one look at the answers may unpack, nothing more is: it is fetched again,
by smaller requests."""
ROOM_BYTES = 1 << 20
_DELETE_HORIZON = 0x40
"""Compaction has written when tombstones may go where the first time stood (KIP-534)."""


class Place(Protocol):
    """Where a partition is read. Moved on before a chunk is handed out."""

    topic: str
    partition: int
    offset: int
    epoch: int
    aligned: bool
    """Whether a batch ended at `offset`, so that none reaches over it."""
    doubted: tuple[int, int] | None
    """Of a batch whose offset nothing has confirmed yet, that and its checksum."""
    room: int
    """How many bytes to ask for at least."""


@dataclass(slots=True)
class Budget:
    """What may still be unpacked, and what that took and was made of."""

    left: int = UNPACKED_BYTES
    packed: int = 0
    unpacked: int = 0
    exceeded: bool = False
    """Whether something was left for another time."""

    def spend(self, packed: int, unpacked: int) -> None:
        self.left -= unpacked
        self.packed += packed
        self.unpacked += unpacked

    def spent(self) -> bool:
        self.exceeded |= self.left < LEAST_BYTES
        return self.exceeded


@dataclass(frozen=True, slots=True)
class Checked:
    """The batches that are believed, in order; what is wrong with the one behind them; and which one has to
    be looked at again."""

    batches: list[Found]
    wrong: BatchError | None = None
    doubted: BatchHeader | None = None


@dataclass(slots=True)
class _Group:
    """Batches that become one chunk."""

    next: int
    epoch: int
    wholes: list[Whole] = field(default_factory=list)
    small: list[Found] = field(default_factory=list)
    old: bool = False


def chunks(
    at: Place, part: Part, whole_codecs: Mapping[int, int], whole_bytes: int, budget: Budget
) -> Iterator[Chunk]:
    """What of an answer is believed, in order. Raises BatchError behind that, where something is wrong.

    Batches of `whole_bytes` and more stay whole, and smaller ones that came alone; those of `whole_codecs`,
    that is, up to so many bytes of each. The others become rows, as far as the budget goes.
    """
    data = pa.py_buffer(part.records)
    most = max(part.high_watermark, part.last_stable_offset)
    found = checked(data, at.offset, at.aligned, at.doubted, most, whole_bytes, not part.aborted)
    at.doubted, at.room = None, 0
    if (header := found.doubted) is not None:
        at.doubted = header.base_offset, header.crc
        at.room = 2 * header.size + ROOM_BYTES
    for group in _groups(at, found.batches, part.aborted, data, whole_codecs, whole_bytes):
        chunk, all_of_it = _chunk(at, group, data, whole_codecs, budget)
        if chunk is None:
            return
        at.offset, at.epoch = chunk.next, chunk.leader_epoch
        yield chunk
        if not all_of_it:
            return
    if found.wrong is not None:
        raise found.wrong


# What is believed.


def checked(
    data: pa.Buffer,
    offset: int,
    aligned: bool,
    doubted: tuple[int, int] | None,
    most: int,
    in_runs: int = 0,
    none_aborted: bool = False,
) -> Checked:
    """The sound batches of an answer from an offset on. `most`: where the log ended when the answer was made;
    there may be more in it since. `in_runs`: batches below so many bytes may come as runs, and transactional
    ones where `none_aborted`."""
    sound, wrong, claimed = _sound(data, offset, in_runs, none_aborted)
    taken: list[Found] = []
    follows: int | None
    for number, (at, header) in enumerate(sound):
        if isinstance(header, BatchRun):
            # Once its first batch is where it says, all are: none of them leaves out an offset.
            first, follows = header.first, header.first.next_offset
        else:
            first, follows = header, sound[number + 1][1].base_offset if number + 1 < len(sound) else claimed
        verdict = _placed(first, offset, follows, aligned or bool(taken), not taken)
        if verdict is None:
            if taken or doubted != (first.base_offset, first.crc):
                return Checked(taken, None, None if taken else first)
            if not offset < first.next_offset <= most:
                verdict = f"lies outside of [{offset}, {most})"
        if verdict:
            return Checked(taken, BatchError(f"batch at offset {first.base_offset} {verdict}"))
        if header.next_offset > offset:
            taken.append((at, header))
            offset = header.next_offset
    return Checked(taken, wrong)


def _sound(
    data: pa.Buffer, offset: int, in_runs: int, none_aborted: bool
) -> tuple[list[Found], BatchError | None, int | None]:
    """The batches up to the first that is not what its checksum is of, what is wrong with that, and the
    offset that it claims."""
    sound: list[Found] = []
    try:
        for at, header in batch_runs.found(data, offset, in_runs, none_aborted):
            try:
                if not isinstance(header, BatchRun):
                    record_batch.must_be_sound(data, at, header)
            except BatchError as wrong:
                return sound, wrong, header.base_offset
            sound.append((at, header))
    except BatchError as wrong:
        return sound, wrong, None
    # Brokers send a whole batch or none (KIP-74).
    return sound, None if sound or not len(data) else record_batch.cut_off(data), None


def _placed(header: BatchHeader, offset: int, follows: int | None, aligned: bool, first: bool) -> str | None:
    """Whether a batch lies where it says ("": yes), with an offset expected and what the batch behind it
    says. None: that can't be told."""
    begin, end = header.base_offset, header.next_offset
    if begin == offset and (aligned or follows is None or follows >= end):
        return ""
    if end <= offset and first:
        # Some brokers begin with batches that end before what is asked for.
        if follows is not None and follows > offset:
            return f"lies before {offset}, which is missing then"
        return None if follows is None else ""
    if begin < offset and aligned:
        return f"begins before {offset}, where the one before it ended"
    if follows is not None and follows < end:
        return f"reaches over {follows}, where the next one begins; {offset} was expected"
    return "" if follows == end or (begin > offset and follows is not None) else None


def committed(
    batches: Iterable[Found], aborted: Iterable[Aborted], position: int = 0
) -> Iterator[tuple[int, OneOrMany, bool]]:
    """The batches that reach beyond a position: where each begins, its header, and whether it has records
    that are committed.

    As Kafka's consumer tells them apart: an aborted transaction's producer is one from its first offset on,
    up to its marker.
    """
    coming = sorted(aborted, key=lambda one: one.first_offset)
    ended: set[int] = set()
    for at, header in batches:
        if header.next_offset <= position:
            continue
        if isinstance(header, BatchRun) or header.magic < 2:
            yield at, header, True
            continue
        while coming and coming[0].first_offset < header.next_offset:
            ended.add(coming.pop(0).producer_id)
        if header.control:
            ended.discard(header.producer_id)
        wanted = (
            not header.control
            and header.count > 0
            and not (header.transactional and header.producer_id in ended)
        )
        yield at, header, wanted


# What becomes of it.


def _groups(
    at: Place,
    batches: list[Found],
    aborted: Iterable[Aborted],
    data: pa.Buffer,
    whole_codecs: Mapping[int, int],
    whole_bytes: int,
) -> Iterator[_Group]:
    group: _Group | None = None
    position = at.offset
    for begin, header, wanted in committed(batches, aborted, position):
        whole = old = False
        if isinstance(header, BatchHeader):
            whole = wanted and header.size >= whole_bytes and _whole(header, position, whole_codecs)
            old = header.magic < 2
        if group is not None and (
            header.leader_epoch != group.epoch
            or (whole and group.small)
            or (wanted and not whole and (group.wholes or (group.small and group.old != old)))
        ):
            yield group
            group = None
        if group is None:
            group = _Group(header.next_offset, header.leader_epoch)
        if whole:
            assert isinstance(header, BatchHeader)
            group.wholes.append((header, data.slice(begin, header.size)))
        elif wanted:
            group.small.append((begin, header))
            group.old = old
        group.next = position = header.next_offset
    if group is not None:
        yield group


def _whole(header: BatchHeader, position: int, codecs: Mapping[int, int]) -> bool:
    """Whether a batch may be handed on as it is: nothing is missing in it, its times are its producer's, and
    a frame may have as many records."""
    return (
        header.magic == 2
        and header.count == header.last_offset_delta + 1
        and header.count <= MAX_RECORDS
        and header.base_offset >= position
        and not header.log_append_time
        and not header.attributes & _DELETE_HORIZON
        and header.size <= codecs.get(header.codec, 0)
    )


def _chunk(
    at: Place, group: _Group, data: pa.Buffer, whole_codecs: Mapping[int, int], budget: Budget
) -> tuple[Chunk | None, bool]:
    """A group as a chunk, or as much of it as the budget has room for (None: nothing), and whether that is
    all."""
    chunk = Chunk(at.topic, at.partition, group.next, group.epoch, group.wholes)
    aligned, at.aligned = at.aligned, True
    if not group.small:
        return chunk, True
    begin, only = group.small[0]
    if len(group.small) == 1 and isinstance(only, BatchHeader) and _whole(only, at.offset, whole_codecs):
        chunk.wholes, chunk.alone = [(only, data.slice(begin, only.size))], True
        return chunk, True
    if budget.spent():
        at.aligned = aligned
        return None, False
    if group.old:
        floor = at.offset if aligned else 0
        messages = list(batch_runs.each(group.small))
        rows, end, size = message_sets.leading(data, messages, at.offset, budget.left, floor)
    else:
        rows, end, size = record_decoder.leading(data, group.small, at.offset, budget.left)
    budget.spend(sum(h.size for _, h in group.small if h.base_offset < end), size)
    chunk.rows = rows if len(rows) else None
    if end >= group.small[-1][1].next_offset:
        return chunk, True
    budget.exceeded = True
    chunk.next = end
    within = next(h for _, h in batch_runs.each(group.small) if h.next_offset > end)
    if within.magic < 2 or within.base_offset < end:
        # It is known to be where it says, however far it reaches back when it comes again.
        at.aligned, at.doubted = False, (within.base_offset, within.crc)
    return chunk, False
