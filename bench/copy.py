"""How fast a link catches up: both applications at once, on two real brokers of their own. Run: uv run python -m bench.copy

Prints records/s from the first record delivered to the last, CPU per record of both applications (all their processes), and their peak
memory. Figures of one machine are worth comparing only with figures of the same sitting.
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
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from verbatim.brokers import FULL_SPEED, Cluster

TOPIC = "bench"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Usage:
    """CPU seconds and peak resident bytes of a process and all its descendants."""

    cpu_s: float
    peak_bytes: int


class Watch:
    """Samples the processes of an application: CPU time of those that ended in between is kept."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu: dict[int, float] = {}
        self._peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def usage(self) -> Usage:
        return Usage(sum(self._cpu.values()), self._peak)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        turn = 0
        while not self._stop.wait(0.5):
            memory = 0
            for pid in descendants(self._pid):
                try:
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    # The kernel walks all pages for it: asked more often, it took a fifth of a core from what is measured.
                    memory += proportional_bytes(pid) if turn % 8 == 0 else 0
                except OSError:
                    continue
                self._cpu[pid] = (int(fields[11]) + int(fields[12])) / TICKS
            self._peak = max(self._peak, memory)
            turn += 1


def descendants(root: int) -> list[int]:
    """A process and all below it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += parents.get(pid, [])
    return found


def proportional_bytes(pid: int) -> int:
    """Memory of a process, shared pages divided among those who share them: forked workers share much."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def load(bootstrap: str, records: int, size: int, partitions: int) -> None:
    """Fill the source topic: values half random, half repeated, so that compression finds about half to do."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, partitions, 1, config={"retention.ms": "-1"})])[TOPIC].result(30)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 500_000,
        }
    )
    rng = random.Random(7)
    values = [rng.randbytes(size // 2) + b"v" * (size - size // 2) for _ in range(1000)]
    for i in range(records):
        while True:
            try:
                producer.produce(TOPIC, values[i % 1000], b"key-%d" % (i % 10_000), partition=i % partitions)
                break
            except BufferError:
                producer.poll(0.1)
        if not i % 1000:
            producer.poll(0)
    if producer.flush(120):
        raise SystemExit("the source topic could not be filled")


def delivered(admin: AdminClient, partitions: int) -> int:
    """Offsets at the destination, transaction markers included: near enough to follow progress by."""
    asked = {TopicPartition(TOPIC, p): OffsetSpec.latest() for p in range(partitions)}
    try:
        found = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=5)
        return sum(future.result(6).offset for future in found.values())
    except Exception:  # noqa: BLE001 - not made yet, or a broker that is slow under the load
        return 0


def start(application: str, environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    command = [str(Path(sys.executable).with_name(application))]
    return subprocess.Popen(command, env=environment, stdout=log.open("wb"), stderr=subprocess.STDOUT)


@click.command()
@click.option("--records", default=3_000_000, show_default=True)
@click.option("--size", default=200, show_default=True, help="Bytes of a value.")
@click.option("--partitions", default=4, show_default=True)
@click.option(
    "--rounds",
    default=1,
    show_default=True,
    help="Links one after the other, over the same brokers, which warm up.",
)
@click.option("--output", type=click.Choice(["text", "json"]), default="text")
def main(records: int, size: int, partitions: int, rounds: int, output: str) -> None:
    """Copy a topic through both applications and say how fast it went."""
    with (
        tempfile.TemporaryDirectory(prefix="verbatim-bench-") as folder,
        Cluster(heap="1g", jvm_options=FULL_SPEED) as source,
        Cluster(heap="1g", jvm_options=FULL_SPEED) as target,
    ):
        load(source.bootstrap_servers, records, size, partitions)
        for number in range(rounds):
            result = one_round(Path(folder), source, target, records, partitions, number)
            if output == "json":
                click.echo(json.dumps({"records": records, "size": size, "partitions": partitions, **result}))
            else:
                click.echo(
                    f"{records} records of {size} B, {partitions} partitions: {result['records_per_s']:,.0f} records/s, "
                    f"{result['cpu_us_per_record']:.2f} us CPU per record, first record after {result['first_after_s']:.1f} s, "
                    f"peak memory {result['replicator']['peak_bytes'] >> 20} + {result['deduplicator']['peak_bytes'] >> 20} MiB"
                )


def one_round(
    folder: Path, source: Cluster, target: Cluster, records: int, partitions: int, number: int
) -> dict:
    environment = {
        **os.environ,
        "APPLICATION_NAME": f"bench{number}",
        "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": source.bootstrap_servers,
        "KAFKA_CLUSTERS_SOURCE_TOPIC": TOPIC,
        "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": target.bootstrap_servers,
        "KAFKA_CLUSTERS_DESTINATION_TOPIC": TOPIC,
        "STATE_PATH": str(folder / f"state{number}"),
        "HEALTH_PORT": "0",
    }
    admin = AdminClient({"bootstrap.servers": target.bootstrap_servers})
    base = delivered(admin, partitions)
    began = time.monotonic()
    processes = {
        name: start(name, environment, folder / f"{name}{number}.log")
        for name in ("replicator", "deduplicator")
    }
    watches = {name: Watch(process.pid) for name, process in processes.items()}
    try:
        first = last = 0.0
        cpu_at_first = 0.0
        seen = 0
        while time.monotonic() - began < 600:
            if any(process.poll() is not None for process in processes.values()):
                raise SystemExit(
                    "an application ended:\n"
                    + "\n".join((folder / f"{n}{number}.log").read_text()[-2000:] for n in processes)
                )
            now, found = time.monotonic(), delivered(admin, partitions) - base
            if found and not first:
                first, first_count, cpu_at_first = now, found, sum(w.usage().cpu_s for w in watches.values())
            if found >= records:
                last = now
                break
            seen = found
            time.sleep(0.1)
        else:
            raise SystemExit(f"only {seen} of {records} records delivered in time")
        time.sleep(0.3)
        usage = {name: watch.usage() for name, watch in watches.items()}
        cpu = sum(u.cpu_s for u in usage.values()) - cpu_at_first
        return {
            "records_per_s": (records - first_count) / (last - first),
            "cpu_us_per_record": cpu / (records - first_count) * 1e6,
            "first_after_s": first - began,
            **{name: asdict(u) for name, u in usage.items()},
        }
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait(20)
        for watch in watches.values():
            watch.stop()


if __name__ == "__main__":
    main()
