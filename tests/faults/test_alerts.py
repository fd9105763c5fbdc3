"""Each alert of k8s/overlays/monitoring fires for a fault that really happens, as a real Prometheus sees it,
and is over when the fault is. (That no other fires for it: tests/deploy/test_monitoring.py, by hours of
figures; by these alone those of ELSEWHERE.)

Its rules are those that are deployed, with each minute a second long.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml
from click.testing import CliRunner

from common.app.health_server import HealthServer
from common.app.link_pages import LinkPages
from common.errors import KafkaTimeout, StateError
from deduplicator.lane.lane import Lane
from deduplicator.main import Deduplicator
from deduplicator.state import folding
from deduplicator.state.folding import Folding
from deduplicator.state.snapshot import FoldResult
from offsets.service import Service
from tests.conftest import Names
from tests.deploy.test_monitoring import ALERTS, RULES
from tests.faults.rounds.proxy import END_TXN, Connection, Proxy, Rule, before_a_cluster
from tests.integration.test_metrics import asked, load, prometheus, up
from tests.integration.test_quotas import allow
from tests.support.brokers import create_topic, delete_records
from tests.support.harness import Link, NoTable, Running, eventually
from verbatim.local.processes import HOST, free_ports
from verbatim.main import cli

FIRES_S = 90.0
ELSEWHERE = {"VerbatimLinkFailed", "VerbatimSchemasStandStill", "VerbatimSubjectsFail"}
"""Of a process of many links, and of `schemas`: this link has neither."""
LOADED = {"VerbatimFallsBehind", "VerbatimLate"}
"""A machine that is busy otherwise is a fault to them, with seconds for minutes."""
SECONDS = {"VerbatimFallsBehind": (300, 5), "VerbatimLate": (60, 1), "VerbatimHeartbeatsLate": (120, 2)}
"""What they compare with, in seconds, and what that is here."""
WINDOWS = {"VerbatimThrottled": (5, 40), "VerbatimRestarts": (30, 60)}
"""How many minutes they look back, and how many seconds that is here: a broker wants to be left alone for
some ten seconds at a time, and a start takes as long, however long a minute is."""


def quick(rules: Any) -> Any:
    """The rules with a second for each minute."""
    for group in rules["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            minutes = re.compile(r"\b(\d+)m\b")
            assert minutes.search(rule["expr"] + rule.get("for", "")) or rule.get("record")
            rule["expr"] = minutes.sub(r"\1s", rule["expr"])
            if "for" in rule:
                rule["for"] = minutes.sub(r"\1s", rule["for"])
            if (found := WINDOWS.get(rule.get("alert", ""))) is not None:
                before, after = (f"[{number}s]" for number in found)
                assert before in rule["expr"]
                rule["expr"] = rule["expr"].replace(before, after)
            if (found := SECONDS.get(rule.get("alert", ""))) is not None:
                before, after = (f"> {number}" for number in found)
                assert before in rule["expr"]
                rule["expr"] = rule["expr"].replace(before, after)
    return rules


class Watched:
    """A link under load whose instances are looked at by a Prometheus, and both of whose clusters are behind
    proxies."""

    def __init__(self, names: Names, folder: Path, stack: ExitStack) -> None:
        self.source, self.target = (stack.enter_context(before_a_cluster()) for _ in range(2))
        self.topic = names.topic("orders")
        create_topic(self.source.bootstrap_servers, self.topic, 3)
        self.link = Link(
            self.source.bootstrap_servers,
            self.target.bootstrap_servers,
            names.link,
            self.topic,
            HEARTBEATS_INTERVAL="1s",
            OFFSETS_INTERVAL="500ms",
            KAFKA_CLUSTERS_DESTINATION_PROPERTIES_CLIENT_ID=names.link,
        )
        self._folder = folder
        self._stack = stack
        self._ports = dict(zip(("replicator", "deduplicator", "offsets"), free_ports(3), strict=True))
        self.running: dict[str, tuple[Running, HealthServer]] = {}
        stack.callback(self.stop_all)
        stack.enter_context(load(self.source, self.topic))
        for application in self._ports:
            self.start(application)
        eventually(lambda: sum(self.link.arrived(self.topic)) > 500, "records", 60)
        targets = [f"{HOST}:{port}" for port in self._ports.values()]
        rules = folder / "rules.json"
        rules.write_text(json.dumps(quick(yaml.safe_load(yaml.safe_dump(RULES)))))
        self._port = stack.enter_context(prometheus(folder, targets, rules))
        eventually(lambda: up(self._port) == 3, "all targets", 30)

    @contextmanager
    def folding(self, table: SpoiltTable) -> Iterator[None]:
        """Meanwhile the deduplicator folds into this table."""
        application = self.running["deduplicator"][0].application
        assert isinstance(application, Deduplicator)
        folded, failed = application._folded, application._fold_failed
        with closing(Folding(table, lambda: True, folded, failed)):  # type: ignore[arg-type]
            yield

    def start(self, application: str) -> None:
        link = self.link
        make: dict[str, Callable[[], Running]] = {
            "replicator": link.start_replicator,
            "deduplicator": link.start_deduplicator,
            "offsets": lambda: Running(Service(link.settings, once=False)),
        }
        running = make[application]()
        server = HealthServer(LinkPages(running.application.health), HOST, self._ports[application])
        self.running[application] = running, server

    def stop(self, application: str) -> None:
        """It goes on saying what it is, as one does that hangs."""
        self.running[application][0].stop(60)

    def gone(self, application: str) -> None:
        running, server = self.running.pop(application)
        running.stop(60)
        server.close()

    def stop_all(self) -> None:
        for application in [*self.running]:
            self.gone(application)

    def firing(self) -> set[str]:
        found = asked(self._port, 'ALERTS{alertstate="firing"}')
        return {one["metric"]["alertname"] for one in found}

    def fires(self, *alerts: str) -> None:
        eventually(lambda: self.firing() >= {*alerts}, f"{alerts}", FIRES_S)

    def over(self) -> None:
        eventually(lambda: not self.firing() - LOADED, "no alert", FIRES_S)

    def says(self, *arguments: str) -> None:
        done = CliRunner().invoke(cli, list(arguments), env=self.link.variables)
        assert done.exit_code == 0, (done.output, done.exception)


class SpoiltTable(NoTable):
    """A state table that nothing can be folded into while it is `spoilt`; without Spark."""

    spark = MagicMock()
    spoilt = False

    def fold(self, stopping: threading.Event | None = None) -> FoldResult:
        if self.spoilt:
            raise StateError("could not fold: no space left on device")
        return super().fold()


@contextmanager
def away(cluster: Proxy) -> Iterator[None]:
    cluster.unreachable.add(1)
    cluster.cut(True)
    try:
        yield
    finally:
        cluster.unreachable.clear()


class CommitLost(Rule):
    """The answer to each end of a transaction is lost, with its connection."""

    async def answer(self, connection: Connection, api: int, body: bytes) -> bool:
        if api != END_TXN:
            return True
        self.hits += 1
        connection.reset()
        return False


@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_each_alert_fires_for_a_real_fault_and_is_over_with_it(
    names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails, step = threading.Event(), Lane._step

    def failing(self: Lane) -> bool:
        if fails.is_set():
            fails.clear()
            raise KafkaTimeout("a lane that fails")
        return step(self)

    monkeypatch.setattr(Lane, "_step", failing)
    monkeypatch.setattr(folding, "FIRST_S", 0.1)
    monkeypatch.setattr(folding, "LOOK_S", 1.0)
    with ExitStack() as stack:
        link = Watched(names, tmp_path, stack)
        seen: set[str] = set()

        def fires(*alerts: str) -> None:
            link.fires(*alerts)
            seen.update(alerts)

        time.sleep(5)
        link.over()
        with away(link.source):
            fires("VerbatimSourceUnreachable", "VerbatimHeartbeatsLate")
        link.over()
        with away(link.target):
            fires("VerbatimTargetUnreachable")
        link.over()
        lost = CommitLost()
        link.target.add(lost)
        fires("VerbatimTransactionsAbort")
        link.target.remove(lost)
        link.over()
        of = (link.target.bootstrap_servers, names.link, "consumer_byte_rate")
        allow(*of, 4000)
        fires("VerbatimThrottled")
        allow(*of, None)
        link.over()
        fails.set()
        fires("VerbatimEpochsFail")
        link.over()
        table = SpoiltTable()
        with link.folding(table):
            time.sleep(5)
            link.over()
            table.spoilt = True
            fires("VerbatimFoldsFail")
            table.spoilt = False
            link.over()
        link.stop("offsets")
        fires("VerbatimGroupsStandStill")
        link.gone("offsets")
        link.start("offsets")
        link.over()
        link.stop("deduplicator")
        fires("VerbatimNobodyLeads")
        link.gone("deduplicator")
        link.start("deduplicator")
        link.over()
        # Killed, as it were, whenever it has delivered something.
        for _ in range(3):
            running = link.running["deduplicator"][0]
            eventually(lambda r=running: r.application.health.work.counts["frames"] > 0, "frames", 60)  # type: ignore[misc]
            time.sleep(1.5)
            link.gone("deduplicator")
            link.start("deduplicator")
        fires("VerbatimRestarts")
        link.over()
        link.says("limit", link.topic, "--records-per-second", "20")
        fires("VerbatimFallsBehind", "VerbatimLate")
        link.says("limit", link.topic, "--none")
        link.says("pause", link.topic)
        time.sleep(5)
        # What comes meanwhile is gone before it is read.
        delete_records(link.source.bootstrap_servers, link.topic, dict.fromkeys(range(3), -1))
        link.says("resume", link.topic)
        fires("VerbatimHalted")
        assert seen == ALERTS.keys() - ELSEWHERE
