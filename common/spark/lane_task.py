"""What a task of Spark's runs: a lane, by its plan. Imports little: each Python process of a lane's imports
it anew, with all that it imports, and has the memory for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark import TaskContext

Plan = dict[str, Any]
"""What one lane is to do, as JSON: it travels to an executor."""

RunLane = Callable[[Plan], Iterator[str]]
"""Runs one lane for one epoch, yielding its progress: texts that mean nothing here."""


def in_task(run_lane: RunLane, plans: Iterable[str]) -> Iterator[tuple[int, int, str]]:
    """Run the lanes of a task, which is one."""
    task = TaskContext.get()
    again = task is not None and task.attemptNumber() > 0
    for text in plans:
        plan = json.loads(text)
        for said in run_lane(plan | {"again": again}):
            yield plan["term"], plan["epoch"], said


def no_lane(_: RunLane, plan: Plan) -> Iterator[str]:
    """A lane that ends at once, once its process has what it would run."""
    return iter(["rehearsed"])
