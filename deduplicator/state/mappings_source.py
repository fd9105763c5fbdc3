"""Spark data source "mappings": the committed records of the offset-mappings topic as rows; folds and keeps
nothing.

`spark.read.format("mappings")` with `start` and `end` positions, read exactly, in Python with
confluent-kafka; the JVM sees Arrow batches only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
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
from common.link import offset_mappings

SCHEMA = (
    "mappings_partition int, mappings_offset bigint, timestamp timestamp, cluster string, topic string, "
    "topic_id string, partition int, start bigint, next bigint, destination_topic string, "
    "destination_partition int, staging_offset bigint, records bigint, duplicates bigint, lost bigint, pipeline bigint, "
    "runs array<struct<source:bigint,destination:bigint,length:bigint>>"
)
"""One row per mapping record; `timestamp` is the record's, `runs` is [source offset, destination offset,
length] of what lies in the link's own destination. `records` counts what lies in other topics too."""

_RUN = ("source", "destination", "length")
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
        ("runs", pa.list_(pa.struct([(name, pa.int64()) for name in _RUN]))),
    ]
)

CONFIG_OPTION = "client.secret"
"""Option with the consumer's properties as JSON. Its name matches Spark's redaction pattern, so plans hide
the value."""

_AS_THEY_ARE = ARROW_SCHEMA.names[ARROW_SCHEMA.names.index("cluster") : ARROW_SCHEMA.names.index("runs")]
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
            messages = records(reader, self.topic, partition.ranges)
            while some := list(islice(messages, _BATCH_ROWS)):
                yield rows(some)


def rows(messages: Sequence[Received]) -> pa.RecordBatch:
    """Mapping records as rows of ARROW_SCHEMA. Raises StateError, with its place, for one that is not
    understood."""
    mappings = [_mapping(message) for message in messages]
    runs = np.array([run for mapping in mappings for run in mapping.runs], np.int64).reshape(-1, 3)
    ends = np.cumsum([0, *(len(mapping.runs) for mapping in mappings)], dtype=np.int32)
    listed = pa.ListArray.from_arrays(
        pa.array(ends), pa.StructArray.from_arrays([pa.array(column) for column in runs.T], _RUN)
    )
    columns: dict[str, Any] = {
        "mappings_partition": [message.partition() for message in messages],
        "mappings_offset": [message.offset() for message in messages],
        "timestamp": [message.timestamp()[1] * 1000 for message in messages],
        **{name: [getattr(mapping, name) for mapping in mappings] for name in _AS_THEY_ARE},
        "runs": listed,
    }
    return pa.RecordBatch.from_pydict(columns, schema=ARROW_SCHEMA)


def _mapping(message: Received) -> offset_mappings.Mapping:
    try:
        return offset_mappings.decode(message.value())
    except StateError as error:
        place = f"{message.topic()}/{message.partition()}: the mapping at offset {message.offset()}"
        raise StateError(f"{place} is not understood: {error}") from error
