"""One lane of the deduplicator fails and the other goes on, as one does that Spark can't reach: the next epoch's lane takes over from it."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from common.errors import KafkaTimeout
from deduplicator.lane import Lane
from tests.brokers import Record, create_topic, produce
from tests.conftest import Kafka, Names
from tests.harness import Link, assert_copied, eventually

UNDER_LOAD_S = 5.0
STAGING = 2


def test_deliveries_of_an_epoch_that_failed_do_not_fence_those_of_the_next(
    source: Kafka,
    target: Kafka,
    names: Names,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Promise: the old lane is told before there is a new one, so each staging partition changes hands once. (They fenced each other for as
    long as the old epoch lasted: after a restart of the target, a minute and a half.)"""
    caplog.set_level(logging.INFO, "deduplicator.delivery")
    topic, fails, step = names.topic("orders"), threading.Event(), Lane._step
    create_topic(source.bootstrap_servers, topic, 4)

    def failing(self: Lane) -> bool:
        if fails.is_set() and self.term.epoch == 1 and 0 in self.deliveries:
            raise KafkaTimeout("a lane that fails")
        return step(self)

    monkeypatch.setattr(Lane, "_step", failing)
    link = Link(source.bootstrap_servers, target.bootstrap_servers, names.link, topic)
    with link.running():
        written = 0
        until = time.monotonic() + 60.0
        while time.monotonic() < until:
            produce(source.bootstrap_servers, topic, [Record(b"%d" % i, partition=i % 4) for i in range(8)])
            written += 8
            if not fails.is_set() and sum(link.arrived(topic)) > 0:
                fails.set()
                until = time.monotonic() + UNDER_LOAD_S
        eventually(lambda: sum(link.arrived(topic)) == written, "all to arrive")
    owned = [record.getMessage() for record in caplog.records if "owned" in record.getMessage()]
    assert 2 * STAGING <= len(owned) <= 3 * STAGING, owned
    assert_copied(link, topic)
