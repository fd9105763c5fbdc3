"""What a frame's value is made of where its records are no whole batches of the source. Pure.

Records that follow each other without a gap become one record batch, which the destination takes as it is:
the deduplicator need not take them apart and put them together again. The others become columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from common.config.client_properties import compression
from common.kafka.wire import record_batch
from common.kafka.wire.records import ROWS
from common.link import batch_frame, frame

CODECS = ("lz4", "zstd")
"""What Arrow compresses with too."""
PLAIN_BYTES = 1 << 10
"""Of so little, compression would not save what it costs."""
_ANY_BYTES = 1 << 31


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

    def pack(self, rows: pa.RecordBatch) -> tuple[pa.Buffer, bool]:
        """The value of a frame with these rows, and whether it is a record batch: never where a stage failed
        on some of them."""
        if self.sealing is None or rows.num_columns != len(ROWS):
            return frame.pack(rows, self.codec), False
        batch = batch_frame.pack(rows, *self.sealing)
        return (frame.pack(rows, self.codec), False) if batch is None else (batch, True)


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
