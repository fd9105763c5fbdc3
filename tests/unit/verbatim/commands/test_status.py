"""What `verbatim status` shows of a link."""

from __future__ import annotations

from collections import Counter

from common.config import loading
from common.link.control_kinds import (
    ControlRecord,
    Destination,
    Halted,
    Leader,
    Limit,
    Pause,
    SourceTopic,
    encode,
)
from common.link.control_state import Control
from common.link.lane_words import Heard, Said, Word
from common.link.lane_work import Work
from verbatim.commands.status import rate, summary, text

SETTINGS = loading.load(
    environ={
        "APPLICATION_NAME": "east",
        "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "a:1",
        "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "b:1",
        "KAFKA_CLUSTERS_SOURCE_TOPIC": "orders,paid",
    }
)
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
        control.apply(control.position, encode(record, "east"))
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


def shown(control: Control, *all_said: Said) -> str:
    leads: dict[str, bool | None] = {"replicator": True, "deduplicator": True}
    found = summary(SETTINGS, control, heard(*all_said), leads, 6000)
    return text({"link": "east", "source": "s-1", "target": "t-1", **found})


def test_the_table_says_what_needs_attention() -> None:
    halted = Halted("deduplicator", "paid", "id-p", 0, "key-missing", "record 7 of paid-0 has no key")
    control = state(Pause(("or.*",), True), Limit((), 1_000_000, None), halted)
    lines = shown(control, *REPLICATOR, *DEDUPLICATOR).splitlines()
    assert lines == [
        "east: s-1 to t-1, 20 to go",
        "",
        "APPLICATION   STATE  LED BY  LANES  HEARD OF",
        "replicator    runs   host-1  2      1 s ago",
        "deduplicator  runs   host-2  2      1 s ago",
        "",
        "TOPIC   DESTINATION  PARTITIONS  LAG  STATE",
        "orders  copy.orders  2           20   paused by or.*",
        "paid    copy.paid    1           0    copied, 1 halted",
        "",
        "all together: at most 1,000,000 bytes/s",
        "",
        "HALTED paid-0 (deduplicator): record 7 of paid-0 has no key",
        "  what to do: docs: operations/halts#key-missing",
        "  Let the source's cleaner remove the record, or take compact out of the copy's cleanup.policy",
        "  Or skip the record for good: verbatim accept-loss paid 0",
    ]


def test_a_second_look_tells_what_was_delivered_between_them() -> None:
    later = said("deduplicator", 0, 5, 2, orders_0={"delivered_offset": 100}, paid_0={"delivered_offset": 7})
    before, now = heard(*REPLICATOR, *DEDUPLICATOR), heard(later, at_ms=9000)
    found = {"link": "east", "source": "s-1", "target": "t-1", **summary(SETTINGS, state(), now, {}, 9000)}
    rate(found, before, now)
    line = next(line for line in text(found).splitlines() if line.startswith("orders"))
    assert line.split() == ["orders", "copy.orders", "2", "?", "5", "copied"]


def test_a_link_without_topics_is_shown() -> None:
    found = summary(SETTINGS, Control(), {}, {}, 0)
    assert "no topic yet" in text({"source": "s", "target": "t", **found})
