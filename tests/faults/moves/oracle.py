"""What is right after a move: each group has read each record once, each record is where it must be once, and
a topic may be written at one side. Counts what producers, consumers and logs say; knows nothing of how it is
done. Pure.

A record is one of a partition's numbers, counted from 0 in the order of writing, at whichever cluster; what
must not be read has another name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Partition = tuple[str, int]
SOURCE, TARGET = "source", "target"


@dataclass(frozen=True, slots=True)
class Read:
    """A record that a group has read, and has said so. `name`: its number, or what it is called."""

    cluster: str
    topic: str
    partition: int
    name: str


@dataclass
class History:
    """`written`: where each number of a partition was acknowledged; `read`: of each group, in its order;
    `due`: the topics that a group reads."""

    written: dict[Partition, list[str]] = field(default_factory=lambda: defaultdict(list))
    read: dict[str, list[Read]] = field(default_factory=lambda: defaultdict(list))
    due: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def wanted(self, group: str) -> int:
        """How many records a group reads in the end."""
        return sum(len(of) for (topic, _), of in self.written.items() if topic in self.due[group])


def reads(history: History) -> list[str]:
    """What is wrong with what the groups have read, over both clusters: lost, twice, never meant to be read,
    or in another order than the partition's."""
    problems = []
    for group, topics in sorted(history.due.items()):
        found: dict[Partition, list[Read]] = defaultdict(list)
        for read in history.read[group]:
            found[read.topic, read.partition].append(read)
        for at, there in sorted(history.written.items()):
            if at[0] in topics:
                problems += _of_partition(f"group {group}, {at[0]}-{at[1]}", found.pop(at, []), len(there))
        problems += [
            f"group {group}, {topic}-{p}: {len(of)} records that it does not read"
            for (topic, p), of in found.items()
        ]
    return problems


def _of_partition(name: str, found: Sequence[Read], count: int) -> list[str]:
    problems = sequence(name, [read.name for read in found], range(count))
    if problems and found:
        last = {cluster: [r.name for r in found if r.cluster == cluster] for cluster in (SOURCE, TARGET)}
        problems[0] += "; it read " + ", ".join(
            f"{of[0]} to {of[-1]} at the {cluster}" for cluster, of in last.items() if of
        )
    return problems


def sequence(name: str, found: Sequence[str], expected: Iterable[int]) -> list[str]:
    """Whether these are the numbers that are expected, each once, in their order."""
    wanted = [str(number) for number in expected]
    if list(found) == wanted:
        return []
    counted, due = Counter(found), set(wanted)
    lost = [number for number in wanted if number not in counted]
    twice = [number for number in wanted if counted[number] > 1]
    other = sorted(counted.keys() - due)
    told = [("lost", lost), ("twice", twice), ("not meant to be there", other)]
    return [f"{name}: {len(of)} {what}, the first {of[0]}" for what, of in told if of] or [
        f"{name}: in another order"
    ]


def logs(
    history: History, cluster: str, found: Mapping[Partition, Sequence[str]], whole: Iterable[str]
) -> list[str]:
    """What is wrong with a cluster's logs. Those of the topics in `whole` hold each number once; the others
    do so as far as they go, and at least up to the last that was written there."""
    problems, complete = [], set(whole)
    for at, numbers in sorted(found.items()):
        there = history.written[at]
        name = f"{at[0]}-{at[1]} at the {cluster}"
        last = max((n for n, where in enumerate(there) if where == cluster), default=-1)
        count = len(there) if at[0] in complete else max(last + 1, min(len(numbers), len(there)))
        problems += sequence(name, numbers, range(count))
    return problems


def ends(
    name: str, told: Mapping[Partition, tuple[int, int]], found: Mapping[Partition, tuple[int, int]]
) -> list[str]:
    """Where copies end, at the source and behind the last copied record at the target: as the command has
    written it down, and as it was."""
    return [
        f"{name}, {topic}-{p}: {told.get((topic, p))} was written down, and it was {at}"
        for (topic, p), at in sorted(found.items())
        if told.get((topic, p)) != at
    ]


def writable(state: str | None, is_denied: bool, settled: bool) -> list[str]:
    """Who may write a copy. `state`: of its topic's promotion, None where the link copies it; `settled`:
    nothing is under way any more. A promotion is on record before others may write."""
    if state != "promoted" and not is_denied:
        return [f"others may write, and the topic is {state or 'copied'}"]
    if state == "promoted" and is_denied and settled:
        return ["others may not write, and the topic is promoted"]
    return []
