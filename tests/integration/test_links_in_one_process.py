"""Many links in one pair of processes, for real: one folder, one Spark session in each; what one of them has
stops only itself."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from common.config.fields import PREFIX
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, produce, read_all
from tests.support.harness import eventually
from verbatim.local.applications import Application
from verbatim.local.processes import HOST, free_ports


class Pair:
    """The replicator and the deduplicator of all links of a folder."""

    def __init__(self, source: Kafka, target: Kafka, folder: Path) -> None:
        self.links = folder / "links"
        self.links.mkdir()
        self.ports = dict(zip(("replicator", "deduplicator"), map(int, free_ports(2)), strict=True))
        shared = {
            f"{PREFIX}SOURCE_BOOTSTRAP_SERVERS": source.bootstrap_servers,
            "STATE_PATH": str(folder / "state"),
            "LOG_FORMAT": "json",
            "LINKS": str(self.links),
        }
        self._target = target.bootstrap_servers
        self.applications = {
            name: Application(name, shared | {"HEALTH_PORT": str(port)}, folder)
            for name, port in self.ports.items()
        }

    def add(self, link: str, topic: str, target: str = "", **more: str) -> None:
        lines = {
            f"{PREFIX}SOURCE_TOPIC": topic,
            f"{PREFIX}DESTINATION_TOPIC": f"{link}.{{topic}}",
            f"{PREFIX}DESTINATION_BOOTSTRAP_SERVERS": target or self._target,
            **more,
        }
        (self.links / f"{link}.yaml").write_text("".join(f"{k}: {v}\n" for k, v in lines.items()))

    def get(self, name: str, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.ports[name]}{path}", timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def line(self, name: str, link: str) -> dict[str, Any]:
        found = json.loads(self.get(name, "/status.json")[1])["links"]
        return next(line for line in found if line["name"] == link)

    def logged(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.applications[name].log.read_text().splitlines()]


@pytest.fixture
def pair(source: Kafka, target: Kafka, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(source, target, tmp_path)
    yield made
    for application in made.applications.values():
        application.stop()


@pytest.mark.whole
@pytest.mark.timeout(400)
def test_links_come_go_and_fail_each_by_itself(
    pair: Pair, source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: what a link has (an unreachable target, a file of nonsense, an end) stops only that link; the
    others copy, and each line of the log says whose it is."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topics = {name: names.topic(name) for name in ("one", "two", "late")}
    links = {name: f"{names.link}-{name}" for name in topics}
    for topic in topics.values():
        create_topic(at, topic, 2)
        produce(at, topic, [Record(b"%d" % i, partition=i % 2) for i in range(20)])
    (nowhere,) = free_ports(1)
    pair.add(links["one"], topics["one"])
    pair.add(links["two"], topics["two"], PARALLELISM="2")
    pair.add(f"{names.link}-lost", topics["one"], target=f"{HOST}:{nowhere}")
    (pair.links / "nonsense.yaml").write_text("NO_SUCH_SETTING: 1\n")
    for application in pair.applications.values():
        application.start()

    def copied(name: str, count: int) -> bool:
        copy = f"{links[name]}.{topics[name]}"
        try:
            found = read_all(to, copy)
        except Exception:  # noqa: BLE001 - it is not there yet
            return False
        return sorted(int(r.value or b"-1") for p in found for r in p) == list(range(count))

    for name in ("one", "two"):
        eventually(partial(copied, name, 20), f"{name} to be copied", 150)
    for kind in pair.applications:
        sick = pair.line(kind, "nonsense")
        assert sick["state"] == "failed" and sick["why"].startswith("NO_SUCH_SETTING (in "), kind
        assert {pair.line(kind, links[name])["state"] for name in ("one", "two")} == {"leads"}
        assert pair.line(kind, f"{names.link}-lost")["state"] in ("starting", "failed")
        assert pair.get(kind, "/healthz")[0] == 200
        metrics = pair.get(kind, "/metrics")[1].decode()
        assert f'verbatim_leader{{application="{kind}",link="{links["one"]}"' in metrics
    # One comes, one goes, the third goes on.
    pair.add(links["late"], topics["late"])
    (pair.links / f"{links['two']}.yaml").unlink()
    produce(at, topics["one"], [Record(b"%d" % i, partition=i % 2) for i in range(20, 40)])
    eventually(lambda: copied("late", 20), "the new link's topic to be copied", 90)
    eventually(lambda: copied("one", 40), "the first link to go on", 60)
    assert pair.get("replicator", f"/{links['two']}/status.json")[0] == 404
    for application in pair.applications.values():
        application.stop()
        assert application.ended() == 0
    for kind in pair.applications:
        of_links = {line["link"] for line in pair.logged(kind) if "link" in line}
        assert of_links >= {*links.values(), "nonsense"}
    assert copied("two", 20), "nothing twice"
