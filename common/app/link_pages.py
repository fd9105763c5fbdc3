"""What an instance answers over HTTP: /healthz (alive), /readyz (leading with its clusters reached, or
standing by), /metrics (Prometheus text), / (a page for people) and /status.json (what that shows)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import orjson

from common.app import page
from common.app.health_server import Answer
from common.app.link_view import status
from common.app.metrics import exposed, registry_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from common.app.health import Health

NOT_KEPT = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
NOT_SERVED = Answer(404, b'{"error":"prometheus is not among OTEL_METRICS_EXPORTER"}')
NOTHING = Answer(404, b'{"error":"/, /status.json, /healthz, /readyz or /metrics"}')


class LinkPages:
    """Of one instance."""

    def __init__(self, health: Health, metrics: bool = True) -> None:
        """`metrics`: whether it answers with those."""
        self._health = health
        self._registry = registry_of(health) if metrics else None

    def __call__(self, path: str, accept: str) -> Answer:
        health = self._health
        if path == "/healthz":
            return Answer(200 if health.alive() else 503, orjson.dumps(health.report()))
        if path == "/readyz":
            return Answer(200 if health.ready() else 503, orjson.dumps(health.report()))
        if path == "/metrics":
            return metrics_answer(self._registry, accept)
        if path == "/status.json":
            return Answer(200, orjson.dumps(status(health, int(time.time() * 1000))), headers=NOT_KEPT)
        if path == "/":
            return page_answer("page.html")
        return NOTHING


def metrics_answer(registry: CollectorRegistry | None, accept: str) -> Answer:
    """What is in it, to whom accepts this; None where metrics are not served."""
    return NOT_SERVED if registry is None else Answer(200, *exposed(registry, accept))


def page_answer(name: str) -> Answer:
    """A page that is a file of this package."""
    body, policy = page.page(name)
    return Answer(200, body, page.KIND, {**page.HEADERS, "Content-Security-Policy": policy})
