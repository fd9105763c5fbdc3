"""What the move of a consumer group waits for, and what it refuses to go on with. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from offsets.commit_rule import MEANINGS
from offsets.failback import Back
from offsets.group_offsets import GroupKey
from offsets.group_protocol import Group, Member
from offsets.survey import Found, Row
from offsets.translation_index import AHEAD, BEYOND, NOTHING_COPIED, PartitionIndex
from offsets.two_way import INTERLEAVED, NOT_BACK_YET
from verbatim.moves.steps import listed

NO_OFFSET = "it has committed no offset in a topic that the link copies"
STREAMS = ("-changelog", "-repartition")
"""How the names of the topics end that Kafka Streams makes for an application; they begin with its group."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What stands in the way of a group: `members`, which may leave; `copy`, which may come that far;
    `never`, what no wait mends."""

    members: list[str] = field(default_factory=list)
    copy: list[str] = field(default_factory=list)
    never: list[str] = field(default_factory=list)

    def stop(self, side: str) -> None:
        """Members where none may be: told once, whichever partition shows it."""
        if (line := f"it has members at the {side}: stop them") not in self.members:
            self.members.append(line)

    @property
    def obstacles(self) -> list[str]:
        return self.never or [*self.members, *self.copy]


def judge(
    group: str,
    found: Found,
    copied: Collection[str],
    who: Sequence[Member],
    behind: Mapping[GroupKey, str],
    accept_redelivery: bool,
) -> Verdict:
    """A group on its way to the target. `copied`: the topics that the link copies; `who`: its members at the
    source; `behind`: how far partitions are copied that are not copied up to the group's offset."""
    if (of := found.listed.get(group)) is None:
        return Verdict(never=["there is no such group at the source, or it may not be seen (DESCRIBE)"])
    verdict = Verdict()
    rows = [row for row in found.rows if row.key.group == group]
    left = [of for of in found.unmoved if of.group == group]
    for one in left:
        (verdict.members if one.outcome == "failed" else verdict.never).append(one.detail)
    if of.active:
        verdict.members.append(f"it has members at the source{_named(who)}")
    seen = {(row.key.topic, row.key.partition) for row in rows}
    verdict.copy.extend(
        f"{topic}-{p} is not copied yet"
        for topic, p in sorted(found.offsets.get(group, {}))
        if topic in copied and (topic, p) not in seen
    )
    if not (rows or left or verdict.copy):
        verdict.never.append(NO_OFFSET)
    for row in rows:
        _judge_row(verdict, row, of.active, behind, accept_redelivery)
    return verdict


def _judge_row(
    verdict: Verdict, row: Row, active: bool, behind: Mapping[GroupKey, str], accept_redelivery: bool
) -> None:
    record, outcome = row.record, row.record.outcome
    name = f"{row.key.topic}-{row.key.partition}"
    if outcome == "active":
        verdict.stop("target")
    elif outcome.startswith("several-") or outcome == "repartitioned":
        verdict.never.append(f"{name}: {outcome}: {MEANINGS[outcome]}")
    elif active:
        return  # where it will have stopped is not known yet
    elif outcome == "beyond-source":
        verdict.never.append(f"{name}: {outcome}: {MEANINGS[outcome]}")
    elif row.key in behind:
        verdict.copy.append(
            f"{name}: not copied up to source offset {record.source_offset} ({behind[row.key]})"
        )
    elif record.why == NOT_BACK_YET:
        verdict.copy.append(f"{name}: the link back is not where it would stand at the target")
    elif record.why == INTERLEAVED and not accept_redelivery:
        verdict.never.append(
            f"{name}: source offset {record.source_offset}: {_interleaved('target', 'source')}"
        )
    elif not record.exact and not accept_redelivery:
        verdict.never.append(
            f"{name}: source offset {record.source_offset} can't be translated exactly ({record.why}): records would be read again"
        )
    elif outcome == "failed":
        verdict.members.append(f"{name}: its offset at the target can't be read: {record.detail}")
    elif outcome not in ("written", "in-step"):
        verdict.never.append(f"{name}: {outcome}: {MEANINGS[outcome]}")


def judge_back(
    group: str,
    there: Mapping[str, Group],
    rows: Sequence[Back],
    moved: Iterable[GroupKey],
    who: Sequence[Member],
    accept_redelivery: bool,
) -> Verdict:
    """A group on its way back to the source. `there`: the target's groups, by the source's names; `moved`:
    what it was moved with; `who`: its members at the target."""
    verdict = Verdict()
    # How far it has read there is not known any more; where it stands at the source, it would read again.
    verdict.never.extend(
        f"{key.topic}-{key.partition}: the target's group has no offset there any more"
        for key in sorted(set(moved) - {row.key for row in rows})
    )
    if group in there and there[group].active:
        verdict.members.append(f"it has members at the target{_named(who)}")
    for row in rows:
        name = f"{row.key.topic}-{row.key.partition}"
        if row.outcome == "active":
            verdict.stop("source")
        elif row.outcome == "target-ahead":
            verdict.never.append(f"{name}: the source's group is ahead, at offset {row.committed}")
        elif row.outcome not in ("written", "in-step"):
            verdict.never.append(f"{name}: {row.outcome}: {row.detail or MEANINGS[row.outcome]}")
        elif row.found.why in (NOT_BACK_YET, AHEAD, NOTHING_COPIED):
            verdict.copy.append(
                f"{name}: the link back has not copied up to target offset {row.target.offset}"
            )
        elif row.found.why == INTERLEAVED and not accept_redelivery:
            verdict.never.append(
                f"{name}: target offset {row.target.offset}: {_interleaved('source', 'target')}"
            )
        elif not (row.found.exact or row.found.why == BEYOND or accept_redelivery):
            verdict.never.append(
                f"{name}: target offset {row.target.offset} can't be translated back exactly ({row.found.why}): "
                "records would be read again"
            )
    return verdict


def is_behind(row: Row, known: PartitionIndex | None) -> bool:
    """Whether a group's offset has no exact translation yet, and will have one once more is copied. Before
    the first mapping comes, all else that is known of a partition are bounds from former looks."""
    late = row.record.why in (AHEAD, NOTHING_COPIED) or known is None or known.start is None
    return late and not row.record.exact


def streams_topics(
    group: str, target_group: str, names: Iterable[str], copies: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """The topics that Kafka Streams has made for a group's application, and what keeps it from finding them
    at the target. `names`: the source's topics; `copies`: source topic -> destination."""
    own = [name for name in names if group and name.startswith(f"{group}-") and name.endswith(STREAMS)]
    wrong = []
    for name in own:
        wanted = target_group + name.removeprefix(group)
        if name not in copies:
            wrong.append(f"{name}, a topic of its Streams application, is not copied: let the link select it")
        elif copies[name] != wanted:
            wrong.append(
                f"{name}, a topic of its Streams application, is copied to {copies[name]}, and {wanted} would be looked for"
            )
    return own, wrong


def _interleaved(there: str, here: str) -> str:
    return (
        f"a record that it has not read stands at the {there} before one that it has: let it read on at the {here} while nothing is produced "
        "at one of the two sides"
    )


def _named(who: Sequence[Member]) -> str:
    return f": {listed([str(member) for member in who])}" if who else ""
