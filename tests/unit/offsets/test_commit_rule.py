"""What becomes of a translated offset: a group that is in use, or ahead by its own consumption, is never
touched."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from common.errors import StateError
from offsets.commit_rule import MEANINGS, Outcome, Written, decide, decide_back
from offsets.group_offsets import GroupKey, GroupOffset, Stray, decode, encode_key, encode_value

OURS = Written(source_offset=50, offset=60, previous=40)
SMALL = st.integers(0, 30)


@pytest.mark.parametrize(
    ("translated", "source", "committed", "written", "active", "rewind", "outcome"),
    [
        (70, 60, 60, OURS, True, True, "active"),
        (70, 60, None, None, False, True, "written"),
        (70, 60, None, OURS, False, True, "written"),
        (60, 50, 60, OURS, False, True, "in-step"),
        (70, 60, 60, OURS, False, True, "written"),
        (70, 60, 40, OURS, False, True, "written"),
        (70, 60, 5, None, False, True, "written"),
        (70, 60, 5, OURS, False, True, "written"),
        (60, 50, 40, OURS, False, True, "written"),
        (60, 50, 5, OURS, False, True, "target-moved"),
        (70, 50, 61, OURS, False, True, "target-moved"),
        (30, 20, 60, OURS, False, True, "written"),
        (30, 20, 60, OURS, False, False, "rewind-off"),
        (30, 20, 61, OURS, False, True, "target-ahead"),
        (30, 20, 40, OURS, False, True, "target-ahead"),
        (30, 20, 60, None, False, True, "target-ahead"),
        (30, 50, 60, OURS, False, True, "kept"),
        (30, 55, 60, OURS, False, True, "kept"),
    ],
)
def test_the_outcome_of_each_situation(
    translated: int, source: int, committed: int | None, written: Written | None, active: bool, rewind: bool, outcome: str
) -> None:  # fmt: skip
    assert decide(translated, source, committed, written, active, rewind) == outcome
    assert outcome in MEANINGS


@pytest.mark.parametrize(
    ("translated", "committed", "active", "outcome"),
    [
        (5, None, False, "written"),
        (5, 4, False, "written"),
        (5, 5, False, "in-step"),
        (5, 6, False, "target-ahead"),
        (5, 4, True, "active"),
    ],
)
def test_the_way_back_goes_forwards_only(
    translated: int, committed: int | None, active: bool, outcome: Outcome
) -> None:
    assert decide_back(translated, committed, active) == outcome


@given(
    SMALL,
    SMALL,
    st.none() | SMALL,
    st.none() | st.builds(Written, SMALL, SMALL, st.none() | SMALL),
    st.booleans(),
)
def test_nobodys_consumption_is_ever_moved_back(
    translated: int, source: int, committed: int | None, written: Written | None, rewind: bool
) -> None:  # fmt: skip
    outcome = decide(translated, source, committed, written, False, rewind)
    if outcome == "written" and committed is not None and translated < committed:
        assert rewind
        assert written is not None and committed == written.offset and source < written.source_offset


@dataclass
class State:
    source: int = 0
    copied: int = 0
    target: int | None = None
    written: Written | None = None
    own: int | None = None
    """What the target's own consumer has committed, since this link last wrote."""


class Rounds(RuleBasedStateMachine):
    """A group that commits, rewinds, is consumed at the target, while `offsets` crashes between record and
    write. Translation is the identity, as far as is copied."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State()

    @rule(to=SMALL)
    def the_source_group_commits(self, to: int) -> None:
        self.state.source = to

    @rule(more=SMALL)
    def records_are_copied(self, more: int) -> None:
        self.state.copied += more

    @rule(more=SMALL)
    def the_target_group_consumes(self, more: int) -> None:
        s = self.state
        if s.target is not None and more:
            s.target = s.own = s.target + more

    @rule(crash=st.booleans())
    def a_round(self, crash: bool) -> None:
        s = self.state
        translated = min(s.source, s.copied)
        outcome = decide(translated, s.source, s.target, s.written, False, True)
        if outcome != "written":
            return
        assert s.own is None or translated >= s.own, "own consumption was moved back"
        s.written = Written(s.source, translated, s.target)
        if not crash:
            s.target, s.own = translated, None

    @invariant()
    def two_quiet_rounds_bring_a_group_in_step_that_nobody_uses(self) -> None:
        s = replace(self.state)
        if s.own is not None:
            return
        for _ in range(2):
            translated = min(s.source, s.copied)
            outcome = decide(translated, s.source, s.target, s.written, False, True)
            if outcome == "written":
                s.written = Written(s.source, translated, s.target)
                s.target = translated
        # A crash between record and write, and then a rewind: it stays ahead until the source has caught up,
        # which skips nothing that its consumers have not committed at the source before.
        crashed = s.written is not None and s.target != s.written.offset
        assert s.target == min(s.source, s.copied) or crashed


TestRounds = Rounds.TestCase
TestRounds.settings = settings(deadline=None, max_examples=100, stateful_step_count=20)


RECORD = GroupOffset(
    "id", 5, "g", "copy", 1, 7, False, "thinned", "written", "", 1000, "m", Written(5, 7, None)
)


@pytest.mark.parametrize("record", [RECORD, replace(RECORD, offset=None, why=None, exact=True, written=None)])
def test_a_record_is_read_back(record: GroupOffset) -> None:
    key = GroupKey("g\n", "orders", 1)
    assert decode(encode_key(key), encode_value(record)) == (key, record)
    assert decode(encode_key(key), None) == (key, None)
    assert record.same(replace(record, time_ms=2)) and not record.same(replace(record, source_offset=6))
    assert not record.same(None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None),
        (b"{}", b"{}"),
        (encode_key(GroupKey("g", "t", 0)), b"{"),
        (encode_key(GroupKey("g", "t", 0)), b'{"v":2}'),
        (encode_key(GroupKey("g", "t", 0)), encode_value(replace(RECORD, source_offset=-1))),
        (encode_key(GroupKey("g", "t", -1)), encode_value(RECORD)),
    ],
)
def test_what_is_no_record_is_refused_and_known_for_a_stray_by_its_key(
    key: bytes | None, value: bytes | None
) -> None:
    with pytest.raises(StateError) as refused:
        decode(key, value)
    of_a_group = key is not None and key.startswith(b'{"group":"g","topic":"t","partition":0')
    assert isinstance(refused.value, Stray) != of_a_group
