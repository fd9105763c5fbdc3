"""The stage `route`: which topic each record goes to. Pure. The first case that holds decides; all of them
are judged of every record, so that what becomes of one that can't be judged depends on no order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.kafka.wire.murmur2 import partitions
from common.pipeline.batch import Batch, Done, Origin, Run, flags
from common.pipeline.conditions import Formats
from common.pipeline.judging import Judge
from common.pipeline.route_names import filled, place
from common.pipeline.stages import Hash, Route

OWN = -1
"""Of a record that goes to the link's own destination of its topic."""


@dataclass(frozen=True, slots=True)
class Routed:
    """`to`: of each record, which of the topics (or of their partitions) it goes to, or OWN."""

    topics: tuple[str, ...]
    to: npt.NDArray[np.int16]


def names(options: Route, origin: Origin) -> tuple[str, ...]:
    """The topics that the stage may take records to, or their partitions, as texts of
    common/pipeline/route_names.py, one for each number that it gives."""
    topics = [filled(template, origin.topic, origin.link) for template in options.topics]
    if isinstance(options.partition, Hash):
        return tuple(place(topic, number) for topic in topics for number in range(options.partition.hash))
    return tuple(topics)


def routing(options: Route, formats: Formats) -> Run:
    judges = [Judge(case.when, formats) for case in options.cases or ()]
    last = OWN if options.topic is None and options.rest is None else len(judges)

    count = options.partition.hash if isinstance(options.partition, Hash) else None

    def run(batch: Batch) -> Done:
        to = np.full(len(batch), last, np.int16)
        failed: dict[int, str] = {}
        for number, judge in reversed(list(enumerate(judges))):
            held, bad = judge(batch)
            to[held] = number
            failed |= bad
        if count is not None:
            key = batch.rows.column(3)
            within = partitions(key, count, batch.origin.partition % count).astype(np.int16)
            to = np.where(to == OWN, to, to * np.int16(count) + within)
        return Done(batch, flags(len(batch)), failed=failed, to=to)

    return run
