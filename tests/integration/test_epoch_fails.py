"""A lane of the deduplicator outlives what its driver knows of it: the next epoch's takes over from it, and
they do not fence each other."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

from common.errors import KafkaTimeout
from common.link.lane_progress import Done, encode
from common.link.lane_work import Work
from common.spark.lane_jobs import Progress
from deduplicator.lane.lane import Lane
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, produce
from tests.support.harness import Link, assert_copied, eventually

UNDER_LOAD_S = 6.0
STAGING = 2


@pytest.mark.parametrize(
    "what",
    [pytest.param("one of two lanes fails", marks=pytest.mark.whole), "an old term's lanes report late"],
)
def test_deliveries_of_one_term_do_not_fence_each_other(
    source: Kafka,
    target: Kafka,
    names: Names,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
) -> None:
    """Promise: each staging partition changes hands once or twice. (After a restart of the target they fenced
    each other for a minute and a
    half: its driver had lost its lead, led again, took for the end of its first epoch what the old term's
    lanes reported as they gave up, and began the second one beside it. A lane that failed left the others of
    its epoch to do the same.)"""
    caplog.set_level(logging.INFO, "deduplicator.lane.delivery")
    topic, fails, step = names.topic("orders"), threading.Event(), Lane._step
    create_topic(source.bootstrap_servers, topic, 4)

    def failing(self: Lane) -> bool:
        if fails.is_set() and self.term.epoch == 1 and 0 in self.deliveries:
            raise KafkaTimeout("a lane that fails")
        return step(self)

    monkeypatch.setattr(Lane, "_step", failing)
    link = Link(source.bootstrap_servers, target.bootstrap_servers, names.link, topic)
    with link.running() as (_, deduplicator):
        driver: Any = deduplicator.application
        written, until = 0, time.monotonic() + 60.0
        while time.monotonic() < until:
            produce(source.bootstrap_servers, topic, [Record(b"%d" % i, partition=i % 4) for i in range(8)])
            written += 8
            if until - time.monotonic() > UNDER_LOAD_S and sum(link.arrived(topic)) > 0:
                until = time.monotonic() + UNDER_LOAD_S
                if what.startswith("one"):
                    fails.set()
                else:
                    driver.reports.put([Progress(driver.term - 1, driver.epoch, encode(Done(Work())))])
        eventually(lambda: sum(link.arrived(topic)) == written, "all to arrive")
    owned = [record.getMessage() for record in caplog.records if "owned" in record.getMessage()]
    # Twice at the start: the destination takes only smaller batches.
    assert STAGING <= len(owned) <= 5 * STAGING, owned
    assert_copied(link, topic)
