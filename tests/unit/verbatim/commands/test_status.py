"""What `verbatim status` shows of a link."""

from __future__ import annotations

from common.link.control_kinds import (
    GroupMove,
    Halted,
    Limit,
    Pause,
    Promotion,
)
from common.link.control_state import Control
from common.link.lane_words import Said
from common.link.link_status import rate
from tests.support.link_words import DEDUPLICATOR, REPLICATOR, SETTINGS, heard, said, state
from verbatim.commands.status import summary, text


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


def test_a_promoted_topic_is_neither_copied_nor_paused_and_its_lag_is_not_waited_for() -> None:
    taken = Promotion("paid", "id-p", "copy.paid", "promoting", (7,))
    rest = said("replicator", 1, 4, 9, orders_1={"end_offset": 50})
    lines = shown(state(Pause((), True), taken), REPLICATOR[0], rest, *DEDUPLICATOR).splitlines()
    assert lines[0] == "east: s-1 to t-1, 20 to go"
    assert [line.split()[-1] for line in lines if line.startswith("paid")] == ["promoting"]


def test_groups_that_are_moved_are_named() -> None:
    lines = shown(state(GroupMove("billing", "moving"), GroupMove("", "moved"))).splitlines()
    assert lines[-1] == "groups on their way to the target, or there: '' (moved), billing (moving)"


def test_a_second_look_tells_what_was_delivered_between_them() -> None:
    later = said("deduplicator", 0, 5, 2, orders_0={"delivered_offset": 100}, paid_0={"delivered_offset": 7})
    before, now = heard(*REPLICATOR, *DEDUPLICATOR), heard(later, at_ms=9000)
    found = {"link": "east", "source": "s-1", "target": "t-1", **summary(SETTINGS, state(), now, {}, 9000)}
    rate(found, before, now)
    assert [line["per_second"] for line in found["topics"] if line["topic"] == "orders"] == [5.0]


def test_a_link_without_topics_is_shown() -> None:
    found = summary(SETTINGS, Control(), {}, {}, 0)
    assert "no topic yet" in text({"source": "s", "target": "t", **found})
