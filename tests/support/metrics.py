"""What /metrics tells of an instance."""

from __future__ import annotations

from common.app.health import Health
from common.app.metrics import exposed, registry_of


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
