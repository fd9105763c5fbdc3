"""The Spark session that the links of one process share, and who has how many of its slots."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from common.app.role import Role
from common.errors import SettingsError
from common.spark import java
from common.spark.master import parse_master
from common.spark.session import check_state_writers, jvm_ended, stop_session
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

    def open(self) -> None:
        """Start the session; takes seconds. Raises SettingsError."""
        java.check()
        local = parse_master(self._settings.spark_master).local
        self._spark = self._role.session(self._settings, MOST_LANES if local else None)

    def lend(self, instance: Instance, taken: int) -> int:
        """Give it the session, and say how many lanes it has then; `taken`: by all others. Raises
        SettingsError where there are too few slots, or where two drivers would spoil its state."""
        assert isinstance(instance, Role)
        lanes = instance.settings.parallelism or 1
        found = usage(self._spark)
        if found is not None and taken + lanes > (free := found.slots - self._role.extra_slots):
            raise SettingsError(
                f"PARALLELISM: {lanes} lanes are wanted, but of {free} slots the other links' lanes have {taken}; "
                "add executors, or run fewer links here"
            )
        if self._role.uses_delta:
            check_state_writers(instance.settings, os.environ)
        instance.shared = self._spark
        return lanes

    def gone(self) -> str | None:
        """Why the session can't be used any more, if its JVM has ended."""
        return jvm_ended()

    def close(self) -> None:
        if hasattr(self, "_spark"):
            stop_session(self._spark, timeout_s=STOP_S)
