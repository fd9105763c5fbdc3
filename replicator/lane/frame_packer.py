"""What frames' values are made of where its records are no whole batches of the source. Pure.

Records that follow each other without a gap become one record batch, which the destination takes as it is:
the deduplicator need not take them apart and put them together again. The others become columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from common.config.client_properties import compression
from common.kafka.wire import record_batch
from common.kafka.wire.chunks import payload_bounds
from common.kafka.wire.records import ROWS
from common.link import batch_frame, frame

CODECS = ("lz4", "zstd")
"""What Arrow compresses with too."""
PLAIN_BYTES = 1 << 10
"""Of so little, compression would not save what it costs."""
_ANY_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class Packed:
    """A frame's records, its value, whether that is a record batch, and its bytes before compression."""

    count: int
    value: pa.Buffer
    sealed: bool
    unpacked: int


@dataclass(frozen=True, slots=True)
class FramePacker:
    """`codec`: of columns; None: the producer compresses them, if it has been told to. `sealing`: codec and
    level of record batches; None: none are made."""

    codec: pa.Codec | None = None
    sealing: tuple[str, int | None] | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any], provenance: bool) -> FramePacker:
        """For a producer with these properties. Where each record gets a header on its way, nothing goes as
        it is."""
        return cls(frame_codec(config), None if provenance else compression(config))

    def pack(self, rows: pa.RecordBatch, starts: Sequence[int] = (0,)) -> list[Packed]:
        """Frames that begin at these rows, the first of which is 0. None is a record batch where a stage
        failed on some of the rows, or takes them elsewhere."""
        parts = [rows.slice(begin, end - begin) for begin, end in pairwise([*starts, len(rows)])]
        batches: list[pa.Buffer | None] = [None] * len(parts)
        if self.sealing is not None and rows.num_columns == len(ROWS):
            batches = batch_frame.pack(rows, starts, *self.sealing)
        return [
            Packed(
                len(part),
                frame.pack(part, self.codec) if batch is None else batch,
                batch is not None,
                part.nbytes,
            )
            for part, batch in zip(parts, batches, strict=True)
        ]


def starts(rows: pa.RecordBatch, most_records: int, most_bytes: int) -> list[int]:
    """At which rows frames begin that have no more than so much each, or a single record, and are of about
    the same size."""
    bounds = payload_bounds(rows)
    count, size = len(rows), int(bounds[-1])
    frames = max(-(-size // most_bytes), -(-count // most_records), 1)
    share, records = -(-size // frames), -(-count // frames)
    found = [0]
    while (at := found[-1]) < count - records or bounds[-1] - bounds[at] > most_bytes:
        enough = int(np.searchsorted(bounds, bounds[at] + share))
        fits = int(np.searchsorted(bounds, bounds[at] + most_bytes, "right")) - 1
        next_ = max(at + 1, min(enough, fits, at + records))
        if next_ >= count:
            break
        found.append(next_)
    return found


def whole_codecs(config: Mapping[str, Any], provenance: bool) -> dict[int, int]:
    """Which codecs a batch may have to go as it is, with a producer of these properties, and how many bytes
    at most.

    None where each record gets a header. What an operator asks for is what is written: a codec that is given
    is the only one, and by default nothing of some size goes uncompressed.
    """
    if provenance:
        return {}
    if (name := config.get("compression.type")) is not None:
        return {record_batch.CODECS[str(name)]: _ANY_BYTES}
    return dict.fromkeys(record_batch.CODECS.values(), _ANY_BYTES) | {
        record_batch.CODECS["none"]: PLAIN_BYTES
    }


def frame_codec(config: Mapping[str, Any]) -> pa.Codec | None:
    """What compresses columns for a producer with these properties. None: the producer does, what it has
    been told to.

    What is compressed in a Kafka batch is unpacked by the broker, which looks at each record; what is
    compressed in a frame is one record to it. And all that handles frames on their way has fewer bytes to
    copy.
    """
    name, level = compression(config)
    return pa.Codec(name, level or None) if name in CODECS else None
