"""What an instance tells of itself, and sends where it is asked to. What answers who asks is link_pages."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from common.app.link_view import Seen
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
    promoted: list[str] = field(default_factory=list)
    """Topics that are copied no longer, since others write to their copies, or are about to."""
    limits: dict[str, Limit] = field(default_factory=dict)
    """Topic -> its rate limit; of all topics together under `*`."""
    work: Work = field(default_factory=Work)
    """What was done since this instance started."""
    epochs: int = 0
    epochs_failed: int = 0
    folds: int = 0
    folds_failed: int = 0
    """Of mappings into the state table."""
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
            "promoted": list(self.promoted),
            "limits": {name: asdict(limit) for name, limit in self.limits.items()},
            **heartbeat,
        }


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
