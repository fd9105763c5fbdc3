"""Which topics' copies `verbatim cutover --topic` has taken from the link: others write there, and nothing is
copied any more. Pure; records of the control topic change it.

Two steps, so that nobody writes between records of the link. PROMOTING: the replicator reads the topic no
longer, and whoever owns a staging partition leaves out what lies beyond the ends that are named, and says so.
PROMOTED: that was said of each partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from common.link import control_kinds as kinds
from common.partitions import PartitionId

PROMOTING, PROMOTED, COPIED = "promoting", "promoted", "copied"
"""States of a topic: as above, and that the link copies it, again or still."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """A topic that is not copied any more. `at`: the control offset of the record by which it was taken;
    `ends`: of each partition of the topic with that id, the source offset up to which it was copied;
    `copied`: where promoted, the destination's offset behind the last copied record; `let_go`: partition ->
    the source offset that it was delivered up to when the deduplicator had let go of it."""

    at: int
    topic_id: str
    destination: str
    state: str
    ends: tuple[int, ...]
    copied: tuple[int, ...] = ()
    let_go: Mapping[int, int] = field(default_factory=dict)

    @property
    def stands(self) -> bool:
        """Whether the deduplicator has let go of all of it, delivered up to its ends."""
        return all(self.let_go.get(p) == end for p, end in enumerate(self.ends))

    def end(self, key: PartitionId) -> int:
        """The source offset up to which a partition is taken: nothing of another topic of the name."""
        topic_id, partition = key
        return self.ends[partition] if topic_id == self.topic_id and partition < len(self.ends) else 0

    def copied_end(self, key: PartitionId) -> tuple[int, int] | None:
        """Where a partition that is promoted ends, at the source and at the destination; None for one that is
        not."""
        topic_id, partition = key
        if self.state != PROMOTED or topic_id != self.topic_id or partition >= len(self.ends):
            return None
        return self.ends[partition], self.copied[partition]


Promotions = Mapping[str, Promotion]
"""Topic -> how far it is."""


def promoted(before: Promotions, offset: int, r: kinds.Promotion) -> Promotions:
    """What a record makes of it. Raises TypeError for one that can't be."""
    have = before.get(r.topic)
    if r.state == PROMOTING:
        # Whoever takes it last goes on: another run that is under way finds its own record gone.
        if have is not None and have.state == PROMOTED:
            return before
        return {**before, r.topic: Promotion(offset, r.topic_id, r.destination, r.state, r.ends)}
    if r.state == PROMOTED:
        if len(r.copied) != len(r.ends):
            raise TypeError(f"copied has {len(r.copied)} offsets, ends {len(r.ends)}")
        if have is None or have.state != PROMOTING or have.at != r.answers or not have.stands:
            return before
        return {**before, r.topic: replace(have, state=PROMOTED, copied=r.copied)}
    if r.state != COPIED:
        raise TypeError(f"state is {r.state!r}")
    if have is None or have.at != r.answers:
        return before
    return {topic: of for topic, of in before.items() if topic != r.topic}


def destinations(found: Promotions) -> set[str]:
    """The copies that others write."""
    return {of.destination for of in found.values() if of.state == PROMOTED}


def let_go(before: Promotions, r: kinds.LetGo) -> Promotions:
    """The deduplicator has let go of a partition. An answer to an earlier record says nothing of this one."""
    have = before.get(r.topic)
    if have is None or have.at != r.answers or have.topic_id != r.topic_id:
        return before
    return {**before, r.topic: replace(have, let_go={**have.let_go, r.partition: r.next})}
