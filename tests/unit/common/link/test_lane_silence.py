"""Which lane hangs: one that was heard, and is not any more, while others are; and what they say that may not
be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from confluent_kafka import KafkaError

from common import ports
from common.link import lane_counters
from common.link.lane_counters import HANGS_S, TALKS_S, CounterTail

TERM, EPOCH = 3, 7
FIRST = 1000.0
"""When the first lane of the epoch was heard."""
SAID = f"lane 0 has said nothing for {HANGS_S:.0f} s, though others have: it hangs"


class Words:
    """A consumer of what lanes say."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def consume(self, *_: object) -> list[Any]:
        given, self.waiting = self.waiting, []
        return given

    def say(self, application: str, lane: int, term: int = TERM, epoch: int = EPOCH) -> None:
        key = orjson.dumps({"metrics": application, "lane": lane})
        value = orjson.dumps({"term": term, "epoch": epoch})
        self.waiting.append(
            SimpleNamespace(
                error=lambda: None, key=lambda: key, value=lambda: value, timestamp=lambda: (0, 1)
            )
        )


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at = [FIRST]
    monkeypatch.setattr(ports, "monotonic", lambda: at[0])
    return at


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> Words:
    made = Words()
    monkeypatch.setattr(lane_counters.CounterTail, "_reader", lambda _: made)
    return made


def heard(words: Words) -> CounterTail:
    tail = CounterTail("replicator", "positions", {})
    for lane in (0, 1):
        words.say("replicator", lane)
    tail.listen()
    return tail


def test_a_lane_that_is_not_heard_any_more_hangs_if_another_is(now: list[float], words: Words) -> None:
    tail = heard(words)
    for _ in range(int(HANGS_S / 10)):
        now[0] += 10
        words.say("replicator", 1)
        tail.listen()
        assert tail.silence(TERM, EPOCH, 2, FIRST) is None
    now[0] += 1
    assert tail.silence(TERM, EPOCH, 2, FIRST) == SAID
    assert tail.silence(TERM, EPOCH + 1, 2, None) is None
    assert tail.silence(TERM + 1, EPOCH, 2, None) is None
    words.say("replicator", 0)
    tail.listen()
    assert tail.silence(TERM, EPOCH, 2, FIRST) is None


def test_one_alone_hangs_if_the_other_application_is_heard(now: list[float], words: Words) -> None:
    """The lanes of one that were told to end say nothing while they wait for each other."""
    tail = heard(words)
    now[0] += HANGS_S + 1
    words.say("deduplicator", 0)
    tail.listen()
    assert tail.silence(TERM, EPOCH, 2, FIRST) == SAID


def test_where_nobody_is_heard_it_is_not_the_lanes(now: list[float], words: Words) -> None:
    """Promise: a positions topic that can't be read or written, or a driver that slept, ends no lane."""
    tail = heard(words)
    now[0] += HANGS_S + 1
    assert tail.silence(TERM, EPOCH, 2, FIRST) is None
    words.say("deduplicator", 0)
    tail.listen()
    now[0] += TALKS_S + 1
    assert tail.silence(TERM, EPOCH, 2, FIRST) is None


def test_a_lane_that_never_begins_hangs_too(now: list[float], words: Words) -> None:
    """Promise: what hangs before its first word does not keep the others of its epoch waiting for its end,
    for good."""
    tail = CounterTail("replicator", "positions", {})
    words.say("replicator", 0, epoch=EPOCH - 1)
    words.say("replicator", 5, epoch=EPOCH - 1)
    tail.listen()
    now[0] += HANGS_S
    words.say("replicator", 1)
    tail.listen()
    assert tail.silence(TERM, EPOCH, 2, now[0]) is None
    now[0] += 1
    assert tail.silence(TERM, EPOCH - 1, 6, FIRST) is not None
    now[0] += HANGS_S - 1
    words.say("replicator", 1)
    tail.listen()
    assert tail.silence(TERM, EPOCH, 2, now[0] - HANGS_S) is None
    assert tail.silence(TERM, EPOCH, 2, now[0] - HANGS_S - 1) == SAID


def test_where_no_lane_of_the_epoch_was_heard_none_hangs(now: list[float], words: Words) -> None:
    """Promise: one that may not write its counters, or waits for executors, is no lane that hangs."""
    tail = CounterTail("replicator", "positions", {})
    now[0] += HANGS_S + 1
    words.say("deduplicator", 0)
    tail.listen()
    assert tail.silence(TERM, EPOCH, 2, None) is None


def test_words_that_may_not_be_read_are_told_of_once(
    now: list[float], words: Words, caplog: pytest.LogCaptureFixture
) -> None:
    denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    tail = CounterTail("replicator", "positions", {})
    for _ in range(2):
        words.waiting = [SimpleNamespace(error=lambda: denied)]
        tail.listen()
    (line,) = [r.getMessage() for r in caplog.records if r.name == lane_counters.__name__]
    assert line.startswith("what the lanes have done can't be read, and is not shown: ")
