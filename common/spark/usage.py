"""What a running Spark session has to run tasks with, and how many run."""

from __future__ import annotations

from typing import NamedTuple

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from common.spark.master import parse_master


class Usage(NamedTuple):
    """Tasks that can run at once, the executors that run them (of a local master: one), tasks that run."""

    slots: int
    executors: int
    active: int


def usage(spark: SparkSession) -> Usage | None:
    """As it is now; None where its JVM does not say."""
    try:
        context = spark.sparkContext
        found = context._jsc.sc().statusStore().executorList(True)
        executors = [found.apply(index) for index in range(found.size())]
        if not parse_master(str(context.master)).local:
            executors = [executor for executor in executors if executor.id() != "driver"]
        tasks = [(executor.maxTasks(), executor.activeTasks()) for executor in executors]
        return Usage(sum(most for most, _ in tasks), len(tasks), sum(active for _, active in tasks))
    except (Py4JError, OSError):
        return None
