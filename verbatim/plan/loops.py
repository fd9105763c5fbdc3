"""Whether a link in the other direction would take copies back: seen where the control topic of that link can
be read at the source.

Links know nothing of each other, and the topics of a link lie on its target: those of one in the other
direction on this one's source. Only `verbatim plan` looks, and it warns: a link that has been moved away from
leaves the same traces as one that runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from common.kafka.client import topics
from common.link.control_state import Control
from common.ports import Deadline
from verbatim.links import tails
from verbatim.links.summary import CONTROL, links_in

if TYPE_CHECKING:
    from common.config.settings import Settings


def copied_back(
    settings: Settings,
    source: AdminClient,
    clusters: tuple[str, str],
    copies: Mapping[str, str],
    deadline: Deadline,
) -> tuple[list[str], dict[str, str]]:
    """A line for each topic of `copies` (source topic -> destination) whose records would come back into a
    topic that the link copies; and why control topics there could not be read.

    `clusters` are the ids of source and target. Raises KafkaTimeout, LinkRefused.
    """
    names = topics.names(source, "source", deadline)
    controls = [name for name in names if name.endswith(CONTROL) and not settings.selects(name)]
    said, failed = tails.read(settings.client_config("source", "consumer"), source, controls, None, deadline)
    found = []
    for entries in said.values():
        for link, state in links_in((one.offset, one.value) for one in entries).items():
            if isinstance(state, Control) and _between(state) == clusters:
                found += _back(settings, link, copies, state.copies())
    return found, failed


def _between(state: Control) -> tuple[str, str] | None:
    """The ids of a link's target and source."""
    made = state.identity
    return None if made is None else (made.target_cluster, made.source_cluster)


def _back(settings: Settings, link: str, copies: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    found = []
    for topic, destination in copies.items():
        back = theirs.get(destination)
        if back is not None and settings.selects(back):
            found.append(
                f"topic {topic} goes round: link {link} has copied {destination} of the target back into {back}. If it still runs, set "
                "PROVENANCE_HEADERS on both links; if it is over, nothing keeps its copies from being copied back"
            )
    return found
