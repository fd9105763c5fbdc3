"""What operators have said of how a link runs: which of several sayings counts, what is forgotten, what is
refused."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from common.config import loading
from common.config.settings import Settings
from common.errors import ControlError, SettingsError
from common.link.control_state import Control
from common.link.link_status import in_force
from common.link.throttling import NO_LIMIT, Limit, Steering, rate
from tests.support.control_json import encode
from verbatim.commands.steering import checked, table
from verbatim.main import cli

TOPICS = ["a", "b", "ab", "other"]
ENTRIES = st.lists(st.sampled_from([*TOPICS, "a.*", ".*b", ".*"]), max_size=3)
LIMITS = st.builds(Limit, st.sampled_from([None, 1, 1000]), st.sampled_from([None, 7]))


def said(*records: tuple[str, dict[str, object]]) -> Control:
    control = Control()
    for offset, (kind, fields) in enumerate(records):
        control.apply(offset, encode(kind, **fields))
    return control


def topic(name: str) -> tuple[str, dict[str, object]]:
    return "topic", {"topic": name, "topic_id": f"id-{name}", "partitions": 3, "config": {}}


@given(st.lists(st.tuples(ENTRIES, st.booleans())))
def test_what_was_said_last_of_a_topic_counts(sayings: list[tuple[list[str], bool]]) -> None:
    steering, paused = Steering(), dict.fromkeys(TOPICS, False)
    for entries, pause in sayings:
        steering = steering.with_pause(entries, pause)
        for name in TOPICS:
            if not entries or any(re.fullmatch(entry, name) for entry in entries):
                paused[name] = pause
    assert {name: steering.paused_by(name) is not None for name in TOPICS} == paused
    if not any(pause for _, pause in sayings):
        assert steering == Steering(), "what takes back nothing is forgotten"


@given(st.lists(st.tuples(ENTRIES.filter(bool), LIMITS)))
def test_the_last_limit_of_a_topic_counts(sayings: list[tuple[list[str], Limit]]) -> None:
    steering, limits = Steering(), dict.fromkeys(TOPICS, NO_LIMIT)
    for entries, limit in sayings:
        steering = steering.with_limit(entries, limit)
        limits |= {n: limit for n in TOPICS if any(re.fullmatch(entry, n) for entry in entries)}
    assert {name: steering.limit_of(name) for name in TOPICS} == limits
    assert steering.link_limit == NO_LIMIT, "that of all together is another"
    assert len(steering.limits) <= 7


def test_the_limit_of_all_together_is_replaced_as_a_whole() -> None:
    steering = (
        Steering().with_limit([], Limit(5, 6)).with_limit(["a"], Limit(1)).with_limit([], Limit(None, 7))
    )
    assert (steering.link_limit, steering.limit_of("a"), steering.limit_of("b")) == (
        Limit(None, 7),
        Limit(1),
        NO_LIMIT,
    )
    assert steering.with_limit([], NO_LIMIT).limit_of("a") == Limit(1)


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [("1", 1), ("10MB", 10_000_000), ("1.5 KiB", 1536), ("2gib", 2 << 30), ("500kb", 500_000), ("12B", 12)],
)
def test_a_rate_has_a_unit(text: str, bytes_per_second: int) -> None:
    assert rate(text) == bytes_per_second


@pytest.mark.parametrize("text", ["", "0", "-1", "MB", "10Mbit", "1e6", "0.1B", "9" * 15 + "GB", "10 MB/s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected bytes a second"):
        rate(text)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("pause", {"topics": "orders", "paused": True}),
        ("pause", {"topics": ["broken("], "paused": True}),
        ("pause", {"topics": ["a,b"], "paused": True}),
        ("pause", {"topics": [""], "paused": True}),
        ("pause", {"topics": []}),
        ("pause", {"topics": [], "paused": 1}),
        ("limit", {"topics": [], "bytes_per_second": 0}),
        ("limit", {"topics": [], "bytes_per_second": 1.5}),
        ("limit", {"topics": [3], "records_per_second": 1}),
        ("limit", {"records_per_second": 1}),
    ],
)
def test_a_record_that_nobody_could_obey_is_refused(kind: str, fields: dict[str, object]) -> None:
    control = said(("pause", {"topics": ["orders"], "paused": True}))
    before = control.steering
    with pytest.raises(ControlError):
        control.apply(1, encode(kind, **fields))
    assert control.steering is before


def test_an_older_records_steering_is_not_changed_by_a_newer_one() -> None:
    """Threads that look at it must not see it change under them."""
    control = said(("pause", {"topics": ["orders"], "paused": True}))
    before = control.steering
    control.apply(1, encode("limit", topics=[], bytes_per_second=5, records_per_second=None))
    assert before == Steering(NO_LIMIT, (("orders", True),)) and control.steering.link_limit == Limit(5)


def settings_of(topics: str) -> Settings:
    return loading.load(
        {
            "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "s:1",
            "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "t:1",
            "KAFKA_CLUSTERS_SOURCE_TOPIC": topics,
        }
    )


def test_a_name_that_is_neither_copied_nor_selected_is_refused_and_an_expression_is_not() -> None:
    control = said(topic("orders"), ("pause", {"topics": ["gone"], "paused": True}))
    settings = settings_of("pay.*")
    assert checked(settings, ("orders", "new-.*, v[0-9]{1,2}", "gone", "payments"), control) == [
        "orders",
        "new-.*",
        "v[0-9]{1,2}",
        "gone",
        "payments",
    ]
    assert checked(settings, (), control) == []
    for wrong, why in (
        ("orderz", "orderz is not copied by this link, and KAFKA_CLUSTERS_SOURCE_TOPIC does not select it"),
        ("broken(", "no regular expression"),
        (",", "names no topic"),
    ):
        with pytest.raises(SettingsError, match=f"^TOPIC: .*{why}"):
            checked(settings, (wrong,), control)


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--none", "--records-per-second", "5"],
        ["--bytes-per-second", "much"],
        ["--records-per-second", "0"],
    ],
)
def test_a_limit_that_says_nothing_or_too_much_is_refused(args: list[str]) -> None:
    env = {
        "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "s:1",
        "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "t:1",
        "KAFKA_CLUSTERS_SOURCE_TOPIC": "orders",
    }
    found = CliRunner().invoke(cli.commands["limit"], args, env=env)
    assert isinstance(found.exception, SettingsError) or found.exit_code == 2


def test_what_is_in_force_is_shown_by_topic() -> None:
    settings = settings_of("orders,payments,later,late")
    control = said(
        *map(topic, ("orders", "payments", "unselected")),
        ("pause", {"topics": ["pay.*"], "paused": True}),
        ("limit", {"topics": ["orders", "late"], "bytes_per_second": 10_000_000, "records_per_second": None}),
        ("pause", {"topics": ["later", "no.longer.selected"], "paused": True}),
        ("limit", {"topics": [], "bytes_per_second": None, "records_per_second": 5000}),
    )
    assert table(in_force(settings, control)).splitlines() == [
        "TOPIC           STATE       BYTES/S     RECORDS/S  PAUSED BY",
        "(all together)  -           -           5,000      -",
        "late            not copied  10,000,000  -          -",
        "later           paused      -           -          later",
        "orders          running     10,000,000  -          -",
        "payments        paused      -           -          pay.*",
    ]
