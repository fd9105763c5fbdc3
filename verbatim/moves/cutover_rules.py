"""What a cutover takes for sure, and what it refuses to go on with. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from common.config import topic_names
from common.errors import SettingsError
from common.kafka.client.topics import TopicInfo
from common.link.control_state import Control
from common.link.promotions import PROMOTED, PROMOTING, Promotions
from common.partitions import PartitionId, PartitionName
from offsets.commit_rule import MEANINGS
from offsets.group_offsets import GroupKey
from offsets.groups import shown
from offsets.survey import Row, Unmoved
from verbatim.moves.link_progress import Link
from verbatim.verify.comparison import Kind, PartitionReport


def moved(
    before: Mapping[PartitionName, int],
    after: Mapping[PartitionName, int],
    stable: Mapping[PartitionName, int],
) -> list[str]:
    """Why the source can't be said to stand still: ends that differ between two looks, partitions that came
    or went, open transactions (`stable`: last stable offsets, of the second look)."""
    out = [
        f"{topic}-{p}: its end has moved from offset {before[(topic, p)]} to {after[(topic, p)]}"
        for topic, p in sorted(before.keys() & after.keys())
        if before[(topic, p)] != after[(topic, p)]
    ]
    out += [f"{topic}-{p} has come or gone" for topic, p in sorted(before.keys() ^ after.keys())]
    out += [
        f"{topic}-{p}: a transaction is open from offset {stable[(topic, p)]}"
        for topic, p in sorted(after)
        if stable[(topic, p)] < after[(topic, p)]
    ]
    return out


def behind(link: Link, ends: Mapping[PartitionId, int], names: Mapping[PartitionId, str]) -> list[str]:
    """Partitions of which something is not delivered yet, or that can't be told of; all of `ends` must be."""
    out = []
    for key, end in ends.items():
        known = link.partitions.get(key)
        if known is None:
            out.append(f"{names[key]} is not copied yet")
            continue
        delivered = known.delivered(link.drained)
        if known.stuck is not None:
            out.append(f"{names[key]} stands still: {known.stuck}")
        elif delivered is None:
            out.append(f"{names[key]}: how far it is delivered can't be told yet")
        elif delivered < end:
            out.append(f"{names[key]}: delivered up to offset {delivered} of {end}")
    return out


def paused(state: Control, topics: list[str]) -> list[str]:
    """The topics that an operator has paused, or begun to promote."""
    steering = state.steering
    return [
        f"topic {name} is {of.state}: `verbatim cutover --topic {name}` again, or `verbatim demote {name}`"
        for name in topics
        if (of := steering.promotions.get(name)) is not None and of.state == PROMOTING
    ] + [
        f"topic {name} is paused: `verbatim resume {name}`"
        for name in topics
        if steering.paused_by(name) is not None
    ]


def beyond(link: Link, ends: Mapping[PartitionId, int], names: Mapping[PartitionId, str]) -> list[str]:
    """Partitions of which more was delivered than the source had: it has gone on since, or its log was cut,
    and no wait mends that."""
    return [
        f"{names[key]}: delivered up to offset {known.mapped}, but the source ended at {end}"
        for key, end in ends.items()
        if (known := link.partitions.get(key)) is not None and known.mapped is not None and known.mapped > end
    ]


def chosen(
    found: Sequence[TopicInfo], entries: Sequence[str], promotions: Promotions
) -> tuple[list[TopicInfo], list[str]]:
    """Of the topics that the link selects those that are moved, and the names of those that were promoted
    before. `entries`: names and expressions, none: all. Raises SettingsError for one that means none."""
    names = {t.name for t in found} | promotions.keys()
    for entry in entries:
        if not any(topic_names.matches(entry, name) for name in names):
            raise SettingsError(f"--topic: {entry} means no topic that this link copies")
    meant = [t for t in found if not entries or any(topic_names.matches(entry, t.name) for entry in entries)]
    is_kept = {t.name for t in meant if t.name in promotions and promotions[t.name].state == PROMOTED}
    return [t for t in meant if t.name not in is_kept], sorted(is_kept)


def has_gone_on(row: Row) -> bool:
    """Whether a group reads on at the target behind all that it would have read of a promoted topic at the
    source."""
    record = row.record
    ahead = record.offset is not None and row.committed is not None and row.committed >= record.offset
    return ahead and record.exact and record.outcome in ("active", "target-ahead")


def stay(
    offsets: Mapping[str, Mapping[PartitionName, object]], rows: Sequence[Row], moved: Collection[str]
) -> dict[str, list[PartitionName]]:
    """Group that moves -> its partitions of topics other than those `moved`. `offsets`: what each group has
    committed at the source."""
    found = {
        group: sorted(at for at in offsets.get(group, {}) if at[0] not in moved)
        for group in sorted({row.key.group for row in rows})
    }
    return {group: others for group, others in found.items() if others}


def told_of(stay: Mapping[str, Sequence[PartitionName]]) -> list[str]:
    """The same for people."""
    return [
        f"group {shown(group)} goes on at the source with {', '.join(sorted({topic for topic, _ in others}))}: "
        "let its consumers there subscribe to nothing else, nor those at the target to these"
        for group, others in stay.items()
    ]


@dataclass(frozen=True, slots=True)
class Groups:
    """`due`: to be written by a round of `offsets`; `doubts`: what keeps them from going on exactly where
    they stopped; `inexact`: how many partitions would read some records again, where that is accepted."""

    due: list[GroupKey]
    doubts: list[str]
    inexact: int


def judge_groups(
    rows: list[Row], in_use: Mapping[str, bool], accept_redelivery: bool, unmoved: Sequence[Unmoved] = ()
) -> Groups:
    """`in_use`: source groups -> whether they have members there; `unmoved`: those that would be left
    behind."""
    due, inexact = [], 0
    doubts = [
        f"group {shown(group)} has members at the source: stop its consumers"
        for group in sorted({row.key.group for row in rows if in_use.get(row.key.group, False)})
    ]
    doubts += [
        f"group {shown(left.group)} can't be moved ({left.outcome}): {left.detail}; CONSUMER_GROUPS_EXCLUDE leaves it out"
        for left in unmoved
    ]
    for row in still_here(rows):
        record, name = row.record, f"group {shown(row.key.group)}, {row.key.topic}-{row.key.partition}"
        if record.outcome not in ("written", "in-step"):
            detail = f" ({record.detail or record.why})" if record.detail or record.why else ""
            doubts.append(f"{name}: {record.outcome}: {MEANINGS[record.outcome]}{detail}")
            continue
        if not record.exact and not accept_redelivery:
            doubts.append(
                f"{name}: source offset {record.source_offset} can't be translated exactly ({record.why}): records would be read again"
            )
        inexact += not record.exact
        if record.outcome == "written":
            due.append(row.key)
    return Groups(due, doubts, inexact)


def still_here(rows: Sequence[Row]) -> list[Row]:
    """Without groups that were moved before: what they do at the target is their own."""
    return [row for row in rows if row.record.outcome != "moved"]


def judge_comparison(
    partitions: Sequence[PartitionReport], rows: Sequence[Row]
) -> tuple[list[str], list[str]]:
    """What a comparison found, and stands against the move; and what does not: records that the target has no
    more, and every group has read."""
    doubts: list[str] = []
    told: list[str] = []
    for p in partitions:
        name = f"{p.topic}-{p.partition}"
        unread = any(
            (r.key.topic, r.key.partition) == (p.topic, p.partition) and r.record.source_offset < p.gone_to
            for r in rows
        )
        for kind in Kind:
            if (found := p.findings.get(kind)) is None:
                continue
            detail = f" ({found.detail})" if kind is Kind.HALTED else ""
            line = f"{name}: {found.count:,} {kind}{detail}"
            (told if kind is Kind.GONE and not unread else doubts).append(line)
        if p.behind:
            doubts.append(f"{name}: {p.behind:,} records not at the destination")
    return doubts, told


def positions(rows: list[Row]) -> dict[GroupKey, tuple[int, int | None, int | None]]:
    """What must not have changed at the end: source offset, translation, and what the target's group has."""
    return {row.key: (row.record.source_offset, row.record.offset, row.committed) for row in rows}
