"""Whether a link may be turned round: what was written down where its copies end must still be all that there
is to say. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from common.kafka.client.topics import TopicInfo
from common.link.control_kinds import HandedOver
from common.link.control_state import Control
from common.partitions import PartitionName
from verbatim.moves.link_progress import Link
from verbatim.verify.comparison import Kind, PartitionReport


def judge_handover(
    state: Control, link: Link, found: Iterable[TopicInfo], empty: Collection[str]
) -> tuple[list[HandedOver], list[str]]:
    """Where copies end of the topics that are copied, by name; and why that can't be gone by. `found`: the
    source topics that are selected, as they are now; `empty`: those that hold nothing. A topic of which
    nothing was ever copied has no way back, and is in nobody's."""
    handed: list[HandedOver] = []
    ids = {t.name: t.id for t in found}
    doubts = promoted(state, ids)
    for topic in sorted(
        ({of.topic for of in link.partitions.values()} & ids.keys()) - state.steering.promotions.keys()
    ):
        before = [of for of in state.handed_over.values() if of.topic == topic]
        of_now = state.handed_over.get(ids[topic])
        if of_now is not None:
            handed.append(of_now)
        elif before and topic in empty:
            handed.append(replace(before[-1], topic_id=ids[topic], delivered=(), emptied=True))
        elif before:
            doubts.append(
                f"topic {topic} was made again at the source since {before[-1].by}, and holds records: it is copied back whole "
                "only while it holds none"
            )
        elif (to := state.destinations.get(ids[topic])) is not None and to.topic in state.settled:
            doubts.append(
                f"topic {topic}: neither a cutover nor a failover has come to its end: nobody knows where its copies end"
            )
    for of in handed:
        for p, delivered in enumerate(of.delivered):
            at = link.partitions.get((of.topic_id, p))
            if at is not None and at.mapped is not None and at.mapped > delivered:
                doubts.append(
                    f"{of.topic}-{p}: the link has gone on copying since {of.by}, from source offset {delivered} to {at.mapped}: "
                    f"run `verbatim {of.by}` again"
                )
        more = [key for key in link.partitions if key[0] == of.topic_id and key[1] >= len(of.delivered)]
        doubts += [f"{of.topic}-{p}: it has come since {of.by}: run that again" for _, p in sorted(more)]
    if not handed and not doubts:
        doubts.append("the link copies no topic that is there")
    return handed, doubts


def promoted(state: Control, names: Iterable[str]) -> list[str]:
    """Topics that `cutover --topic` has taken from the link: it speaks of no way back of theirs."""
    return [
        f"topic {name} is {of.state}, and not the link's to be turned round: leave it out (KAFKA_CLUSTERS_SOURCE_TOPIC_EXCLUDE), "
        f"or `verbatim demote {name}` first"
        for name in sorted(names)
        if (of := state.steering.promotions.get(name)) is not None
    ]


def judge_target(
    handed: Iterable[HandedOver],
    there: Mapping[str, TopicInfo],
    bounds: Mapping[PartitionName, tuple[int, int]],
) -> list[str]:
    """Why the records behind the copies are not all there."""
    doubts: list[str] = []
    for of in handed:
        info = there.get(of.destination)
        if info is None or info.id != of.destination_id:
            doubts.append(f"topic {of.destination} was deleted or made again at the target since {of.by}")
            continue
        for p, end in enumerate(of.ends):
            low, high = bounds[of.destination, p]
            if high < end:
                doubts.append(
                    f"{of.destination}-{p}: the target's log ends at {high}, the copies did at {end}"
                )
            elif low > end and not of.emptied:
                doubts.append(
                    f"{of.destination}-{p}: offsets {end} to {low - 1} are gone from the target (retention), and were not copied back"
                )
    return doubts


@dataclass(frozen=True, slots=True)
class Uncopied:
    """Offsets of a source partition that were never copied: from `start`, what is left of them from `low`, to
    `end`; `shorter`: how many offsets the source has less than were copied."""

    start: int
    low: int
    end: int

    @property
    def shorter(self) -> int:
        return max(0, self.start - self.end)


def never_copied(
    handed: Iterable[HandedOver], bounds: Mapping[PartitionName, tuple[int, int]]
) -> dict[PartitionName, Uncopied]:
    """By source partition; also of topics and partitions that were never copied at all. `bounds`: log start
    and end of all of them."""
    by_topic = {of.topic: of for of in handed}
    found = {}
    for (topic, p), (low, end) in bounds.items():
        delivered = by_topic[topic].delivered if topic in by_topic else ()
        start = delivered[p] if p < len(delivered) else 0
        found[topic, p] = Uncopied(start, max(low, start), end)
    return found


def judge_source(found: Mapping[PartitionName, Uncopied], stable: Mapping[PartitionName, int]) -> list[str]:
    """What keeps it from being known which records were never copied. `stable`: last stable offsets."""
    doubts = []
    for (topic, p), of in sorted(found.items()):
        if of.shorter:
            doubts.append(
                f"{topic}-{p}: the source's log ends at {of.end}, and was copied up to {of.start}: it has lost records that the target has"
            )
        elif stable[topic, p] < of.end:
            doubts.append(
                f"{topic}-{p}: a transaction is open at the source from offset {stable[topic, p]}: wait until it has ended"
            )
    return doubts


def differences(found: PartitionReport, of: HandedOver) -> list[str]:
    """What a comparison found among what was copied. Behind that both sides have gone their own ways."""
    p = found.partition
    start = of.delivered[p] if p < len(of.delivered) else 0
    end = of.ends[p] if p < len(of.ends) else 0
    doubts = []
    for kind, finding in sorted(found.findings.items()):
        # Where the first is; of those that the target has too many it goes by the target's offsets.
        at_target = kind in (Kind.FOREIGN, Kind.DUPLICATED) or finding.source_offset is None
        place, limit = (finding.destination_offset, end) if at_target else (finding.source_offset, start)
        if place is None or place < limit:
            doubts.append(f"{found.topic}-{p}: {finding.count:,} {kind}")
    return doubts
