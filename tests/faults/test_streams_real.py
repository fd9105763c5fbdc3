"""A real Kafka Streams application (its jars come from Maven Central) is moved to the target in the midst of
its work, with what it keeps in topics."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.spark.jars import KAFKA_LOGGING, classpath, java
from tests.conftest import Kafka, Names
from tests.integration.test_group_moves import move
from tests.support.beside import beside
from tests.support.brokers import Record, create_topic, produce, read_all, topics, wait_until
from tests.support.harness import Link, eventually
from verbatim.local.applications import Application
from verbatim.local.kafka_cluster import LOG4J, QUICK_START

STREAMS = "org.apache.kafka:kafka-streams:4.3.1"
WORDS = [f"word-{i}" for i in range(20)]
PARTITIONS = 3
KEPT = {"retention.ms": "-1"}


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A class path with the application."""
    if shutil.which("javac") is None:
        pytest.skip("no Java compiler is here")
    folder, jars = tmp_path_factory.mktemp("classes"), classpath(KAFKA_LOGGING, STREAMS)
    source = Path(__file__).parents[1] / "support" / "CountWords.java"
    subprocess.run(["javac", "-cp", jars, "-d", folder, source], check=True)
    return f"{folder}:{jars}"


@contextmanager
def counting(
    classes: str, folder: Path, group: str, at: str, words: str, counts: str, protocol: str, purge_ms: int
) -> Iterator[Application]:
    """The application, with an empty state directory; stopped as by an operator when the block ends."""
    folder.mkdir()
    logging = folder / "log4j2.properties"
    logging.write_text(LOG4J)
    command = [java(), "-Xmx256M", *QUICK_START, f"-Dlog4j2.configurationFile={logging}", "-cp", classes]
    command += ["CountWords", group, at, words, counts, protocol, str(folder / "state"), str(purge_ms)]
    application = Application("streams", {}, folder, command)
    application.start()
    try:
        yield application
    finally:
        application.stop()
        application.kill()


@contextmanager
def speaking(at: str, topic: str, said: Counter[str]) -> Iterator[None]:
    """Words, until the block ends."""

    def speak(stop: threading.Event) -> None:
        n = 0
        while not stop.wait(0.05):
            batch = [WORDS[i % len(WORDS)] for i in range(n, n + 30)]
            produce(at, topic, [Record(w.encode(), partition=i % PARTITIONS) for i, w in enumerate(batch)])
            said.update(batch)
            n += 30

    with beside(speak):
        yield


def counted(at: str, topic: str) -> dict[str, int]:
    """The last count of each word."""
    last: dict[str, int] = {}
    for partition in read_all(at, topic):
        for record in partition:
            assert record.key is not None and record.value is not None
            word, count = record.key.decode(), int(record.value)
            assert count > last.get(word, 0), f"{word}: {count} behind {last[word]}"
            last[word] = count
    return last


@pytest.mark.timeout(300)
@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_a_real_kafka_streams_application_goes_on_at_the_target_and_counts_each_record_once(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path, classes: str, protocol: str
) -> None:
    """Promise: stopped in the midst, moved with its changelog and repartition topics, and started at the
    target: each word is counted once, though producers stay at the source."""
    at, to, group = source.bootstrap_servers, target.bootstrap_servers, f"{names.link}.count"
    words, counts = names.topic("words"), f"{names.link}.counts"
    create_topic(at, words, PARTITIONS, KEPT)
    for bootstrap in (at, to):
        create_topic(bootstrap, counts, PARTITIONS, KEPT)
    own = rf"{names.link}\.count-.*"
    link = Link(at, to, names.link, f"{words},{own}", CONSUMER_GROUPS=group.replace(".", r"\."))
    said: Counter[str] = Counter()
    with link.running(), speaking(at, words, said):
        app = (classes, tmp_path / "source", group, at, words, counts, protocol, 30_000)
        with counting(*app) as application:
            eventually(lambda: len(counted(at, counts)) == len(WORDS), "counts at the source", 90)
            assert application.ended() is None, application.log_tail()
            report, code = move(link, group, "--dry-run")
            assert code == 0 and "members at the source" in str(report), report
        before = counted(at, counts)
        kept = {f"{group}-words-repartition", f"{group}-counts-changelog"}
        assert kept <= topics(at)
        eventually(lambda: said[WORDS[0]] > before[WORDS[0]] + 50, "words that it has not counted", 90)
        report, code = move(link, group, wait_s=60)
        assert code == 0, report
        assert kept <= topics(to)
        app = (classes, tmp_path / "target", group, to, words, counts, protocol, 30_000)
        with counting(*app) as application:
            eventually(lambda: len(counted(to, counts)) == len(WORDS), "counts at the target", 90)
            wait_until(lambda: said[WORDS[0]] > before[WORDS[0]] + 100, "more words", 90)
            assert application.ended() is None, application.log_tail()
    with counting(classes, tmp_path / "rest", group, to, words, counts, protocol, 30_000), link.running():
        eventually(lambda: counted(to, counts) == said, "each word to be counted once", 90)
    assert min(before.values()) > 0 and all(said[word] > count for word, count in before.items())
