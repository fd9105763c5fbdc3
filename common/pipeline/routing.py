"""The stage `route`: which topic each record goes to. Pure. The first case that holds decides; all of them
are judged of every record, so that what becomes of one that can't be judged depends on no order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.pipeline.batch import Batch, Done, Origin, Run, flags
from common.pipeline.conditions import Formats
from common.pipeline.judging import Judge
from common.pipeline.route_names import filled
from common.pipeline.stages import Route

OWN = -1
"""Of a record that goes to the link's own destination of its topic."""


@dataclass(frozen=True, slots=True)
class Routed:
    """`to`: of each record, which of the topics it goes to, or OWN."""

    topics: tuple[str, ...]
    to: npt.NDArray[np.int16]


def names(options: Route, origin: Origin) -> tuple[str, ...]:
    """The topics that the stage may take records to, one name for each number that it gives."""
    return tuple(filled(template, origin.topic, origin.link) for template in _templates(options))


def _templates(options: Route) -> list[str]:
    if options.topic is not None:
        return [options.topic]
    rest = [] if options.rest is None else [options.rest]
    return [case.topic for case in options.cases or ()] + rest


def routing(options: Route, formats: Formats) -> Run:
    judges = [Judge(case.when, formats) for case in options.cases or ()]
    last = OWN if options.topic is None and options.rest is None else len(judges)

    def run(batch: Batch) -> Done:
        to = np.full(len(batch), last, np.int16)
        failed: dict[int, str] = {}
        for number, judge in reversed(list(enumerate(judges))):
            held, bad = judge(batch)
            to[held] = number
            failed |= bad
        return Done(batch, flags(len(batch)), failed=failed, to=to)

    return run
