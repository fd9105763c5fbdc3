"""Gives topics that were promoted back to their link, which copies on from where it ended: only where the
destination holds nothing behind the copies. Options and output are verbatim/commands/demote.py's part.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from common.config import topic_names
from common.errors import SettingsError
from common.kafka.client import clients, range_reader, topics
from common.link import identity
from common.link.control_log import ControlLog
from common.link.promotions import PROMOTED, Promotion
from common.partitions import PartitionName
from common.ports import Deadline
from offsets.readers import reader_of
from verbatim.moves.promotion import give_back
from verbatim.moves.steps import Doubt, Step, Steps, listed

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 30.0


@dataclass
class Options:
    """`topics`: names and expressions; `quiet_s`: for so long the destinations must stand still; `dry_run`:
    look, and change nothing."""

    topics: tuple[str, ...]
    quiet_s: float = 5.0
    dry_run: bool = False
    tell: Callable[[Step], None] = lambda step: None


class Demotion:
    """One run. `steps` is the report, `found` the topics that are given back."""

    def __init__(self, settings: Settings, options: Options) -> None:
        self.settings = settings
        self.options = options
        self.steps = Steps(options.tell)
        self.found: dict[str, Promotion] = {}

    def run(self) -> None:
        """Raises Doubt, or whatever else stopped it. It may be run again at any time."""
        with self.steps.step("link") as step:
            link, control = identity.prepare(self.settings, True, Deadline(CALL_S), make=False)
            step.found = [f"source cluster {link.source_cluster}, target cluster {link.target_cluster}"]
        with closing(control):
            self.found = self._chosen(control)
            with self.steps.step("source") as step:
                self._source(step)
            with self.steps.step("target") as step:
                self._target(control, step)
            if not self.options.dry_run:
                with self.steps.step("copied") as step:
                    self._give_back(control, step)

    def _chosen(self, control: ControlLog) -> dict[str, Promotion]:
        """Without those that are copied: a run that was killed may have given them back."""
        state = control.refresh(Deadline(CALL_S))
        promotions = state.steering.promotions
        names = {*promotions, *(origin.topic for origin in state.origins.values())}
        for entry in self.options.topics:
            if not any(topic_names.matches(entry, topic) for topic in names):
                raise SettingsError(f"TOPIC: {entry} means no topic of this link")
        return {
            topic: of
            for topic, of in sorted(promotions.items())
            if any(topic_names.matches(entry, topic) for entry in self.options.topics)
        }

    def _promoted(self) -> dict[str, Promotion]:
        """Without those of which nobody was told yet that others may write there."""
        return {topic: of for topic, of in self.found.items() if of.state == PROMOTED}

    def _source(self, step: Step) -> None:
        """It must still have what comes next."""
        admin, deadline = clients.admin(self.settings.client_config("source", "admin")), Deadline(CALL_S)
        there = topics.describe(admin, list(self._promoted()), deadline)
        ends: dict[PartitionName, int] = {}
        doubts = []
        for topic, of in self._promoted().items():
            if topic not in there:
                doubts.append(f"topic {topic} is not at the source any more")
            elif there[topic].id != of.topic_id:
                doubts.append(f"topic {topic} was made again at the source: it would be copied behind")
            else:
                ends |= {(topic, p): end for p, end in enumerate(of.ends)}
        for at, (low, high) in topics.bounds(admin, sorted(ends), deadline).items():
            if not low <= ends[at] <= high:
                doubts.append(
                    f"{at[0]}-{at[1]}: it was copied up to source offset {ends[at]}, and the source has {low} to {high} now"
                )
        if doubts:
            raise Doubt(listed(doubts))
        step.found = [f"{len(self.found)} topics, {len(ends)} partitions: what comes next is there"]

    def _target(self, control: ControlLog, step: Step) -> None:
        """Nobody has written there, nor does."""
        admin, deadline = clients.admin(self.settings.client_config("destination", "admin")), Deadline(CALL_S)
        destinations = {of.destination: of for of in self._promoted().values()}
        there = topics.describe(admin, sorted(destinations), deadline)
        for name in destinations:
            settled = control.state.settled_id(name)
            if name not in there or settled not in (None, there[name].id):
                raise Doubt(f"destination {name} was deleted at the target, or made again")
        copied = {(name, p): end for name, of in destinations.items() for p, end in enumerate(of.copied)}
        before = self._ends(admin, list(copied))
        time.sleep(self.options.quiet_s if copied else 0)
        doubts = self._behind(admin, copied)
        if moved := [at for at, end in self._ends(admin, list(copied)).items() if end != before[at]]:
            doubts += [f"{topic}-{p}: somebody writes there" for topic, p in moved]
        if doubts:
            raise Doubt(listed(doubts))
        step.found = [
            f"{len(copied)} partitions hold nothing behind the copies, and stood still for {self.options.quiet_s:g} s"
        ]

    @staticmethod
    def _ends(admin: AdminClient, partitions: list[PartitionName]) -> dict[PartitionName, int]:
        return topics.ends(admin, partitions, Deadline(CALL_S))

    def _behind(self, admin: AdminClient, copied: dict[PartitionName, int]) -> list[str]:
        """What stands behind the copies, or did: the first of each partition."""
        bounds = topics.bounds(admin, sorted(copied), Deadline(CALL_S))
        stable = topics.ends(admin, sorted(copied), Deadline(CALL_S), committed=True)
        doubts = []
        with closing(reader_of(self.settings)) as reader:
            for at, (low, high) in bounds.items():
                end, words = copied[at], f"{at[0]}-{at[1]} of the target"
                if low > end:
                    doubts.append(
                        f"{words} begins at offset {low}: whether others had written behind the copies, which end at {end}, can't be told"
                    )
                elif stable[at] < high:
                    doubts.append(f"{words}: a transaction is open from offset {stable[at]}")
                elif (
                    first := next(range_reader.of_partitions(reader, {at: (end, high)}, CALL_S), None)
                ) is not None:
                    doubts.append(
                        f"{words} holds offset {first.offset()}, which the link has not written: its copies end at {end}"
                    )
        return doubts

    def _give_back(self, control: ControlLog, step: Step) -> None:
        give_back(control, self.found)
        left = control.refresh(Deadline(CALL_S)).steering.promotions.keys() & self.found.keys()
        if left:
            raise Doubt(f"taken from the link again meanwhile: {', '.join(sorted(left))}")
        step.found = [f"{len(self.found)} topics are copied again, from where they ended"]
