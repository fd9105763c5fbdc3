"""A record that its source took because it was compressed well is not refused by a destination with the same
limit."""

from __future__ import annotations

import random

from common.kafka.wire import batch_consumer
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, produce
from tests.support.harness import Link, assert_copied

LIMIT = 80_000
T = 1_700_000_000_000


def test_a_record_that_only_its_source_s_codec_makes_small_enough_arrives(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: before its partition halts, a record that is too large as Verbatim writes it is compressed as
    its producer may have done it."""
    at, topic = source.bootstrap_servers, names.topic()
    create_topic(at, topic, config={"retention.ms": "-1", "max.message.bytes": str(LIMIT)})
    # Sixteen letters in no order: LZ4 finds nothing in them, entropy coding half.
    hard = bytes(b"abcdefghijklmnop"[byte & 15] for byte in random.Random(1).randbytes(110_000))
    assert len(hard) // 2 < batch_consumer.WHOLE_BYTES, "it does not go as it is"
    for codec in ("zstd", "gzip"):
        some = [Record(b"small", b"k", timestamp=T), Record(hard, b"k", timestamp=T)]
        produce(at, topic, some, config={"compression.type": codec, "linger.ms": 0})
    link = Link(at, target.bootstrap_servers, names.link, topic)
    assert link.copy() == (0, 0)
    assert link.halted() == {}
    assert_copied(link, topic)
