"""What /metrics tells of an instance."""

from __future__ import annotations

from collections import Counter

from common.app.health import Health
from common.app.metrics import exposed, registry_of
from common.link.lane_work import Work


def delivering() -> Health:
    """Of a deduplicator that leads and has delivered some records."""
    health = Health("deduplicator", "leader", link="east", source="s-1", target="t-1")
    health.work = Work(
        Counter(frames=7, transaction_ms=2500, staging_lag=4),
        {("orders", 3): Counter(records=5, delivered_offset=9), ("orders", 10): Counter(records=0)},
    )
    health.work.delays.took(4, 10)
    health.work.delays.took(700, 2)
    health.work.delays.took(2_000_000, 1)
    return health


def sample(health: Health, name: str, **labels: str) -> float | None:
    """One sample's value; None: there is none."""
    of_all = {
        "application": health.application,
        "link": health.link,
        "source": health.source,
        "target": health.target,
    }
    return registry_of(health).get_sample_value(name, of_all | labels)


def text(health: Health) -> str:
    """What a client that asks for nothing special gets."""
    return exposed(registry_of(health), "")[0].decode()
