"""What an instance shows of its link: from what its main loop has read, whoever asks for it."""

from __future__ import annotations

import orjson
import pytest

from common.app.group_state import GroupState
from common.app.health import Health
from common.app.link_view import status
from common.link.control_kinds import Halted, Leader, Pause
from tests.support.made_up_link import MadeUp


@pytest.fixture
def made() -> MadeUp:
    made = MadeUp({"orders": 2, "paid": 1})
    made.speak(10_000, 100, lag=5, delays=[(12, 100)])
    made.look(10_000)
    made.speak(20_000, 200, lag=5, delays=[(12, 180), (900, 20)])
    made.look(20_000)
    return made


def states(found: dict[str, object]) -> dict[str, str]:
    parts = found["flow"]
    assert isinstance(parts, list)
    return {part["part"]: part["state"] for part in parts}


def test_before_anything_is_known_an_instance_tells_of_itself() -> None:
    found = status(Health("replicator"), 1000)
    assert found["known"] is False and found["instance"]["role"] == "starting"
    assert "flow" not in found


def test_the_whole_link_is_told(made: MadeUp) -> None:
    found = made.look(30_000, seconds=3)
    assert (found["link"], found["source"], found["target"]) == ("east", "src-1", "tgt-1")
    assert [(line["topic"], line["lag"], line["per_second"]) for line in found["topics"]] == [
        ("orders", 10, 30.0),
        ("paid", 5, 30.0),
    ]
    assert found["lag"] == 15
    assert [(line["topic"], line["partition"]) for line in found["partitions"]] == [
        ("orders", 0), ("orders", 1), ("paid", 0),
    ]  # fmt: skip
    of = {line["application"]: line for line in found["applications"]}
    assert of["deduplicator"]["records_per_second"] == 60.0
    assert of["deduplicator"]["instance"] == "host-2-7"
    assert of["replicator"]["bytes_per_second"] == 6000.0
    assert "offsets" not in of
    assert orjson.loads(orjson.dumps(found)) == found


def test_the_instance_that_translates_groups_tells_how_they_stand(made: MadeUp) -> None:
    """Promise: one line for each group, in order; none where another application is asked."""
    assert made.look(30_000)["groups"] == []
    made.health.groups = {"b": GroupState(held_back=2, moved=5), "a": GroupState(3, 1, 0, 9, 29_000)}
    assert made.look(30_000)["groups"] == [
        {
            "group": "a",
            "exact": 3,
            "behind": 1,
            "held_back": 0,
            "written": 9,
            "in_step_ms": 29_000,
            "moved": 0,
        },
        {"group": "b", "exact": 0, "behind": 0, "held_back": 2, "written": 0, "in_step_ms": None, "moved": 5},
    ]


def test_each_ten_seconds_are_a_sample(made: MadeUp) -> None:
    history = made.look(22_000, seconds=2)["history"]
    assert history["at_ms"] == [10_000, 20_000]
    assert history["records_per_second"] == [None, 60.0]
    assert history["lag"] == [15, 15]
    assert history["p50_s"][0] is None and 0.01 < history["p50_s"][1] < 0.025
    assert history["p99_s"][1] > 0.5


def test_nothing_is_looked_at_more_often_than_needed(made: MadeUp) -> None:
    first = made.health.seen
    made.look(20_500, seconds=0.5)
    assert made.health.seen is first


def test_what_the_control_topic_says_is_added_up_when_it_says_more(made: MadeUp) -> None:
    first = made.health.seen
    made.look(30_000)
    assert first and made.health.seen and made.health.seen.told is first.told
    made.say(Pause(("orders",), True))
    assert made.look(40_000)["topics"][0]["paused"]


def test_what_one_look_saw_is_not_changed_by_the_next(made: MadeUp) -> None:
    seen = made.health.seen
    assert seen
    before = dict(seen.heard)
    made.speak(30_000, 300)
    made.look(30_000)
    assert seen.heard == before


def test_a_halt_is_told_where_it_is_and_makes_its_application_bad(made: MadeUp) -> None:
    made.say(Halted("deduplicator", "paid", "id-paid", 0, "key-missing", "no key"))
    found = made.look(21_000)
    assert [halt["reason"] for halt in found["halts"]] == ["key-missing"]
    assert found["partitions"][2]["halted"] == "key-missing"
    assert states(found)["deduplicator"] == "bad" and states(found)["replicator"] == "ok"


def test_each_part_of_the_link_has_its_state(made: MadeUp) -> None:
    assert states(made.look(21_000)) == {
        "source": "ok", "replicator": "ok", "staging": "ok", "deduplicator": "ok", "target": "ok", "offsets": "unknown",
    }  # fmt: skip
    made.health.source_reached, made.health.target_reached = None, False
    found = states(made.look(60_000))
    assert (found["source"], found["target"]) == ("unknown", "bad")
    assert (found["replicator"], found["deduplicator"]) == ("ok", "bad"), (
        "this one leads; the other is silent"
    )
    made.say(Pause((), True))
    assert states(made.look(61_000))["replicator"] == "warn"


def test_an_application_that_was_never_heard_of_is_not_judged() -> None:
    made = MadeUp({"orders": 1}, application="offsets")
    made.say(Leader("offsets", "host-9"))
    found = made.look(1000)
    assert states(found) == {
        "source": "ok", "replicator": "unknown", "staging": "unknown", "deduplicator": "unknown", "target": "ok", "offsets": "ok",
    }  # fmt: skip
    assert found["lag"] is None and found["partitions"] == []
