"""Real processes of the applications, and what can happen to them; a load at the source; an independent look
at the outcome."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer

from common.spark.session import DAEMON
from tests.support.brokers import Seen, read_all
from verbatim.local.applications import descendants, processes
from verbatim.local.processes import spawn

BIN = Path(sys.executable).parent
READY_S = 120.0
# Silent: that a broker which was killed refuses connections is no news.
_LOADING: dict[str, str | int | bool] = {"linger.ms": 5, "log_level": 0}


class Process:
    """One instance of an application, started as an operator would, with its whole family of processes."""

    def __init__(
        self,
        application: str,
        environment: dict[str, str],
        log: Path,
        *arguments: str,
        command: list[str] | None = None,
        mark: str | None = None,
    ) -> None:
        """`command` stands for the application's console script. Whatever process has the variable `mark`
        (NAME=VALUE) in its environment belongs to the family as well."""
        self.application = application
        self.log = log
        self._mark = mark
        # Whatever becomes of the test, its end is the driver's, and the driver's is that of Spark's JVM.
        self._process = spawn([*(command or [str(BIN / application)]), *arguments], log, environment)

    @property
    def pid(self) -> int:
        return self._process.pid

    def family(self) -> list[int]:
        found = descendants(self._process.pid, processes())
        return found if self._mark is None else [*found, *sorted(set(with_variable(self._mark)) - set(found))]

    def workers(self) -> list[int]:
        """The processes that move bytes: Spark's Python workers, children of the daemon of ours that forks
        them, or a light application's lanes."""
        commands = {pid: command_of(pid) for pid in self.family()}
        daemons = {pid for pid, command in commands.items() if f"-m {DAEMON} " in command}
        lanes = [pid for pid, command in commands.items() if "rounds.light lane " in command]
        return [pid for pid in daemons if _parent(pid) in daemons] + lanes

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self, everything: bool = True) -> None:
        """kill -9: of all its processes, as when a container dies, or of the driver alone."""
        for pid in self.family() if everything else [self._process.pid]:
            _signal(pid, signal.SIGKILL)
        self._process.wait(20)

    def pause(self) -> None:
        for pid in self.family():
            _signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self.family():
            _signal(pid, signal.SIGCONT)

    def terminate(self, timeout_s: float = 15.0) -> int:
        """SIGTERM; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout_s)

    def wait(self, timeout_s: float) -> int:
        return self._process.wait(timeout_s)

    def end(self) -> None:
        """Whatever state it is in, nothing of it is left."""
        if self.alive():
            self.resume()
            self.kill()

    def said(self) -> str:
        return self.log.read_text(errors="replace")


def with_variable(variable: str) -> list[int]:
    """The processes that have a variable (NAME=VALUE), or one that begins so where that ends with a slash."""
    mark = variable.encode() + (b"" if variable.endswith(os.sep) else b"\0")
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return -1


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@dataclass(frozen=True)
class Batches:
    """What a load's record batches are like. `large`: of 64 KiB and more, which are copied as they are; else
    of some KiB, or of a few records where they are `tiny`."""

    codec: str = "none"
    large: bool = False
    tiny: bool = False

    def of_producer(self) -> dict[str, Any]:
        found: dict[str, Any] = {"compression.type": self.codec}
        if self.tiny:
            found["batch.num.messages"] = 6
        return found | {"linger.ms": 200, "batch.size": 1 << 20} if self.large else found

    def value(self, number: int, rng: random.Random) -> bytes:
        """Of some compressible and some random bytes."""
        size = rng.randint(300, 900) if self.large else rng.randint(0, 100)
        return b"%d:%s%s" % (number, rng.randbytes(size), b"x" * size)


class Load:
    """Writes records to a topic until stopped, in bursts, each record different; some in transactions, of
    which some abort and some stay open while others write."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        seed: int,
        per_second: int = 2000,
        batches: Batches = Batches(),
    ) -> None:
        self.written = 0
        self.unsure = 0
        """Records of transactions whose end failed."""
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self.per_second = per_second
        self._arguments = (bootstrap, topic, partitions)
        self._batches = batches
        self._number = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """The number of records that a read-committed reader sees."""
        self._stop.set()
        self._thread.join(60)
        if self._error is not None:
            raise self._error
        return self.written

    def _run(self) -> None:
        try:
            self._write(*self._arguments)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that stops it
            self._error = error

    def _write(self, bootstrap: str, topic: str, partitions: int) -> None:
        own = _LOADING | self._batches.of_producer() | {"bootstrap.servers": bootstrap}
        plain = Producer(own | {"enable.idempotence": True})
        transactional = _transactional(own, topic)
        while not self._stop.is_set():
            kind = self._random.choice(["plain", "plain", "commit", "abort"])
            if kind == "plain":
                self._burst(plain, topic, partitions)
                continue
            transactional.begin_transaction()
            count = self._produce(transactional, topic, partitions)
            # Or the records may never reach the log, and there is nothing to abort; and nothing that stays
            # open.
            transactional.flush(30)
            for _ in range(self._random.choice([0, 0, 1, 4])):
                # A read-committed reader gets it only once the transaction that is open has ended.
                self._burst(plain, topic, partitions)
            try:
                _end_transaction(transactional, kind == "commit")
            except KafkaException:
                # The source was hurt, and the transaction with it: what became of it the log alone can tell.
                self.unsure += count
                transactional = _transactional(own, topic)
                continue
            self.written += count if kind == "commit" else 0
            time.sleep(count / self.per_second)

    def _burst(self, producer: Producer, topic: str, partitions: int) -> None:
        """Some records outside of transactions, acknowledged, and a pause that keeps to the pace."""
        began, per_second = time.monotonic(), self.per_second
        count = self._produce(producer, topic, partitions)
        producer.flush(30)
        self.written += count
        time.sleep(max(0.0, count / per_second - (time.monotonic() - began)))

    def _produce(self, producer: Producer, topic: str, partitions: int) -> int:
        count = self._random.randint(1, max(1, self.per_second // 5))
        for number in range(self._number, self._number + count):
            producer.produce(
                topic,
                None if number % 97 == 0 else self._batches.value(number, self._random),
                None if number % 11 == 0 else b"key-%d" % (number % 1000),
                partition=self._random.randrange(partitions),
                headers=[("n", b"%d" % number), ("n", None)] if number % 5 == 0 else None,
            )
            producer.poll(0)
        self._number += count
        return count


def _transactional(config: dict[str, Any], topic: str) -> Producer:
    producer = Producer(config | {"transactional.id": f"load-{topic}"})
    _patiently(lambda: producer.init_transactions(10))
    return producer


def _end_transaction(producer: Producer, commit: bool) -> None:
    _patiently(lambda: producer.commit_transaction(10) if commit else producer.abort_transaction(10))


def _patiently(call: Callable[[], None]) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def contents(partition: list[Seen]) -> list[tuple[object, ...]]:
    return [(r.key, r.value, r.headers, r.timestamp) for r in partition]


def assert_equal(source: str, target: str, topic: str) -> int:
    """Record by record, partition by partition: the destination is the source. The number of records."""
    there = [contents(p) for p in read_all(source, topic)]
    here = [contents(p) for p in read_all(target, topic)]
    assert len(here) == len(there)
    for number, (a, b) in enumerate(zip(there, here, strict=True)):
        first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        assert a == b, (
            f"{topic}-{number}: {len(a)} records at the source, {len(b)} delivered, first difference at {first}"
        )
    return sum(map(len, there))


def assert_mapped(source: str, target: str, topic: str, mappings_topic: str) -> None:
    """Each source record is mapped by exactly one run to the offset of the equal record; by a reader of its
    own."""
    there, here = read_all(source, topic), read_all(target, topic)
    at_target = [{r.offset: r for r in partition} for partition in here]
    mapped: dict[tuple[int, int], int] = {}
    for partition in read_all(target, mappings_topic):
        for record in partition:
            mapping = json.loads(record.value or b"{}")
            if mapping["topic"] != topic:
                continue
            for first, destination, length in mapping["runs"]:
                for i in range(length):
                    key = (mapping["partition"], first + i)
                    assert key not in mapped, f"{key} is mapped twice"
                    mapped[key] = destination + i
    for number, partition in enumerate(there):
        offsets = [mapped.pop((number, r.offset)) for r in partition]
        assert offsets == sorted(set(offsets)), f"mapping of {topic}-{number} is not monotone"
        for record, offset in zip(partition, offsets, strict=True):
            assert contents([record]) == contents([at_target[number][offset]])
    assert not mapped, f"mapped, but not at the source: {sorted(mapped)[:3]}"


def forget_positions(target: str, positions_topic: str) -> None:
    """Take every position away, as if the topic had been lost: a compacted topic's records can only be
    buried."""
    producer = Producer({"bootstrap.servers": target})
    for key in {record.key for partition in read_all(target, positions_topic) for record in partition}:
        producer.produce(positions_topic, None, key)
    assert producer.flush(30) == 0


@contextmanager
def ended(*processes: Process) -> Iterator[None]:
    """Nothing started in the block outlives it."""
    try:
        yield
    finally:
        for process in processes:
            process.end()


def environment(source: str, target: str, link: str, topic: str, folder: Path, **more: str) -> dict[str, str]:
    """Variables of an application's process; its scratch files lie in a folder of the test's own."""
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("KAFKA_", "SPARK_", "STREAMS_"))}
    return {
        **kept,
        "TMPDIR": str(scratch),
        "APPLICATION_NAME": link,
        "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": source,
        "KAFKA_CLUSTERS_SOURCE_TOPIC": topic,
        "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": target,
        "STATE_PATH": str(folder / "state"),
        "STAGING_PARTITIONS": "4",
        "TOPIC_REFRESH_INTERVAL": "2s",
        "HEALTH_PORT": "0",
        **more,
    }
