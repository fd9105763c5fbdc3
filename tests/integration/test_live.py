"""Settings that change in the file while the applications run, on real brokers."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from common.config import loading
from common.config.live_reload import LiveFile
from common.config.settings import Settings
from offsets.service import Service
from tests.conftest import Kafka, Names
from tests.integration.test_destinations import alter, config
from tests.integration.test_offsets import commit, committed
from tests.support.brokers import Record, create_topic, produce
from tests.support.harness import (
    Link,
    Running,
    ThreadDeduplicator,
    ThreadReplicator,
    assert_copied,
    eventually,
)

TOPIC, EXCLUDE = "KAFKA_CLUSTERS_SOURCE_TOPIC", "KAFKA_CLUSTERS_SOURCE_TOPIC_EXCLUDE"


def test_a_running_link_follows_its_file(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise: a topic added to the file is copied from its beginning, one taken out stands still and goes on
    where it stood when it is back, settings of topics that no longer follow are left alone, all without a
    restart; a bad file changes nothing."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    first, second = names.topic("first"), names.topic("second")
    for topic in (first, second):
        create_topic(at, topic, 1)
        produce(at, topic, [Record(b"%d" % i) for i in range(10)])
    link = Link(at, to, names.link, first)
    file = tmp_path / "link.yaml"
    file.write_text(f"{TOPIC}: {first}\n")
    instances = [link.start_live(kind, file, TOPIC) for kind in (ThreadReplicator, ThreadDeduplicator)]
    try:
        eventually(lambda: link.arrived(first) == [10], "the first topic")
        file.write_text(f"{TOPIC}: 'broken('\n")
        eventually(lambda: caplog.text.count("is not taken over") == 2, "the warnings of both")
        file.write_text(
            f"{TOPIC}: {first},{second}\n{EXCLUDE}: {first}\nTOPIC_CONFIG_EXCLUDE: retention.ms\nPARALLELISM: 3\n"
        )
        eventually(lambda: link.arrived(second) == [10], "the second topic")
        assert "takes a restart: PARALLELISM" in caplog.text
        produce(at, first, [Record(b"%d" % i) for i in range(10, 20)])
        alter(at, second, retention_ms="77000000", segment_bytes="50000000")
        eventually(lambda: config(to, second)["segment.bytes"] == "50000000", "the segment's size")
        time.sleep(2)
        assert link.arrived(first) == [10]
        assert config(to, second)["retention.ms"] != "77000000"
        file.write_text(f"{TOPIC}: {first},{second}\nLOG_LEVEL: WARNING\n")
        eventually(lambda: link.arrived(first) == [20], "the first topic again")
        eventually(lambda: config(to, second)["retention.ms"] == "77000000", "the retention")
        assert logging.getLogger().level == logging.WARNING
    finally:
        logging.getLogger().setLevel(logging.INFO)
        for instance in instances:
            instance.stop()
    for topic in (first, second):
        assert_copied(link, topic)


def test_offsets_follows_its_file(source: Kafka, target: Kafka, names: Names, tmp_path: Path) -> None:
    """Promise: a group that the file lets in is translated from then on, in the interval that it says,
    without a restart."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic = names.topic()
    create_topic(at, topic, 1)
    produce(at, topic, [Record(b"%d" % i) for i in range(10)])
    link = Link(at, to, names.link, topic)
    assert link.copy() == (0, 0)
    for group in ("first", "second"):
        commit(at, f"{names.link}.{group}", topic, 4)
    file = tmp_path / "link.yaml"
    file.write_text(f"CONSUMER_GROUPS: {names.link}.first\nOFFSETS_INTERVAL: 1s\n")

    def load() -> Settings:
        return loading.load(environ=link.variables, config_file=file)

    running = Running(Service(load(), False, LiveFile(file, load)))
    try:
        eventually(lambda: committed(to, f"{names.link}.first", topic) == 4, "the first group")
        assert committed(to, f"{names.link}.second", topic) is None
        file.write_text(f"CONSUMER_GROUPS: {names.link}.first,{names.link}.second\nOFFSETS_INTERVAL: 1s\n")
        eventually(lambda: committed(to, f"{names.link}.second", topic) == 4, "the second group")
    finally:
        running.stop()
