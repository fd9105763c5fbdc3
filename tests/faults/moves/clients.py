"""Producers and consumers of a scenario, as people write them: records are numbered, transactions commit and
abort among them, and a group that is stopped has committed what it has read."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaException, Message, Producer

from tests.faults.moves.oracle import History, Read
from tests.support.brokers import member

CALL_S = 20.0
PAUSE_S = 0.03
READ_S = 0.05
"""Between two looks of a consumer that is to stay behind."""


class Load:
    """Writes a few records at a time to each topic, wherever that is written now, until stopped."""

    def __init__(self, clusters: Mapping[str, str], partitions: int, history: History, seed: int) -> None:
        self._clusters, self._partitions, self._history = clusters, partitions, history
        self._random = random.Random(seed)
        self._plain: dict[str, Producer] = {}
        self._transactional: dict[str, Producer] = {}
        self._at: dict[str, str] = {}
        self._others = 0
        self._name = f"load-{seed}-{time.time_ns()}"
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def write(self, topics: Collection[str], cluster: str | None) -> None:
        """From now on the topics are written at this cluster, or not at all; none of what was written before
        is on its way any more."""
        with self._lock:
            for topic in topics:
                self._at.pop(topic, None)
                if cluster is not None:
                    self._at[topic] = cluster
        self._raise()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(CALL_S * 2)
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stop.wait(PAUSE_S):
                with self._lock:
                    for topic, cluster in self._at.items():
                        self._burst(topic, cluster)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asks
            self._error = error

    def _burst(self, topic: str, cluster: str) -> None:
        partition, count = self._random.randrange(self._partitions), self._random.randint(1, 4)
        kind = self._random.choice(["plain", "plain", "plain", "commit", "abort"])
        there = self._history.written[topic, partition]
        if kind == "plain":
            producer = self._plain.get(cluster)
            if producer is None:
                producer = self._plain[cluster] = Producer(self._config(cluster))
        else:
            producer = self._in_transactions(cluster)
            producer.begin_transaction()
        for number in range(count):
            name = str(len(there) + number)
            if kind == "abort":
                self._others += 1
                name = f"aborted {self._others}"
            producer.produce(topic, name.encode(), b"key", partition, on_delivery=_acknowledged)
        if kind == "plain":
            if producer.flush(CALL_S):
                raise TimeoutError(f"writing to {topic} at the {cluster}")
        elif kind == "commit":
            producer.commit_transaction(CALL_S)
        else:
            producer.flush(CALL_S)
            producer.abort_transaction(CALL_S)
        if kind != "abort":
            there += [cluster] * count

    def _in_transactions(self, cluster: str) -> Producer:
        if cluster not in self._transactional:
            producer = Producer(self._config(cluster) | {"transactional.id": f"{self._name}-{cluster}"})
            producer.init_transactions(CALL_S)
            self._transactional[cluster] = producer
        return self._transactional[cluster]

    def _config(self, cluster: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._clusters[cluster],
            "linger.ms": 0,
            "enable.idempotence": True,
            "retry.backoff.ms": 10,
            "log_level": 0,
        }


def _acknowledged(error: Any, message: Message) -> None:
    if error is not None:
        raise KafkaException(error)


class Reader:
    """A member of a group, until stopped; what it has read it has committed."""

    def __init__(
        self, bootstrap: str, cluster: str, group: str, topics: Collection[str], history: History
    ) -> None:
        self.pause_s = READ_S
        self.cluster, self.group, self._history = cluster, group, history
        self._consumer = member(bootstrap, group, *topics, log_level=0)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(CALL_S * 2)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._read()
                time.sleep(self.pause_s)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that stops it
            self._error = error
        finally:
            self._consumer.close()

    def _read(self) -> None:
        found = self._consumer.consume(5 if self.pause_s else 200, 0.1)
        mine = []
        for message in found:
            if message.error() is not None:
                continue
            topic, partition, value = message.topic(), message.partition(), message.value()
            assert topic is not None and partition is not None and value is not None
            mine.append(Read(self.cluster, topic, partition, value.decode()))
        if mine:
            # Whoever is stopped has committed: what it read and could not commit it would read again, and
            # nobody could help that.
            self._consumer.commit(asynchronous=False)
            self._history.read[self.group] += mine
