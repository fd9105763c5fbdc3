"""What a bounded run says at its end. Pure."""

from __future__ import annotations

from common.link.control_state import Control
from common.spark.lane_query import Progress


def halted_lines(rows: list[Progress], control: Control, application: str) -> list[str]:
    """One line for each partition that a bounded run could not copy."""
    seen = {
        (halt.topic, key[1]): halt.detail
        for (name, key), halt in control.halts.items()
        if name == application
    }
    for row in rows:
        if row.kind == "halted":
            seen[(row.body["topic"], row.body["partition"])] = row.body["detail"]
    return [f"{topic}-{partition} halted: {detail}" for (topic, partition), detail in sorted(seen.items())]
