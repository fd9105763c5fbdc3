"""The records of the topic of dead letters: what it holds of each record that a stage failed on. Pure."""

from __future__ import annotations

import orjson
import pyarrow as pa

from common.kafka.wire.records import Header, Item, Rows, encode_rows, headers_of
from common.link.frame import Frame

_CREATE_TIME = 1


def asked_for(definition: str) -> bool:
    """Whether a pipeline of this definition has dead letters."""
    flows = orjson.loads(definition)["flows"]
    said = (flow.get("onError", "halt") for flow in flows)
    return any("dead-letter" in one if isinstance(one, dict) else one == "dead-letter" for one in said)


def letters(link: str, frame: Frame, failed: Rows, now_ms: int) -> pa.RecordBatch:
    """Of `common.kafka.wire.records.ROWS`, a dead letter for each of a frame's records that a stage failed
    on: key, value and headers of the record where the frame has them, and behind these headers its own, which
    say where it stands at the source, and why it did not go on.

    The letter's timestamp is that of its writing: its topic's retention counts from there.
    """
    assert frame.failed is not None
    common = [
        ("verbatim.link", link.encode()),
        ("verbatim.source.cluster", frame.cluster.encode()),
        ("verbatim.source.topic", frame.topic.encode()),
        ("verbatim.source.topic-id", frame.topic_id.encode()),
        ("verbatim.source.partition", b"%d" % frame.partition),
    ]
    ends: list[list[Header]] = [
        [
            ("verbatim.pipeline", b"%d" % frame.pipeline),
            ("verbatim.stage", stage.encode()),
            ("verbatim.reason", why.encode()),
            ("verbatim.payload", b"true" if frame.failed.payload else b"false"),
        ]
        for stage, why in frame.failed.reasons
    ]
    headers: list[list[Header]] = []
    columns = (failed.offsets, failed.timestamps, failed.batch.column("error").to_pylist())
    for offset, timestamp, error, own in zip(*columns, headers_of(failed.batch), strict=True):
        at: list[tuple[str, Item]] = [
            ("verbatim.source.offset", b"%d" % offset),
            ("verbatim.source.timestamp", b"%d" % timestamp),
        ]
        headers.append([*(own or ()), *common, *at, *ends[error]])
    count = failed.count
    return encode_rows(
        failed.offsets, [now_ms] * count, [_CREATE_TIME] * count, failed.keys, failed.values, headers
    )
