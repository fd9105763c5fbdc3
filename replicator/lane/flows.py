"""What the pipeline of a lane's plan does with the records of each topic. Only where one is given: the engine
takes its time to be imported."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from common.link.control_records import NO_FLOWS
from replicator.lane.schema_ids import SchemaIds
from replicator.lane.through_flow import Flow
from replicator.lane_plan import PipelinePlan

if TYPE_CHECKING:
    from common.pipeline.avro_values import Texts
    from common.pipeline.engine import Engine
    from common.pipeline.schema_ids import Targets
    from common.pipeline.tolerating import Tolerated


class Flows:
    """Of one lane. Raises SettingsError where a key is not there, or a stage can't run here."""

    def __init__(self, plan: PipelinePlan | None, link: str, schema_ids: SchemaIds) -> None:
        self.number = 0 if plan is None else plan.n
        self.schema_ids = schema_ids
        self._link = link
        self._engine = (
            None
            if plan is None or plan.definition == NO_FLOWS
            else ready(plan, schema_ids.target, schema_ids.avro)
        )

    def of(self, topic: str, partition: int) -> Flow | None:
        """None: no flow takes the topic."""
        flow = None if self._engine is None else self._engine.flow_of(topic)
        if flow is None:
            return None
        from common.pipeline.batch import Origin

        return Flow(partial(flow.apply, origin=Origin(self._link, topic, partition)), flow.looks_only)

    def tolerated(self, topic: str, offsets: list[int]) -> Tolerated | None:
        """What counts records that a stage fails on, with those that were counted before. None: nobody
        counts them."""
        flow = None if self._engine is None else self._engine.flow_of(topic)
        if flow is None or flow.tolerate is None:
            return None
        from common.pipeline.tolerating import Tolerated

        return Tolerated(flow.tolerate, offsets)


def ready(plan: PipelinePlan, targets: Targets, texts: Texts) -> Engine:
    """With the keys and modules that this machine has. Raises SettingsError, also where they are others."""
    from common.pipeline.definition import defined, must_be_its_code, must_be_its_keys, read_keys
    from common.pipeline.engine import Engine

    made = defined(plan.definition, plan.keys)
    keys = read_keys(made, os.environ)
    must_be_its_keys(plan.definition, keys)
    engine = Engine(made, keys, targets, texts)
    must_be_its_code(plan.definition, engine.code)
    return engine
