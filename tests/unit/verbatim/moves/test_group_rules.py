"""What the move of a group waits for, and what it refuses: anything that is not known to be so."""

from __future__ import annotations

from typing import Any

import pytest

from offsets.commit_rule import MEANINGS
from offsets.failback import Back
from offsets.group_offsets import GroupKey, GroupOffset
from offsets.group_protocol import Committed, Group, Member
from offsets.survey import Found, Row, Unmoved
from offsets.translation_index import (
    AHEAD,
    BEFORE_HISTORY,
    BEFORE_ORIGIN,
    BEYOND,
    MISSING,
    NOTHING_COPIED,
    THINNED,
    Destination,
    PartitionIndex,
    Point,
    Translation,
)
from verbatim.moves.group_rules import Verdict, is_behind, judge, judge_back, streams_topics

IDLE, USED = Group("classic", False), Group("classic", True)
WHO = [Member("c1", "/10.0.0.1", None), Member("c2", "/10.0.0.2", "static-2")]


def row(partition: int = 0, outcome: str = "written", why: str | None = None, detail: str = "") -> Row:
    record = GroupOffset("id", 7, "g", "t", partition, 5, why is None, why, outcome, detail, 1, "", None)
    return Row(GroupKey("g", "t", partition), record, 5)


def found(*rows: Row, of: Group | None = IDLE, unmoved: tuple[Unmoved, ...] = (), **more: int) -> Found:
    """A look at a group `g`; `more`: topics of which it has committed an offset in partition 0."""
    committed = {(r.key.topic, r.key.partition): Committed(7, "") for r in rows}
    committed |= {(topic, 0): Committed(offset, "") for topic, offset in more.items()}
    return Found(
        list(rows), [], list(unmoved), {"g": of} if of else {}, {"g": committed} if committed else {}
    )


def verdict(look: Found, accept: bool = False, **behind: str) -> Verdict:
    late = {GroupKey("g", "t", int(name[1:])): said for name, said in behind.items()}
    return judge("g", look, {"t", "u"}, WHO, late, accept)


def test_a_group_without_members_whose_offsets_are_translated_exactly_is_moved() -> None:
    assert verdict(found(row(0), row(1, "in-step"), elsewhere=3)).obstacles == []


def test_members_at_the_source_are_named_and_waited_for() -> None:
    said = verdict(found(row(0, "target-ahead"), row(1, "written", AHEAD), of=USED))
    assert said == Verdict(
        members=["it has members at the source: c1 at 10.0.0.1; c2 at 10.0.0.2 (static member static-2)"]
    )


def test_members_at_the_target_are_waited_for() -> None:
    assert verdict(found(row(0, "active"), row(1, "active"))).members == [
        "it has members at the target: stop them"
    ]


def test_what_is_not_copied_yet_is_waited_for_whatever_the_outcome() -> None:
    said = verdict(found(row(0, "kept", AHEAD), row(1)), p0="up to 3")
    assert said == Verdict(copy=["t-0: not copied up to source offset 7 (up to 3)"])


def test_more_may_come_where_the_copy_is_behind_or_was_never_heard_of() -> None:
    """Of a topic that is only just copied, `offsets` may have found a bound, and nothing else is known."""
    never, begun = PartitionIndex(Destination("t", 0)), PartitionIndex(Destination("t", 0))
    begun.start = 0
    never.seed([Point(9, 0, False)])
    assert never.translate(9, 0).why == MISSING
    for why, known, late in (
        (AHEAD, begun, True),
        (NOTHING_COPIED, begun, True),
        (MISSING, begun, False),
        (THINNED, begun, False),
        (MISSING, never, True),
        (BEFORE_HISTORY, never, True),
        (None, never, False),
    ):
        assert is_behind(row(0, "written", why), known) == late, why


def test_a_partition_that_is_not_copied_at_all_is_waited_for() -> None:
    """Left out, its consumers would begin there where auto.offset.reset says."""
    assert verdict(found(row(0), u=4)).copy == ["u-0 is not copied yet"]


@pytest.mark.parametrize("why", [THINNED, MISSING, BEFORE_ORIGIN])
def test_what_would_be_read_again_is_refused_unless_that_is_accepted(why: str) -> None:
    assert why in verdict(found(row(0, "written", why))).never[0]
    assert verdict(found(row(0, "written", why)), accept=True).obstacles == []


@pytest.mark.parametrize("outcome", sorted(MEANINGS.keys() - {"written", "in-step", "active", "failed"}))
def test_no_other_outcome_is_gone_on_with(outcome: str) -> None:
    assert outcome in verdict(found(row(0, outcome))).never[0]


def test_what_kafka_refuses_may_pass() -> None:
    assert "no answer" in verdict(found(row(0, "failed", detail="no answer"))).members[0]
    assert verdict(found(unmoved=(Unmoved("g", "failed", "sick"),))).members == ["sick"]


@pytest.mark.parametrize(
    ("look", "said"),
    [
        (found(of=None), "no such group"),
        (found(), "no offset in a topic that the link copies"),
        (found(elsewhere=3), "no offset in a topic that the link copies"),
        (found(of=Group("share", False), unmoved=(Unmoved("g", "unmovable", "a share group"),)), "a share group"),
        (found(row(0, "several-sources"), of=USED), "several-sources"),
    ],
)  # fmt: skip
def test_no_wait_makes_a_group_of_what_is_none(look: Found, said: str) -> None:
    assert said in verdict(look).never[0]


# back


def back(outcome: Any, why: str | None = None, partition: int = 0) -> Back:
    return Back(
        GroupKey("g", "t", partition), Committed(9, ""), Translation(8, why is None, why), 3, outcome, "said"
    )


@pytest.mark.parametrize(
    ("rows", "active", "refused", "waits"),
    [
        ([], False, "", ""),
        ([back("written"), back("in-step", partition=1)], False, "", ""),
        ([back("written", BEYOND)], False, "", ""),
        ([back("written")], True, "", "members at the target: c1"),
        ([back("active")], False, "", "members at the source"),
        ([back("target-ahead")], False, "source's group is ahead, at offset 3", ""),
        ([back("written", THINNED)], False, "thinned", ""),
        ([back("several-targets")], False, "several-targets", ""),
        ([back("failed")], False, "said", ""),
    ],
)  # fmt: skip
def test_the_way_back_is_exact_or_refused(rows: list[Back], active: bool, refused: str, waits: str) -> None:
    said = judge_back("g", {"g": Group("classic", active)}, rows, [r.key for r in rows], WHO, False)
    assert [refused in line for line in said.never] == [True] * bool(refused)
    assert [waits in line for line in said.members] == [True] * bool(waits)


def test_redelivery_is_accepted_on_the_way_back_too() -> None:
    assert judge_back("g", {}, [back("written", THINNED)], [], WHO, True).obstacles == []


def test_a_group_whose_offsets_at_the_target_are_gone_does_not_go_back() -> None:
    keys = [GroupKey("g", "t", 0), GroupKey("g", "t", 1)]
    said = judge_back("g", {}, [back("in-step")], keys, WHO, True)
    assert said.never == ["t-1: the target's group has no offset there any more"]


# streams


def test_the_topics_of_a_streams_application_are_to_be_copied_under_the_names_that_it_looks_for() -> None:
    names = [
        "app-store-changelog",
        "app-KSTREAM-1-repartition",
        "app",
        "app-input",
        "application-x-changelog",
    ]
    own = names[:2]
    same = {name: name for name in names}
    assert streams_topics("app", "app", names, same) == (own, [])
    assert streams_topics("app", "eu.app", names, {name: f"eu.{name}" for name in names}) == (own, [])
    assert (
        "app-store-changelog would be looked for"
        in streams_topics("app", "app", names, {**same, own[0]: "x"})[1][0]
    )
    assert "is not copied" in streams_topics("app", "app", names, {own[0]: own[0]})[1][0]
    assert streams_topics("", "", ["-x-changelog"], {}) == ([], [])
