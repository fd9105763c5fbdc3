"""Spark data source "mappings": the committed records of the offset-mappings topic as rows; folds and keeps
nothing.

`spark.read.format("mappings")` with `start` and `end` positions, read exactly, in Python with
confluent-kafka; the JVM sees Arrow batches only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, TopicPartition
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from common.config import credentials
from common.errors import KafkaTimeout, StateError
from common.kafka.client.clients import Received
from common.kafka.client.range_reader import records
from common.kafka.wire import oauth_tokens

SCHEMA = (
    "mappings_partition int, mappings_offset bigint, timestamp timestamp, cluster string, topic string, "
    "topic_id string, partition int, start bigint, next bigint, destination_topic string, "
    "destination_partition int, staging_offset bigint, records bigint, duplicates bigint, lost bigint, pipeline bigint, "
    "runs array<struct<source:bigint,destination:bigint,length:bigint>>"
)
"""One row per mapping record; `timestamp` is the record's, `runs` is [source offset, destination offset,
length] of what lies in the link's own destination. `records` counts what lies in other topics too."""

ARROW_SCHEMA = pa.schema(
    [
        ("mappings_partition", pa.int32()),
        ("mappings_offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("cluster", pa.string()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("start", pa.int64()),
        ("next", pa.int64()),
        ("destination_topic", pa.string()),
        ("destination_partition", pa.int32()),
        ("staging_offset", pa.int64()),
        ("records", pa.int64()),
        ("duplicates", pa.int64()),
        ("lost", pa.int64()),
        ("pipeline", pa.int64()),
        (
            "runs",
            pa.list_(
                pa.struct([("source", pa.int64()), ("destination", pa.int64()), ("length", pa.int64())])
            ),
        ),
    ]
)

CONFIG_OPTION = "client.secret"
"""Option with the consumer's properties as JSON. Its name matches Spark's redaction pattern, so plans hide
the value."""

_AS_THEY_ARE = ARROW_SCHEMA.names[ARROW_SCHEMA.names.index("cluster") : ARROW_SCHEMA.names.index("lost")]
"""What a row takes from a mapping without change."""
_BATCH_ROWS = 2_000


def options(config: Mapping[str, Any], topic: str) -> dict[str, str]:
    """What it must be told: the consumer's librdkafka properties, and the name of the mappings
    topic."""
    return {CONFIG_OPTION: orjson.dumps(dict(config)).decode(), "topic": topic}


def range_options(start: Mapping[int, int], end: Mapping[int, int]) -> dict[str, str]:
    """The options of a batch read: for each mappings partition the offsets from `start` up to, not with,
    `end`."""
    return {
        name: orjson.dumps({str(p): o for p, o in sorted(of.items())}).decode()
        for name, of in (("start", start), ("end", end))
    }


def consumer(config: Mapping[str, Any]) -> Consumer:
    """A consumer of committed records that never commits, and that answers an offset out of range with an
    error."""
    return Consumer(
        {
            "group.id": "verbatim",  # required by librdkafka, unless settings bring the link's; never joined and never committed
            **oauth_tokens.for_library(credentials.found(config)),
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )


def bounds(reader: Consumer, topic: str, timeout_s: float = 10.0) -> tuple[dict[int, int], dict[int, int]]:
    """Log start and read-committed end (last stable offset) of every partition of `topic`. Raises
    KafkaTimeout."""
    low: dict[int, int] = {}
    high: dict[int, int] = {}
    try:
        found = reader.list_topics(topic, timeout_s).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        for partition in sorted(found.partitions):
            low[partition], high[partition] = reader.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=timeout_s, cached=False
            )
    except KafkaException as error:
        raise KafkaTimeout(f"{topic}: cannot tell its offsets: {error.args[0].str()}") from error
    return low, high


@dataclass
class Ranges(InputPartition):
    """What one task reads: mappings partition → (start, end)."""

    ranges: dict[int, tuple[int, int]]


class MappingsDataSource(DataSource):
    """`format("mappings")`. Options: see `options` and `range_options`."""

    @classmethod
    def name(cls) -> str:
        return "mappings"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> MappingsReader:
        return MappingsReader(self.options)


class MappingsReader(DataSourceReader):
    """Reads [start, end) of each partition: every committed record in it, and nothing else."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.config: dict[str, Any] = orjson.loads(options[CONFIG_OPTION])
        self.topic = options["topic"]
        start, end = (
            {int(p): int(o) for p, o in orjson.loads(options.get(name, "{}")).items()}
            for name in ("start", "end")
        )
        self.ranges = {p: (start.get(p, 0), o) for p, o in end.items() if start.get(p, 0) < o}

    def partitions(self) -> list[InputPartition]:
        return [Ranges(self.ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Ranges)
        with closing(consumer(self.config)) as reader:
            rows: list[dict[str, Any]] = []
            for message in records(reader, self.topic, partition.ranges):
                rows.append(row(message))
                if len(rows) >= _BATCH_ROWS:
                    yield pa.RecordBatch.from_pylist(rows, schema=ARROW_SCHEMA)
                    rows = []
            yield pa.RecordBatch.from_pylist(rows, schema=ARROW_SCHEMA)


def row(message: Received) -> dict[str, Any]:
    """One mapping record as a dict of ARROW_SCHEMA. Raises StateError, with its place, for one that is not
    understood."""
    try:
        value = orjson.loads(message.value() or b"null")
        if value["v"] not in (1, 2):
            raise ValueError(f"version {value['v']}")
        return {
            "mappings_partition": message.partition(),
            "mappings_offset": message.offset(),
            "timestamp": message.timestamp()[1] * 1000,
            **{name: value[name] for name in _AS_THEY_ARE},
            "lost": value.get("lost", 0),
            "pipeline": value.get("pipeline", 0),
            "runs": [{"source": s, "destination": d, "length": n} for s, d, n in value["runs"]],
        }
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{message.topic()}/{message.partition()}: the mapping at offset {message.offset()} is not understood "
            f"({type(error).__name__}: {error}); was it written by a newer version?"
        ) from error
