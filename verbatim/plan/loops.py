"""Whether a link in the other direction would take copies back: seen where the control topic of that link can
be read at the source.

Links know nothing of each other, and the topics of a link lie on its target: those of one in the other
direction on this one's source. Only `verbatim plan` looks, and it warns: a link that has been moved away from
leaves the same traces as one that runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import orjson
from confluent_kafka.admin import AdminClient

from common.errors import ControlError
from common.kafka.client import clients, topics
from common.kafka.client.range_reader import records
from common.link.control_state import Control
from common.ports import Deadline

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
            for link, state in _links(read).items():
                made = state.identity
                if made is not None and (made.target_cluster, made.source_cluster) == clusters:
                    found += _back(settings, link, copies, state.copies())
    return found


def _links(said: Iterable[tuple[int, bytes | None]]) -> dict[str, Control]:
    """What a control topic says of each link that uses it; nothing where it is another kind of topic."""
    said = list(said)
    states = {name: Control(link=name) for _, value in said if (name := _link_of(value)) is not None}
    for name, state in list(states.items()):
        try:
            for offset, value in said:
                state.apply(offset, value)
        except ControlError:
            del states[name]
    return states


def _link_of(value: bytes | None) -> str | None:
    try:
        name = orjson.loads(value or b"")["link"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) else None


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
