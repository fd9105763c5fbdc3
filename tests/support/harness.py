"""Runs the applications inside a test: all of them but Spark, whose part (running lanes, reporting rows)
threads play.

Real brokers, the production driver loop, planner, lanes and deliveries. What only Spark or a killed process
can show is tested with real processes (tests/faults, tests/integration/test_processes.py). State lives in the
mappings alone unless a test brings a table.
"""

from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from common.app.application import Application
from common.app.instance import Instance
from common.config import loading
from common.config.live_reload import LiveFile
from common.config.settings import Settings
from common.kafka.errors import kafka_error, retriable
from common.link.control_state import Control
from common.link.offset_mappings import Mapping, decode
from common.spark.lane_jobs import Progress
from common.spark.lane_task import Plan, RunLane
from deduplicator.driver.acl_replication import AclReplication
from deduplicator.driver.letter_topic import LetterTopic
from deduplicator.driver.route_topics import RouteTopics
from deduplicator.main import Deduplicator
from deduplicator.state.snapshot import FoldResult, Snapshot
from replicator.main import Replicator
from tests.support.brokers import Record, Seen, produce, read_all, topic_id, wait_until
from tests.support.control_json import encode


class ThreadQuery:
    """Stands in for common.spark.lane_jobs.LaneJobs: one thread a lane, plans still travel as JSON."""

    def __init__(self, run_lane: RunLane, on_epoch: Callable[[list[Progress]], None]) -> None:
        self._run_lane = run_lane
        self._on_epoch = on_epoch
        self._failure: str | None = None
        self._epochs: list[threading.Thread] = []

    @property
    def active(self) -> bool:
        return self._failure is None

    def failure(self) -> str | None:
        return self._failure

    def submit(self, lanes: list[Plan]) -> None:
        self._failure = None
        epoch = threading.Thread(
            target=self._epoch, args=([json.dumps(lane) for lane in lanes],), daemon=True
        )
        self._epochs.append(epoch)
        epoch.start()

    def stop(self) -> None:
        for epoch in self._epochs:
            epoch.join(20)

    close = stop

    def _epoch(self, plans: list[str]) -> None:
        rows: list[Progress] = []

        def lane(plan: str) -> None:
            try:
                given = json.loads(plan)
                rows.extend(Progress(given["term"], given["epoch"], said) for said in self._run_lane(given))
            except BaseException:  # noqa: BLE001 - the query's failure, whatever it is, as in Spark
                self._failure = traceback.format_exc()

        threads = [threading.Thread(target=lane, args=(plan,), daemon=True) for plan in plans]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is None:
            self._on_epoch(rows)


class NoTable:
    """A state table that was never written: everything is in the mappings."""

    def load(self) -> Snapshot:
        return Snapshot()

    def fold(self) -> FoldResult:
        return FoldResult({}, {}, {}, 0, {}, 0)


class InThreads(Application):
    """Mixed into an application: no Spark."""

    lanes = 2

    def start_spark(self) -> None:
        self.lanes_wanted = self.lanes

    def stop_spark(self) -> None:
        pass

    def stand_by(self) -> None:
        pass

    def make_jobs(self) -> Any:
        return ThreadQuery(type(self).run_lane, self.reports.put)


class ThreadReplicator(InThreads, Replicator):
    """The replicator without Spark."""


class ThreadDeduplicator(InThreads, Deduplicator):
    """The deduplicator without Spark; `table` is its state table."""

    table: Any = NoTable()

    def became_leader(self) -> None:
        from deduplicator.driver.destinations import Destinations

        self.state = self.table
        self.destinations = Destinations(self.settings, self.link, self.control)
        self.destinations.settle(again=True)
        self.letter_topic = LetterTopic(self.settings, self.control)
        self.letter_topic.settle(again=True)
        self.route_topics = RouteTopics(self.settings, self.link, self.control)
        self.route_topics.settle(again=True)
        self.acls = AclReplication(self.settings, self.control)
        self.acls.settle(again=True)


class Running:
    """An application running in a thread; `stop` as by SIGTERM."""

    def __init__(self, application: Instance) -> None:
        self.application = application
        self.code: int | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.code = self.application._run()
        except BaseException as error:  # noqa: BLE001 - for the test to raise
            self.error = error

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def stop(self, timeout_s: float = 20) -> None:
        self.application.stopping.set()
        self.wait(timeout_s)

    def wait(self, timeout_s: float = 60) -> int | None:
        """The exit code; raises what the application raised, TimeoutError if it goes on."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"{self.application.health.application} did not end within {timeout_s} s")
        if self.error is not None:
            raise self.error
        return self.code


def stop_all(instances: Collection[Running], timeout_s: float) -> None:
    """Each is told before any is waited for; raises what one raised."""
    for instance in instances:
        instance.application.stopping.set()
    for instance in instances:
        instance.wait(timeout_s)


class Link:
    """A link under test: its settings, and ways to run its applications."""

    def __init__(self, source: str, target: str, name: str, topics: str, **variables: str) -> None:
        self.source = source
        self.target = target
        self.variables = {
            "APPLICATION_NAME": name,
            "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": source,
            "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": target,
            "KAFKA_CLUSTERS_SOURCE_TOPIC": topics,
            "STAGING_PARTITIONS": "2",
            "TOPIC_REFRESH_INTERVAL": "1s",
            "HEALTH_PORT": "0",
            **variables,
        }

    @property
    def settings(self) -> Settings:
        return loading.load(environ=self.variables)

    def replicate(self, **kwargs: Any) -> int | None:
        """Run the replicator until it has caught up; its exit code."""
        return Running(ThreadReplicator(self.settings, True)).wait(**kwargs)

    def deduplicate(self, **kwargs: Any) -> int | None:
        """Run the deduplicator until it has caught up; its exit code."""
        return Running(ThreadDeduplicator(self.settings, True)).wait(**kwargs)

    def copy(self) -> tuple[int | None, int | None]:
        """Run one after the other until caught up; their exit codes."""
        return self.replicate(), self.deduplicate()

    def start_replicator(self) -> Running:
        """A replicator that goes on until it is stopped."""
        return Running(ThreadReplicator(self.settings, False))

    def start_live(
        self, application: type[ThreadReplicator | ThreadDeduplicator], file: Path, *left_out: str
    ) -> Running:
        """One that goes on until it is stopped, and follows the file; variables left out are the file's to
        say."""
        environ = {name: value for name, value in self.variables.items() if name not in left_out}

        def load() -> Settings:
            return loading.load(environ=environ, config_file=file)

        return Running(application(load(), False, LiveFile(file, load)))

    def start_deduplicator(self) -> Running:
        """A deduplicator that goes on until it is stopped."""
        return Running(ThreadDeduplicator(self.settings, False))

    @contextmanager
    def running(self, replicators: int = 1, deduplicators: int = 1) -> Iterator[list[Running]]:
        """Both applications, until the block ends, which begins when the link is made: a command that comes
        before is refused. Raises what either raised."""
        instances: list[Running] = [self.start_replicator() for _ in range(replicators)]
        instances += [self.start_deduplicator() for _ in range(deduplicators)]
        try:
            wait_until(
                lambda: self.control().identity or any(one.ended for one in instances),
                "the link to be made",
                90,
            )
            yield instances
        finally:
            stop_all(instances, 30)

    def control(self) -> Control:
        """What the control topic says now; nothing, where there is none yet."""
        state = Control()
        for partition in read_all(self.target, self.settings.control_topic):
            for record in partition:
                state.apply(record.offset, record.value)
        return state

    def accept_loss(self, topic: str, partition: int, next_offset: int | None, to: int) -> None:
        """An operator's consent: go on at `to`, although what lies between `next_offset` and it is gone."""
        said = encode(
            "accept-loss",
            topic=topic,
            topic_id=topic_id(self.source, topic),
            partition=partition,
            next=next_offset,
            to=to,
            reason="accepted by a test",
        )
        produce(self.target, self.settings.control_topic, [Record(said)])

    def accept_destination(self, *destinations: str) -> None:
        """An operator's consent to write into these."""
        said = encode("accept-destination", destinations=destinations)
        produce(self.target, self.settings.control_topic, [Record(said)])

    def halted(self) -> dict[tuple[str, int], str]:
        """(topic, partition) -> reason, of what stands still."""
        return {(halt.topic, key[1]): halt.reason for (_, key), halt in self.control().halts.items()}

    def mappings(self, topic: str, of_id: str | None = None) -> dict[int, list[Mapping]]:
        """Partition -> mapping records of a topic, in order; `of_id` where the topic has been made again."""
        found: dict[int, list[Mapping]] = {}
        for partition in read_all(self.target, self.settings.mappings_topic):
            for record in partition:
                mapping = decode(record.value)
                if mapping.topic == topic and of_id in (None, mapping.topic_id):
                    found.setdefault(mapping.partition, []).append(mapping)
        return found

    def arrived(self, topic: str) -> list[int]:
        """How many records each partition of a destination topic holds; empty while there is no such topic,
        or it is only just being made."""
        try:
            return [len(partition) for partition in read_all(self.target, topic)]
        except KeyError:
            return []
        except KafkaException as error:
            reason = kafka_error(error)
            if reason is None or not retriable(reason):
                raise
            return []


Contents = tuple[bytes | None, bytes | None, Any, int]


def contents(record: Seen) -> Contents:
    """Everything of a record that must be equal on both sides."""
    return (record.key, record.value, record.headers, record.timestamp)


def assert_copied(
    link: Link, topic: str, destination: str | None = None, there: list[list[Seen]] | None = None
) -> None:
    """Every partition of the destination holds exactly the source's records, in order, and the mappings say
    so.

    `there` are the records expected, where they are no longer what the source holds.
    """
    there = there if there is not None else read_all(link.source, topic)
    here = read_all(link.target, destination or topic)
    assert [len(p) for p in here] == [len(p) for p in there]
    for partition, (got, expected) in enumerate(zip(here, there, strict=True)):
        wrong = [e.offset for g, e in zip(got, expected, strict=True) if contents(g) != contents(e)]
        assert not wrong, f"records of {topic}-{partition} with source offsets {wrong} differ"
    assert_mapped(link, topic, there, here)


def assert_mapped(
    link: Link, topic: str, there: list[list[Seen]], here: list[list[Seen]], of_id: str | None = None
) -> None:
    """The mappings take each record `there` to the offset of the equal record `here`, in order, and leave no
    offset out."""
    mappings = link.mappings(topic, of_id)
    for partition, expected in enumerate(there):
        records = mappings.get(partition, [])
        assert records or not expected, f"{topic}-{partition} has no mappings"
        at: int | None = None
        pairs: list[tuple[int, int]] = []
        for mapping in records:
            assert mapping.destination_partition == partition
            assert at is None or mapping.start == at, f"{topic}-{partition}: after {at} comes {mapping.start}"
            at = mapping.next
            run = [(s + i, d + i) for s, d, length in mapping.runs for i in range(length)]
            assert all(mapping.start <= s < mapping.next for s, _ in run)
            assert mapping.records == len(run)
            pairs += run
        assert [s for s, _ in pairs] == [r.offset for r in expected]
        assert all(a[1] < b[1] for a, b in pairwise(pairs))
        held = {r.offset: contents(r) for r in here[partition]}
        assert [held.get(d) for _, d in pairs] == [contents(r) for r in expected]


def eventually(check: Callable[[], Any], what: str, timeout_s: float = 30.0) -> Any:
    """Wait until `check` returns something true, and return that."""
    return wait_until(check, what, timeout_s)
