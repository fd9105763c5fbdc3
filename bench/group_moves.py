"""How long it takes to move very many consumer groups, and whether each goes on where it stood. Run: uv run
python -m bench.group_moves

Replicator, deduplicator and `offsets` run, and producers go on. Each group has read a part of a topic of its
own, and its consumers have left.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.clusters import Broker, two_brokers
from bench.copiers import Copier, destination, verbatim_with_groups
from common.errors import VerbatimError

_LINK = "moves"
_RECORDS = 100
"""Of each partition, before the groups have read a part of them."""
_RATE = 1_000
"""Records a second, meanwhile."""
_CALL_S = 60.0
_START_S = 300.0

Positions = dict[tuple[str, int], int]
"""Topic and partition -> offset."""


@click.command()
@click.option("--groups", default=100, show_default=True)
@click.option("--partitions", default=10, show_default=True, help="That each of them reads.")
@click.option("--seed", default=1, show_default=True)
def main(groups: int, partitions: int, seed: int) -> None:
    """Move them all by one command, and say what it took."""
    topics = {f"g-{i:04}": f"read-{i:04}" for i in range(groups)}
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="verbatim-bench-") as folder, two_brokers(Path(folder)) as pair:
        pair.source.create(list(topics.values()), partitions)
        producer = Producer({"bootstrap.servers": pair.source.bootstrap_servers})
        places = [(topic, p) for topic in topics.values() for p in range(partitions)]
        for n in range(_RECORDS):
            for topic, p in places:
                producer.produce(topic, b"%d" % n, partition=p)
            producer.flush(_CALL_S)
        stood = {at: chance.randrange(_RECORDS) for at in places}
        for group, topic in topics.items():
            _commit(pair.source, group, {at: offset for at, offset in stood.items() if at[0] == topic})
        variables, applications = verbatim_with_groups(pair, _LINK, "read-.*", Path(folder))
        with Copier(_LINK, "", applications) as copier:
            copier.start()
            with _producing(producer, places):
                copies = [destination(_LINK, topic) for topic in topics.values()]
                _wait_for(pair.target, copies, partitions, copier)
                # Those of a link that has gone on for a while.
                time.sleep(30.0)
                report, seconds = _moved(variables)
        done = [found for found in report["groups"] if found["state"] == "done"]
        if len(done) != groups:
            raise VerbatimError(f"{len(done)} of {groups} were moved: {report.get('refused')}")
        wrong = _wrong(pair.target, topics, stood)
        click.echo(
            f"{groups} groups of {len(places):,} partitions moved in {report['seconds']:.1f} s"
            f" ({seconds:.1f} s with the command's start); {len(wrong)} partitions go on elsewhere than they stood"
        )
        if wrong:
            raise VerbatimError(f"wrong: {wrong[:5]}")


@contextmanager
def _producing(producer: Producer, places: list[tuple[str, int]]) -> Iterator[None]:
    stop = threading.Event()

    def load() -> None:
        n = 0
        while not stop.wait(0.02):
            for _ in range(_RATE // 50):
                topic, p = places[n % len(places)]
                producer.produce(topic, b"later", partition=p)
                n += 1
            producer.poll(0)
        producer.flush(_CALL_S)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _wait_for(target: Broker, copies: list[str], partitions: int, copier: Copier) -> None:
    visible, give_up = target.visible(copies, partitions), time.monotonic() + _START_S
    while visible() < _RECORDS * partitions * len(copies):
        copier.check()
        if time.monotonic() > give_up:
            raise VerbatimError(f"not copied within {_START_S:.0f} s")
        time.sleep(1.0)


def _moved(variables: dict[str, str]) -> tuple[dict[str, Any], float]:
    """What the command says, as a process of its own; seconds that it took."""
    command = [str(Path(sys.executable).with_name("verbatim")), "move-group", "--matching", "g-.*"]
    began = time.monotonic()
    run = subprocess.run(
        [*command, "--output", "json"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - began
    if run.returncode:
        raise VerbatimError(f"exit code {run.returncode}: {run.stderr[-2000:]}{run.stdout[-2000:]}")
    return json.loads(run.stdout), seconds


def _commit(cluster: Broker, group: str, at: Positions) -> None:
    asked = [TopicPartition(topic, p, offset) for (topic, p), offset in at.items()]
    request = [ConsumerGroupTopicPartitions(group, asked)]
    give_up = time.monotonic() + _CALL_S
    while True:
        found = cluster.admin.alter_consumer_group_offsets(request)[group].result(_CALL_S)
        if all(p.error is None for p in found.topic_partitions):
            return
        if time.monotonic() > give_up:  # the first group of a cluster waits for its coordinator
            raise VerbatimError(f"{group}: offsets can't be committed: {found.topic_partitions[0].error}")
        time.sleep(0.2)


def _wrong(target: Broker, topics: dict[str, str], stood: Positions) -> list[str]:
    """The partitions whose group would not read next the record that it would have read at the source."""
    admin, wrong = AdminClient({"bootstrap.servers": target.bootstrap_servers}), []
    config = {
        "bootstrap.servers": target.bootstrap_servers,
        "group.id": "bench",
        "isolation.level": "read_committed",
    }
    with closing(Consumer({**config, "enable.auto.commit": False})) as consumer:
        for group, topic in topics.items():
            copy = destination(_LINK, topic)
            of_group = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
            places = [p for p in of_group.result(_CALL_S).topic_partitions if p.topic == copy]
            consumer.assign(places)
            first: dict[int, bytes | None] = {}
            give_up = time.monotonic() + _CALL_S
            while len(first) < len(places) and time.monotonic() < give_up:
                for message in consumer.consume(1000, 0.2):
                    first.setdefault(message.partition() or 0, message.value())
            for (name, p), offset in stood.items():
                if name == topic and first.get(p) != b"%d" % offset:
                    wrong.append(f"{group}: {copy}-{p}: {first.get(p)!r} and not {offset}")
    return wrong


if __name__ == "__main__":
    main()
