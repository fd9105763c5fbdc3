"""Which topics stages of a pipeline would take records to, by the verdicts of the deduplicator's own code.
Pure."""

from __future__ import annotations

from collections.abc import Callable

from common.link.control_state import Control
from common.pipeline.route_names import routed_topics
from verbatim.plan.report import Action, PlanReport, RoutePlan


def look(report: PlanReport, state: Control, link: str, action: Callable[[str], Action]) -> None:
    """Of each topic in the report, by the newest pipeline; `action`: what would be done to a topic."""
    if (version := state.pipelines.get(state.pipeline)) is None:
        return
    for plan in report.topics:
        for name, count in sorted(routed_topics(version.definition, plan.topic, link).items()):
            verdict = state.routes.get((plan.topic_id, name))
            if verdict is None or name == plan.destination:
                continue
            if verdict.refused is not None:
                plan.routes.append(RoutePlan(name, "refused", verdict.refused))
                report.failures.append(f"topic {plan.topic}, records that are routed: {verdict.refused}")
                continue
            plan.routes.append(RoutePlan(name, action(name)))
            if count is not None:
                report.warnings.append(
                    f"topic {plan.topic}: a stage spreads records over {count} partitions of {name} by their keys: consumer groups are never translated there"
                )
            if verdict.compacted:
                report.warnings.append(
                    f"topic {plan.topic}: a stage routes to {name}, which is compacted: of a key whose later records go elsewhere an older one stays"
                )
