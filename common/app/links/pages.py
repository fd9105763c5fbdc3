"""What a process of several links answers over HTTP: of all of them at /, /status.json, /healthz, /readyz and
/metrics, of each below its file's name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import orjson
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common import ports
from common.app.health import STALE_S
from common.app.health_server import Answer
from common.app.link_pages import NOT_KEPT, LinkPages, metrics_answer, page_answer
from common.app.metrics import HealthCollector

if TYPE_CHECKING:
    from common.app.health import Health
    from common.app.links.links import Links
    from common.app.links.runner import Runner

FAILED = (
    "verbatim_link_failed",
    "1 where a link of a process that runs several does not run, but is begun anew",
)
NOTHING = Answer(
    404, b'{"error":"/, /status.json, /healthz, /readyz, /metrics, or a link\'s name before them"}'
)


class LinksPages:
    """`metrics`: whether it answers with those."""

    def __init__(self, links: Links, metrics: bool = True) -> None:
        self._links = links
        self._registry: CollectorRegistry | None = None
        if metrics:
            self._registry = CollectorRegistry()
            self._registry.register(LinksCollector(links))
            ProcessCollector(registry=self._registry)

    def __call__(self, path: str, accept: str) -> Answer:
        name, slash, _ = path[1:].partition("/")
        runner = self._links.runners.get(unquote(name))
        if path == "/":
            return page_answer("links.html")
        if path == "/metrics":
            return metrics_answer(self._registry, accept)
        if path == "/status.json":
            return Answer(200, orjson.dumps(self._status()), headers=NOT_KEPT)
        if path == "/healthz":
            return Answer(200 if self._alive() else 503, orjson.dumps(self._status()))
        if path == "/readyz":
            return Answer(200 if self._ready() else 503, orjson.dumps(self._status()))
        if runner is not None and not slash:
            return Answer(308, b"", headers={"Location": f"{name}/"})
        if runner is None:
            return NOTHING
        if (health := _health(runner)) is None:
            return Answer(503, orjson.dumps(line_of(runner)))
        return LinkPages(health, self._registry is not None)(path[len(name) + 1 :], accept)

    def _alive(self) -> bool:
        """A link that hangs is not worth the others' end; where all do, or the process itself, it is."""
        if ports.monotonic() - self._links.turned >= STALE_S:
            return False
        running = [h for r in self._links.runners.values() if (h := _health(r)) is not None and not r.failed]
        return not running or any(health.alive() for health in running)

    def _ready(self) -> bool:
        """Each link leads, stands by, or has failed by itself; not all have."""
        states = [state_of(runner) for runner in self._links.runners.values()]
        if not self._links.looked or "starting" in states:
            return False
        return not states or any(state != "failed" for state in states)

    def _status(self) -> dict[str, Any]:
        lines = [line_of(runner) for runner in self._links.runners.values()]
        bad = any(line["why"] or line["halted"] or line["state"] == "hangs" for line in lines)
        return {"status": "degraded" if bad else "ok", "links": lines}


class LinksCollector(Collector):
    """The same families as one instance has, with the samples of all, and which links fail."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def collect(self) -> Iterator[Metric]:
        failed = GaugeMetricFamily(*FAILED, labels=("application", "link"))
        families: dict[str, Metric] = {}
        for runner in self._links.runners.values():
            failed.add_metric([self._links.application, runner.link], runner.failed is not None)
            if (health := _health(runner)) is not None:
                for family in HealthCollector(health).collect():
                    if (known := families.setdefault(family.name, family)) is not family:
                        known.samples.extend(family.samples)
        yield failed
        yield from families.values()

    def describe(self) -> Iterable[Metric]:
        """None is told beforehand: what there is depends on the links."""
        return ()


def state_of(runner: Runner) -> str:
    """starting, leads, stands by, stops, hangs, failed or ended."""
    if runner.failed is not None:
        return "failed"
    if runner.code is not None:
        return "ended"
    if (health := _health(runner)) is None:
        return "starting"
    if not health.alive():
        return "hangs"
    return {"leader": "leads", "standby": "stands by", "stopping": "stops"}.get(health.role, "starting")


def line_of(runner: Runner) -> dict[str, Any]:
    """Of one link, for people and programs."""
    health = _health(runner)
    counts = health.work.shown().of.values() if health is not None else ()
    return {
        "name": runner.name,
        "link": runner.link,
        "state": state_of(runner),
        "why": runner.failed,
        "failures": runner.failures,
        "unreached": [] if health is None else [c for c, reached in health.reached().items() if not reached],
        "halted": 0 if health is None else len(health.halted),
        "paused": 0 if health is None else len(health.paused),
        "lag": sum(of["lag"] for of in counts if "lag" in of),
        "records": sum(of["records"] for of in counts if "records" in of),
    }


def _health(runner: Runner) -> Health | None:
    return None if runner.instance is None else runner.instance.health
