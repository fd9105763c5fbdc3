"""Bounded runs: they say that they have caught up when Kafka says so, whatever Spark and the lanes report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from common import ports
from common.errors import VerbatimError
from common.link.lane_progress import Done, encode
from common.link.lane_work import Work
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, produce
from tests.support.harness import Link, Running, ThreadDeduplicator, ThreadReplicator, assert_copied


def silent(plan: dict[str, Any]) -> Iterator[str]:
    """A lane that copies nothing, and reports an end like any other."""
    yield encode(Done(Work(Counter(records=0))))


@pytest.fixture
def link(source: Kafka, target: Kafka, names: Names) -> Link:
    topic = names.topic("orders")
    create_topic(source.bootstrap_servers, topic, 2)
    produce(source.bootstrap_servers, topic, [Record(b"%d" % i, partition=i % 2) for i in range(6)])
    return Link(source.bootstrap_servers, target.bootstrap_servers, names.link, topic)


def test_lanes_that_report_an_end_with_nothing_copied_are_not_believed(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: exit code 0 only after what is committed was compared with the ends that were given; else an
    error that says where it stands."""
    monkeypatch.setattr(ports, "sleep", lambda _: None)

    class IdleReplicator(ThreadReplicator):
        run_lane = staticmethod(silent)

    class IdleDeduplicator(ThreadDeduplicator):
        run_lane = staticmethod(silent)

    topic = link.settings.named_topics[0]
    with pytest.raises(VerbatimError, match=rf"2 partitions are not caught up, {topic}-0 is at 0 of 3"):
        Running(IdleReplicator(link.settings, True)).wait()
    assert link.replicate() == 0
    with pytest.raises(VerbatimError, match=rf"{link.settings.staging_topic}-0 is at 0 of \d"):
        Running(IdleDeduplicator(link.settings, True)).wait()
    assert link.deduplicate() == 0
    assert_copied(link, topic)
