"""Which source topics are routed to several topics: what does not go with that is refused by name. Pure."""

from __future__ import annotations

from collections.abc import Container

from common.errors import LinkRefused
from common.link.control_state import Control
from common.pipeline.route_names import routed_topics

ONE_COPY = "consumers that move go on with one copy of a topic, and to move them to several is not built"
NO_WAY_BACK = "a link back that puts them together again is not built"


def refuse_routes(state: Control, link: str, what: str, topics: Container[str] = ()) -> None:
    """Refuse a command where a version of the pipeline, now or before, takes records of one of these topics
    (none: of any) elsewhere. `what`: why that does not go. Raises LinkRefused."""
    for name in state.running_topics():
        if topics and name not in topics:
            continue
        for number, version in state.pipelines.items():
            if found := routed_topics(version.definition, name, link):
                raise LinkRefused(
                    f"topic {name}: version {number} of the pipeline routes its records to {', '.join(sorted(found))}; {what}"
                )
