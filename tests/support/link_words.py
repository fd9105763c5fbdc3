"""What a small link of two topics has said: its control topic, and its lanes' words."""

from __future__ import annotations

from collections import Counter

from common.link.control_kinds import ControlRecord, Destination, Leader, SourceTopic, encode
from common.link.control_state import Control
from common.link.lane_words import Heard, Said, Word
from common.link.lane_work import Work
from tests.support.made_up_link import LINK, settings

SETTINGS = settings(KAFKA_CLUSTERS_SOURCE_TOPIC="orders,paid")
DESCRIBED = (
    SourceTopic("orders", "id-o", 2, {}),
    SourceTopic("paid", "id-p", 1, {}),
    Destination("orders", "id-o", "copy.orders", 2, 1 << 20),
    Destination("paid", "id-p", "copy.paid", 1, 1 << 20),
    Leader("replicator", "host-1"),
    Leader("deduplicator", "host-2"),
)


def state(*records: ControlRecord) -> Control:
    control = Control()
    for record in (*DESCRIBED, *records):
        control.apply(control.position, encode(record, LINK))
    return control


def said(application: str, lane: int, term: int, epoch: int, **of: dict[str, int]) -> Said:
    """Counts by partition, as orders_0."""
    partitions = {(name[:-2], int(name[-1])): Counter(counts) for name, counts in of.items()}
    return Said(application, lane, term, epoch, Work(Counter(), partitions))


def heard(*all_said: Said, at_ms: int = 5000) -> Heard:
    return {(one.application, one.lane): Word(one, at_ms) for one in all_said}


REPLICATOR = (
    said("replicator", 0, 4, 9, orders_0={"end_offset": 100, "staged_offset": 90}),
    said("replicator", 1, 4, 9, orders_1={"end_offset": 50}, paid_0={"end_offset": 7}),
)
DEDUPLICATOR = (
    said("deduplicator", 0, 5, 2, orders_0={"delivered_offset": 80}, paid_0={"delivered_offset": 7}),
    said("deduplicator", 1, 5, 2, orders_1={"delivered_offset": 50}),
)
