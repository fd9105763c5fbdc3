"""Where the copies of a link end when its consumers go over to the target: found by a cutover or a failover,
and written down for the way back (verbatim/moves/back.py).

By then all that is staged is delivered. The end is that of the last copied record, as the mappings tell it,
and not that of the log: behind it is the marker of its transaction, and a group that has read all stands
before that. Where the mappings are kept no more, the log tells.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from common.kafka.client import topics
from common.kafka.client.topics import TopicInfo
from common.link.control_kinds import HandedOver
from common.link.control_state import Control
from common.partitions import PartitionId, PartitionName
from common.ports import Deadline
from verbatim.moves.freshness import last_records
from verbatim.moves.steps import Doubt, listed

if TYPE_CHECKING:
    from offsets.survey import Survey

CALL_S = 30.0


def hand_over(survey: Survey, delivered: Mapping[PartitionId, int], by: str) -> list[str]:
    """Write down where the copies end of the topics of which `delivered` tells all partitions; what is to be
    told of the others.

    What was written down before stays where nothing was delivered since: the destination may hold records of
    its own producers by now. Raises Doubt where a transaction is open at the target.
    """
    deadline = Deadline(CALL_S)
    state = survey.control.refresh(deadline)
    due, left = due_of(state, delivered)
    there = topics.describe(survey.target_admin, sorted({to for _, to in due}), deadline)
    partitions = [(t.name, p) for t in there.values() for p in range(t.partitions)]
    ends = topics.ends(survey.target_admin, partitions, deadline)
    stable = topics.ends(survey.target_admin, partitions, deadline, committed=True)
    if still := [f"{t}-{p} from offset {stable[t, p]}" for t, p in sorted(ends) if stable[t, p] < ends[t, p]]:
        raise Doubt(f"a transaction is open at the target: {listed(still)}: run it again once it has ended")
    known = survey.tail.index.copied_ends()
    rest = [at for at in partitions if at not in known]
    by_log: dict[PartitionName, int] = {}
    for at, message in last_records(survey.settings, survey.target_admin, rest, deadline):
        by_log[at] = max(by_log.get(at, 0), message.offset() + 1)
    now_ms = int(time.time() * 1000)
    said = [
        HandedOver(
            next(of.topic for key, of in state.origins.items() if key[0] == topic_id),
            topic_id,
            to,
            info.id,
            by,
            tuple(delivered[topic_id, p] for p in range(_count(topic_id, delivered))),
            tuple({**ends, **by_log, **known}[to, p] for p in range(info.partitions)),
            now_ms,
        )
        for topic_id, to in due
        if (info := there.get(to)) is not None and _is_the_same(state, topic_id, info)
    ]
    survey.control.append_all(said, deadline)
    told = {of.topic_id for of in said}
    return left + [
        f"{to} is not what the link has copied into" for topic_id, to in due if topic_id not in told
    ]


def due_of(state: Control, delivered: Mapping[PartitionId, int]) -> tuple[list[tuple[str, str]], list[str]]:
    """Ids and destinations of topics that are to be written down; what is to be told of those of which it
    can't be said where their copies end. Pure."""
    due: list[tuple[str, str]] = []
    left: list[str] = []
    for topic_id in sorted({of for of, _ in delivered}):
        to, before = state.destinations.get(topic_id), state.handed_over.get(topic_id)
        count = _count(topic_id, delivered)
        if to is None or to.topic not in state.settled:
            continue  # nothing of it was ever copied
        if any((topic_id, p) not in delivered for p in range(count)):
            left.append(f"{to.topic}: how far some of its partitions are delivered is not known")
        elif any(of.topic_id == topic_id for of in state.steering.promotions.values()):
            left.append(f"{to.topic}: `cutover --topic` has taken it from the link")
        elif state.has_several_sources(to.topic):
            left.append(f"{to.topic} holds records of several sources")
        elif before is None or not (
            before.emptied or before.delivered == tuple(delivered[topic_id, p] for p in range(count))
        ):
            due.append((topic_id, to.topic))
    return due, left


def _count(topic_id: str, delivered: Mapping[PartitionId, int]) -> int:
    return 1 + max(p for of, p in delivered if of == topic_id)


def _is_the_same(state: Control, topic_id: str, info: TopicInfo) -> bool:
    return state.destinations[topic_id].id in (None, info.id)
