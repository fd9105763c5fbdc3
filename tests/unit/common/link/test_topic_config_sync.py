"""Destinations: which are refused, those that would alter, refuse or delete what is copied; and what is
changed to be in step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kafka.model import Value
from common.link.control_kinds import SourceTopic
from common.link.topic_config_sync import (
    NEEDED,
    Change,
    Rules,
    after,
    differences,
    first_config,
    narrower,
    refusal,
    settled,
)

WIDE = str(2**63 - 1)
SOURCE = {
    "cleanup.policy": "delete",
    "retention.ms": "1000",
    "retention.bytes": "-1",
    "max.message.bytes": "1000",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": "3600000",
}
FIT = {**SOURCE, "message.timestamp.before.max.ms": WIDE, "message.timestamp.after.max.ms": WIDE}


def refused(destination: dict[str, Any], source: dict[str, Any] | None = None) -> str | None:
    return refusal(
        SourceTopic("orders", "id", 1, {**SOURCE, **(source or {})}), "copy", {**FIT, **destination}
    )


@pytest.mark.parametrize(
    ("destination", "source"),
    [
        ({}, {}),
        ({"retention.ms": "1001", "max.message.bytes": "1001"}, {}),
        ({"retention.ms": "-1"}, {"retention.ms": "-1"}),
        ({"retention.bytes": "5"}, {"retention.bytes": "5"}),
        ({"cleanup.policy": "compact"}, {"cleanup.policy": "compact"}),
        ({"cleanup.policy": "compact,delete"}, {"cleanup.policy": "delete,compact"}),
        ({"cleanup.policy": "delete", "retention.ms": "-1"}, {"cleanup.policy": "compact"}),
        ({"cleanup.policy": "compact", "retention.ms": "1"}, {"cleanup.policy": "compact"}),
        ({"cleanup.policy": "", "retention.ms": "1"}, {}),
        # The source replaces timestamps; the copy keeps those that it gave.
        ({}, {"message.timestamp.type": "LogAppendTime"}),
        ({"message.timestamp.after.max.ms": "3600000"}, {}),
    ],
)
def test_a_destination_that_keeps_everything_is_fit(
    destination: dict[str, str], source: dict[str, str]
) -> None:
    assert refused(destination, source) is None


@pytest.mark.parametrize(
    ("key", "destination", "source"),
    [
        ("message.timestamp.type", {"message.timestamp.type": "LogAppendTime"}, {}),
        (
            "message.timestamp.type",
            {"message.timestamp.type": "LogAppendTime"},
            {"message.timestamp.type": "LogAppendTime"},
        ),
        ("max.message.bytes", {"max.message.bytes": "999"}, {}),
        ("message.timestamp.before.max.ms", {"message.timestamp.before.max.ms": str(2**63 - 2)}, {}),
        ("message.timestamp.after.max.ms", {"message.timestamp.after.max.ms": "3599999"}, {}),
        (
            "message.timestamp.after.max.ms",
            {"message.timestamp.after.max.ms": "3600000"},
            {"message.timestamp.after.max.ms": WIDE},
        ),
        ("cleanup.policy", {"cleanup.policy": "compact"}, {}),
        ("cleanup.policy", {"cleanup.policy": "compact,delete"}, {}),
        ("retention.ms", {"retention.ms": "999"}, {}),
        ("retention.ms", {"retention.ms": "1000"}, {"retention.ms": "-1"}),
        ("retention.bytes", {"retention.bytes": "5"}, {}),
        ("retention.bytes", {"retention.bytes": "5"}, {"retention.bytes": "6"}),
        # A compacted source keeps the last record of each key for ever, whatever its retention says.
        ("retention.ms", {"cleanup.policy": "delete"}, {"cleanup.policy": "compact"}),
        ("retention.ms", {"cleanup.policy": "compact,delete"}, {"cleanup.policy": "compact"}),
    ],
)
def test_one_that_does_not_is_refused_by_name(
    key: str, destination: dict[str, str], source: dict[str, str]
) -> None:
    why = refused(destination, source)
    assert why is not None and "copy" in why and "orders" in why
    assert f"{key}={ {**FIT, **destination}[key] }" in why
    assert "\n" not in why


# --- in step

FOLLOW = Rules("min.insync.replicas", "source")
OWN_DEFAULTS = Rules("", "target")


def topic(explicit: dict[str, str], **defaults: str) -> SourceTopic:
    config = {name.replace("_", "."): value for name, value in defaults.items()}
    return SourceTopic("orders", "id", 1, SOURCE | config | explicit, frozenset(explicit))


def set_here(**values: str) -> dict[str, Value]:
    return {name.replace("_", "."): Value(value, True) for name, value in values.items()}


def default(**values: str) -> dict[str, Value]:
    return {name.replace("_", "."): Value(value, False) for name, value in values.items()}


def made(changes: list[Change]) -> dict[str, str | None]:
    return {change.key: change.to for change in changes if change.kept is None}


def kept(changes: list[Change]) -> set[str]:
    return {change.key for change in changes if change.kept is not None}


def test_what_the_source_sets_is_followed_but_for_what_is_excluded_unknown_or_verbatims_own() -> None:
    source = topic(
        {
            "segment.bytes": "9",
            "min.insync.replicas": "2",
            "message.timestamp.type": "LogAppendTime",
            "leader.replication.throttled.replicas": "0:1",
            "of.a.newer.release": "1",
        }
    )
    there = default(
        segment_bytes="5",
        min_insync_replicas="1",
        message_timestamp_type="CreateTime",
        leader_replication_throttled_replicas="",
    )
    assert made(differences(source, there, {}, FOLLOW)) == {"segment.bytes": "9"}


def test_what_the_source_does_not_set_follows_the_default_that_was_chosen() -> None:
    source = topic({}, segment_ms="7")
    for there in (default(segment_ms="8"), set_here(segment_ms="8")):
        assert made(differences(source, there, {}, FOLLOW)) == {"segment.ms": "7"}
    assert made(differences(source, set_here(segment_ms="8"), {}, OWN_DEFAULTS)) == {"segment.ms": None}
    assert differences(source, default(segment_ms="8"), {}, OWN_DEFAULTS) == []


@pytest.mark.parametrize(
    ("key", "short", "long"),
    [
        ("retention.ms", "10", "1000"),
        ("retention.ms", "1000", "-1"),
        ("retention.bytes", "10", "-1"),
        ("max.message.bytes", "10", "1000"),
        ("cleanup.policy", "compact,delete", "compact"),
        ("cleanup.policy", "compact,delete", "delete"),
    ],
)
def test_a_narrower_value_is_widened_whoever_set_it_and_whichever_default_is_followed(
    key: str, short: str, long: str
) -> None:
    for source in (topic({key: long}), topic({}, **{key: long})):
        for explicit in (True, False):
            for rules in (FOLLOW, OWN_DEFAULTS):
                changes = differences(source, {key: Value(short, explicit)}, {}, rules)
                assert made(changes) == {key: long}


@pytest.mark.parametrize(
    ("key", "short", "long"),
    [("retention.ms", "10", "-1"), ("retention.bytes", "10", "1000"), ("cleanup.policy", "compact", "")],
)
def test_a_longer_retention_is_shortened_only_where_the_link_or_nobody_set_it(
    key: str, short: str, long: str
) -> None:
    source = topic({key: short})
    theirs = differences(source, {key: Value(long, True)}, {}, FOLLOW)
    assert made(theirs) == {} and kept(theirs) == {key}
    assert made(differences(source, {key: Value(long, True)}, {key: long}, FOLLOW)) == {key: short}
    assert made(differences(source, {key: Value(long, False)}, {}, FOLLOW)) == {key: short}


def test_the_largest_record_allowed_is_never_lowered() -> None:
    source = topic({"max.message.bytes": "10"})
    for explicit in (True, False):
        changes = differences(
            source, {"max.message.bytes": Value("20", explicit)}, {"max.message.bytes": "20"}, FOLLOW
        )
        assert made(changes) == {}


def test_a_retention_that_the_source_no_longer_sets_follows_it_and_never_the_targets_default() -> None:
    source = topic({}, retention_ms="1000")
    there = set_here(retention_ms="5000")
    assert made(differences(source, there, {"retention.ms": "5000"}, OWN_DEFAULTS)) == {
        "retention.ms": "1000"
    }
    assert differences(source, there, {}, OWN_DEFAULTS) == []


def test_order_and_blanks_of_policies_are_no_difference() -> None:
    source = topic({"cleanup.policy": "compact,delete"})
    assert differences(source, set_here(cleanup_policy="delete, compact"), {}, FOLLOW) == []


def test_a_value_that_equalled_the_sources_follows_it_later() -> None:
    there = set_here(retention_ms="1000", segment_ms="3") | default(retention_bytes="-1")
    before = topic({"retention.ms": "1000"}, segment_ms="4")
    ours = settled(before, there, {}, FOLLOW)
    assert ours == {"retention.ms": "1000"}
    shorter = topic({"retention.ms": "500"})
    assert made(differences(shorter, there, ours, FOLLOW))["retention.ms"] == "500"


def test_what_the_link_has_set_follows_again_once_it_is_excluded_no_longer() -> None:
    excluded = Rules("retention.ms", "source")
    source = topic({"retention.ms": "500"})
    there = set_here(retention_ms="1000", segment_ms="3")
    ours = settled(source, there, {"retention.ms": "1000", "segment.ms": "4"}, excluded)
    assert differences(source, there, ours, excluded) == [] and ours == {"retention.ms": "1000"}
    assert made(differences(source, there, ours, FOLLOW))["retention.ms"] == "500"
    # Somebody's own by now.
    there = set_here(retention_ms="2000")
    ours = settled(source, there, ours, excluded)
    assert ours == {} and kept(differences(source, there, ours, FOLLOW)) == {"retention.ms"}


def test_a_new_destination_begins_with_what_it_needs() -> None:
    source = topic({"retention.ms": "5"}, segment_ms="4")
    assert first_config(source, FOLLOW) == FIT | {"retention.ms": "5"}
    assert first_config(source, OWN_DEFAULTS).keys() == {k for k in FIT if "timestamp" in k} | {
        "retention.ms"
    }


limits = st.sampled_from(["-1", "1", "1000", "1001"])
policies = st.sampled_from(["delete", "compact", "compact,delete", ""])
configs = st.fixed_dictionaries(
    {
        "cleanup.policy": policies,
        "retention.ms": limits,
        "retention.bytes": limits,
        "max.message.bytes": st.sampled_from(["1", "1000", "1001"]),
    }
)


@given(configs, configs, st.sets(st.sampled_from(NEEDED)), st.sets(st.sampled_from(NEEDED)), st.booleans())
def test_in_step_nothing_is_deleted_or_refused_that_the_source_keeps_and_a_second_look_changes_nothing(
    want: dict[str, str], have: dict[str, str], explicit: set[str], here: set[str], followed: bool
) -> None:
    source = SourceTopic("orders", "id", 1, want, frozenset(explicit))
    there = {key: Value(value, key in here) for key, value in have.items()}
    rules = FOLLOW if followed else OWN_DEFAULTS
    changes = differences(source, there, {}, rules)
    then = after(there, changes, source)
    for key in NEEDED:
        left_alone = key in kept(changes)
        # A policy that somebody has set at the target is left alone, and refused where it does not fit.
        assert left_alone or not narrower(key, then[key].value, want[key])
        if key != "cleanup.policy":
            assert not narrower(key, then[key].value, want[key])
    assert made(differences(source, then, settled(source, then, {}, rules), rules)) == {}
