"""Whether a link in the other direction would take copies back: seen where the control topic of that link can
be read at the source.

Links know nothing of each other, and the topics of a link lie on its target: those of one in the other
direction on this one's source. Only `verbatim plan` looks, and it warns: a link that has been moved away from
leaves the same traces as one that runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from common.kafka.client import clients, topics
from common.kafka.client.range_reader import records
from common.link.control_state import Control
from common.ports import Deadline
from verbatim.links.summary import links_in

if TYPE_CHECKING:
    from common.config.settings import Settings

ENDING = ".control"
ANSWER_S = 5.0
AT_A_TIME = 8
"""Readers, one for each topic: one that goes on from topic to topic waits for most of a second until its
client has heard of the next."""


def copied_back(
    settings: Settings,
    source: AdminClient,
    group: str,
    clusters: tuple[str, str],
    copies: Mapping[str, str],
    deadline: Deadline,
) -> list[str]:
    """A line for each topic of `copies` (source topic -> destination) whose records would come back into a
    topic that the link copies.

    `clusters` are the ids of source and target. Raises KafkaTimeout, LinkRefused.
    """
    names = [
        n for n in topics.names(source, "source", deadline) if n.endswith(ENDING) and not settings.selects(n)
    ]
    there = topics.describe(source, names, deadline)
    found = []

    def said(name: str) -> list[tuple[int, bytes | None]]:
        bounds = clients.watermarks(source, name, 0, deadline)
        with closing(clients.reader(settings.client_config("source", "consumer"), group_id=group)) as reader:
            return [(m.offset(), m.value()) for m in records(reader, name, {0: bounds}, ANSWER_S)]

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for read in pool.map(said, [n for n in names if n in there and there[n].partitions == 1]):
            for link, state in links_in(read).items():
                if isinstance(state, Control) and _between(state) == clusters:
                    found += _back(settings, link, copies, state.copies())
    return found


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
