"""Runs the applications inside a test: all of them but Spark, whose part (running lanes, reporting rows) threads play.

Real brokers, the production driver loop, planner, lanes and deliveries. What only Spark or a killed process can show is tested with
real processes (tests/faults, tests/integration/test_processes.py). State lives in the mappings alone unless a test brings a table.
"""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from common.application import Application
from common.lanes import Plan, Progress, RunLane
from common.settings import Settings
from deduplicator.main import Deduplicator
from deduplicator.state import FoldResult, Snapshot
from replicator.main import Replicator


class ThreadQuery:
    """Stands in for common.lanes.LaneQuery: one thread a lane, plans still travel as JSON."""

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

    def start(self) -> None:
        self._failure = None

    def submit(self, lanes: list[Plan]) -> None:
        epoch = threading.Thread(target=self._epoch, args=([json.dumps(lane) for lane in lanes],), daemon=True)
        self._epochs.append(epoch)
        epoch.start()

    def stop(self) -> None:
        for epoch in self._epochs:
            epoch.join(20)

    close = stop

    def _epoch(self, plans: list[str]) -> None:
        rows: list[Progress] = []

        def lane(number: int, plan: str) -> None:
            try:
                for kind, body in self._run_lane(json.loads(plan)):
                    rows.append(Progress(number, kind, json.loads(json.dumps(body))))
            except BaseException:
                self._failure = traceback.format_exc()

        threads = [threading.Thread(target=lane, args=pair, daemon=True) for pair in enumerate(plans)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is None:
            self._on_epoch(rows)


class NoTable:
    """A state table that was never written: everything is in the mappings."""

    def load(self, partitions: Any = None) -> Snapshot:
        return Snapshot.empty()

    def fold_now(self) -> FoldResult:
        return FoldResult({}, {}, {}, 0, 0, {}, 0, 0.0)


class InThreads(Application):
    """Mixed into an application: no Spark."""

    lanes = 2

    def start_spark(self) -> None:
        self.lanes_wanted = self.lanes

    def stop_spark(self) -> None:
        pass

    def make_query(self) -> Any:
        return ThreadQuery(type(self).run_lane, self.epochs.put)


class ThreadReplicator(InThreads, Replicator):
    """The replicator without Spark."""


class ThreadDeduplicator(InThreads, Deduplicator):
    """The deduplicator without Spark; `table` is its state table."""

    table: Any = NoTable()

    def took_over(self) -> None:
        from deduplicator.destinations import Destinations

        self.state = self.table
        self.destinations = Destinations(self.settings, self.link, self.control)
        self.destinations.settle(again=True)


class Running:
    """An application running in a thread; `stop` as by SIGTERM."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.code: int | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.code = self.application._run()
        except BaseException as error:
            self.error = error

    def stop(self, timeout_s: float = 20) -> None:
        self.application.stopping.set()
        self.wait(timeout_s)

    def wait(self, timeout_s: float = 60) -> int | None:
        """The exit code; raises what the application raised, TimeoutError if it goes on."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the {self.application.name} did not end within {timeout_s} s")
        if self.error is not None:
            raise self.error
        return self.code


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
        return Settings.load(environ=self.variables)

    def replicate(self, **kwargs: Any) -> int | None:
        """Run the replicator until it has caught up; its exit code."""
        return Running(ThreadReplicator(self.settings, True)).wait(**kwargs)

    def deduplicate(self, **kwargs: Any) -> int | None:
        """Run the deduplicator until it has caught up; its exit code."""
        return Running(ThreadDeduplicator(self.settings, True)).wait(**kwargs)

    def copy(self) -> tuple[int | None, int | None]:
        """Run one after the other until caught up; their exit codes."""
        return self.replicate(), self.deduplicate()

    @contextmanager
    def running(self, replicators: int = 1, deduplicators: int = 1) -> Iterator[list[Running]]:
        """Both applications, until the block ends; raises what either raised."""
        instances: list[Running] = [Running(ThreadReplicator(self.settings, False)) for _ in range(replicators)]
        instances += [Running(ThreadDeduplicator(self.settings, False)) for _ in range(deduplicators)]
        try:
            yield instances
        finally:
            for instance in instances:
                instance.application.stopping.set()
            for instance in instances:
                instance.wait(30)


def eventually(check: Callable[[], Any], what: str, timeout_s: float = 30.0) -> Any:
    """Wait until `check` returns something true, and return that."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := check():
            return found
        time.sleep(0.1)
    raise TimeoutError(f"waited {timeout_s} s for {what}")
