"""The health endpoints: /healthz (alive), /readyz (leading with its clusters reached, or standing by),
/metrics (Prometheus text), / (a page for people) and /status.json (what that shows)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, ClassVar

import orjson

from common.app import page
from common.app.link_view import Seen, status
from common.app.metrics import exposed, registry_of
from common.config import telemetry
from common.errors import SettingsError
from common.link.lane_work import Work
from common.link.throttling import Limit

if TYPE_CHECKING:
    from common.app.group_state import GroupState
    from common.config.settings import Settings
    from common.spark.usage import Usage

STALE_S = 60.0
"""A main loop that has not turned for so long is not alive."""
SILENT_S = 30.0
"""A connection on which nothing comes for so long is closed."""
NOT_KEPT = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True)
class Heartbeat:
    """What heartbeats tell: how long they take now, in seconds, and of when (ms since 1970) the newest is
    that has arrived; None: none yet."""

    delay_s: float | None
    newest_ms: int | None


@dataclass
class Health:
    """What the endpoints tell. The main loop writes it, the server's threads read it."""

    application: str
    role: str = "starting"
    source_reached: bool | None = False
    """None: this application never uses the source, and tells nothing of it."""
    target_reached: bool = False
    halted: dict[str, str] = field(default_factory=dict)
    """partition name -> reason"""
    deleted: list[str] = field(default_factory=list)
    """Topics that are gone from the source; their copies are kept."""
    paused: list[str] = field(default_factory=list)
    """Topics that an operator has paused."""
    limits: dict[str, Limit] = field(default_factory=dict)
    """Topic -> its rate limit; of all topics together under `*`."""
    work: Work = field(default_factory=Work)
    """What was done since this instance started."""
    epochs: int = 0
    epochs_failed: int = 0
    link: str = ""
    source: str = ""
    target: str = ""
    """Ids of both clusters, once they are known."""
    groups: Mapping[str, GroupState] = field(default_factory=dict)
    """Consumer groups of the source, where this is the instance that translates them; made anew each time."""
    spark: Usage | None = None
    exports: Counter[str] = field(default_factory=Counter)
    exports_failed: Counter[str] = field(default_factory=Counter)
    """How often metrics were sent, by exporter: of those that OTEL_METRICS_EXPORTER names."""
    heartbeat: Heartbeat | None = None
    """Where there are any, and this is the instance that writes them."""
    instance: str = ""
    """Its name."""
    started_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    seen: Seen | None = None
    """What is known of the link, once anything is."""
    turned: float = field(default_factory=time.monotonic)

    def turned_ago(self) -> float:
        """Seconds since the main loop has turned."""
        return time.monotonic() - self.turned

    def alive(self) -> bool:
        return self.turned_ago() < STALE_S

    def reached(self) -> dict[str, bool]:
        """Whether each cluster that is used can be reached."""
        found = {"source": self.source_reached, "target": self.target_reached}
        return {which: reached for which, reached in found.items() if reached is not None}

    def ready(self) -> bool:
        return self.role == "standby" or (self.role == "leader" and all(self.reached().values()))

    def degraded(self) -> bool:
        lost = self.role in ("leader", "standby") and not all(self.reached().values())
        return bool(self.halted) or lost

    def report(self) -> dict[str, object]:
        heartbeat = {} if self.heartbeat is None else {"heartbeat": asdict(self.heartbeat)}
        return {
            "application": self.application,
            "status": "degraded" if self.degraded() else "paused" if self.paused else "ok",
            "role": self.role,
            **{f"{which}_reached": reached for which, reached in self.reached().items()},
            "halted": dict(self.halted),
            "deleted_at_source": list(self.deleted),
            "paused": list(self.paused),
            "limits": {name: asdict(limit) for name, limit in self.limits.items()},
            **heartbeat,
        }


class HealthServer:
    """Serves a Health object until closed."""

    def __init__(self, health: Health, address: str, port: int, metrics: bool = True) -> None:
        """`metrics`: whether it serves those."""
        registry = registry_of(health)

        class Handler(BaseHTTPRequestHandler):
            timeout: ClassVar[float] = SILENT_S

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/healthz":
                    self._answer(200 if health.alive() else 503, orjson.dumps(health.report()))
                elif path == "/readyz":
                    self._answer(200 if health.ready() else 503, orjson.dumps(health.report()))
                elif path == "/metrics" and metrics:
                    self._answer(200, *exposed(registry, self.headers.get("Accept", "")))
                elif path == "/status.json":
                    found = status(health, int(time.time() * 1000))
                    self._answer(200, orjson.dumps(found), headers=NOT_KEPT)
                elif path == "/":
                    body, policy = page.page()
                    headers = {**page.HEADERS, "Content-Security-Policy": policy}
                    self._answer(200, body, page.KIND, headers)
                elif path == "/metrics":
                    self._answer(404, b'{"error":"prometheus is not among OTEL_METRICS_EXPORTER"}')
                else:
                    self._answer(404, b'{"error":"/, /status.json, /healthz, /readyz or /metrics"}')

            do_HEAD = do_GET

            def do_POST(self) -> None:
                self._answer(405, b'{"error":"GET or HEAD"}', headers={"Allow": "GET, HEAD"})

            do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST

            def _answer(
                self,
                status: int,
                body: bytes,
                kind: str = "application/json",
                headers: Mapping[str, str] = NO_HEADERS,
            ) -> None:
                # Who asked may be gone by now.
                with contextlib.suppress(ConnectionError, TimeoutError):
                    self.send_response(status)
                    self.send_header("Content-Type", kind)
                    self.send_header("Content-Length", str(len(body)))
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    if self.command != "HEAD":
                        self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass  # probes come every few seconds

        try:
            self._server = ThreadingHTTPServer((address, port), Handler)
        except OSError as error:
            raise SettingsError(f"HEALTH_PORT: can't listen on {address}:{port}: {error.strerror}") from None
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def serving(health: Health, settings: Settings) -> Iterator[None]:
    """Serve the endpoints meanwhile, unless HEALTH_PORT is 0."""
    if not settings.health_port:
        yield
        return
    metrics = "prometheus" in settings.exporters
    server = HealthServer(health, settings.health_address, settings.health_port, metrics)
    try:
        yield
    finally:
        server.close()


@contextlib.contextmanager
def sending(health: Health, settings: Settings) -> Iterator[None]:
    """Send metrics meanwhile, where OTEL_METRICS_EXPORTER asks for that."""
    names = [name for name in settings.exporters if name != "prometheus"]
    if not names:
        yield
        return
    try:
        from common.app.otel.sending import Sending

        found = Sending(names, health, settings)
    except ImportError as error:
        raise SettingsError(
            telemetry.not_installed("OTEL_METRICS_EXPORTER", ", ".join(names), error)
        ) from None
    try:
        yield
    finally:
        found.close()
