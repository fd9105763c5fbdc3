"""The Spark session that the links of one process share, and who has how many of its slots."""

from __future__ import annotations

import os
from collections.abc import Container
from functools import partial
from typing import TYPE_CHECKING

from common import ports
from common.app.links.runner import NoSlot
from common.app.role import Role
from common.spark import java
from common.spark.lane_count import LaneCount, shares
from common.spark.master import parse_master
from common.spark.session import check_state_writers, jvm_ended, lanes_of, stop_session
from common.spark.usage import usage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from common.app.instance import Instance
    from common.config.settings import Settings

MOST_LANES = 1000
"""Of a local master: a thread for each, once it is needed."""
STOP_S = 3.0


class Slots:
    """Of instances of one application, `role`. `settings` are the process' own."""

    def __init__(self, settings: Settings, role: type[Role]) -> None:
        self._settings = settings
        self._role = role
        self._spark: SparkSession
        self._count: LaneCount
        self._wanted: dict[str, int] = {}
        """How many lanes each link would have, by its file's name. Replaced, never changed: other threads
        read it."""

    def open(self) -> None:
        """Start the session; takes seconds. Raises SettingsError."""
        java.check()
        local = parse_master(self._settings.spark_master).local
        self._spark = self._role.session(self._settings, MOST_LANES if local else None)
        self._count = LaneCount(lanes_of(self._spark), None, self._role.extra_slots)

    def lend(self, name: str, instance: Instance) -> None:
        """Give it the session. Raises NoSlot where none is left for it, and SettingsError where two drivers
        would spoil its state."""
        assert isinstance(instance, Role)
        self._wanted = {**self._wanted, name: instance.settings.parallelism or 1}
        if not self.lanes(name):
            raise NoSlot(
                f"SPARK_MASTER: it has slots for {self._count.lanes} of {len(self._wanted)} links, and this one's "
                "file comes behind theirs by its name; add executors, or run fewer links here"
            )
        if self._role.uses_delta:
            check_state_writers(instance.settings, os.environ)
        instance.shared, instance.shared_lanes = self._spark, partial(self.lanes, name)

    def lanes(self, name: str) -> int:
        """How many lanes this link has at the moment; it has been lent to."""
        return self._shares().get(name, 0)

    def look(self, links: Container[str]) -> list[str]:
        """Count the slots anew, and forget all but these links. Which of them have no slot any more."""
        if (found := usage(self._spark)) is not None:
            self._count.follow(found.slots, ports.monotonic())
        self._wanted = {name: most for name, most in self._wanted.items() if name in links}
        return [name for name, lanes in self._shares().items() if not lanes]

    def _shares(self) -> dict[str, int]:
        """By name: replicator and deduplicator have to choose the same links where there are too few."""
        wanted = dict(sorted(self._wanted.items()))
        return dict(zip(wanted, shares(self._count.lanes, list(wanted.values())), strict=True))

    def gone(self) -> str | None:
        """Why the session can't be used any more, if its JVM has ended."""
        return jvm_ended()

    def close(self) -> None:
        if hasattr(self, "_spark"):
            stop_session(self._spark, timeout_s=STOP_S)
