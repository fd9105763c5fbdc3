"""Takes topics out of a link, whose copies others are to write: nothing is copied any more, and where the
copies end is on record. How the link knows of it is common/link/promotions.py's part.

The topics stand still, are delivered to their ends and compared. First the control topic says so: the
replicator reads no further, and the deduplicator answers for each partition that it delivers nothing more.
Only then is it certain that nothing of the link comes behind what is there, and the copies' ends are written
down: a group that has read all at the source stands there, whoever writes behind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from common.config import topic_names
from common.errors import VerbatimError
from common.kafka.client import topics
from common.kafka.client.topics import TopicInfo
from common.link import control_kinds as kinds
from common.link.acl_sync import keeps_from_writing
from common.link.control_log import ControlLog
from common.link.control_records import DEDUPLICATOR
from common.link.promotions import COPIED, PROMOTED, PROMOTING, Promotion
from common.partitions import PartitionName
from common.ports import Deadline
from offsets.survey import Survey
from verbatim.moves import cutover_rules
from verbatim.moves.link_progress import Standings
from verbatim.moves.steps import Doubt, Step, listed, wait_for

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 30.0
ANSWER_S = 10.0
"""For so long at least the deduplicator is waited for."""


@dataclass(frozen=True, slots=True)
class Promoted:
    """A topic that others may write to. `ends`: of each partition the end of what was copied, at the source
    and at the destination; `before`: a former run has promoted it."""

    topic: str
    destination: str
    ends: list[tuple[int, int]]
    before: bool = False


def release(control: ControlLog, entries: Collection[str]) -> None:
    """Give topics whose promotion has begun and not ended back to the link."""
    found = control.refresh(Deadline(CALL_S)).steering.promotions
    give_back(
        control,
        {
            topic: of
            for topic, of in found.items()
            if of.state == PROMOTING and any(topic_names.matches(entry, topic) for entry in entries)
        },
    )


def give_back(control: ControlLog, found: Mapping[str, Promotion]) -> None:
    """Write down that the link copies these again, or still."""
    records = [
        kinds.Promotion(topic, of.topic_id, of.destination, COPIED, answers=of.at)
        for topic, of in found.items()
    ]
    if records:
        control.append_all(records, Deadline(CALL_S))


class Promoting:
    """One run's."""

    def __init__(self, settings: Settings, survey: Survey, standings: Standings, wait_s: float) -> None:
        self.settings = settings
        self.survey = survey
        self.control = survey.control
        self.standings = standings
        self.wait_s = wait_s
        self._taken: dict[str, int] = {}
        """Topic -> where the control topic says that this run takes it."""

    def before(self, names: Collection[str]) -> list[Promoted]:
        """What former runs have promoted."""
        found = self.control.state.steering.promotions
        return [_promoted(name, found[name], before=True) for name in sorted(names)]

    def hold(self, found: list[TopicInfo], ends: Mapping[PartitionName, int], step: Step) -> None:
        """Have nothing more of the topics delivered: what the deduplicator has answered. Raises Doubt."""
        state = self.control.refresh(Deadline(CALL_S))
        to = {t.name: state.destinations[t.id].topic for t in found}
        if met := sorted(name for name, copy in to.items() if state.has_several_sources(copy)):
            raise Doubt(f"the copies of several topics are in one destination: {', '.join(met)}")
        records = [
            kinds.Promotion(
                t.name, t.id, to[t.name], PROMOTING, tuple(ends[t.name, p] for p in range(t.partitions))
            )
            for t in found
        ]
        self._ends = ends
        try:
            places = self.control.append_all(records, Deadline(CALL_S))
            self._taken = dict(zip((t.name for t in found), places, strict=True))
            wait_for(self._held, Deadline(max(self.wait_s, ANSWER_S)))
            self._still()
        except (VerbatimError, KafkaException):
            self._release()
            raise
        step.found = [f"{len(ends)} partitions: nothing more is delivered, whatever comes at the source"]

    def _held(self) -> list[str]:
        self.control.refresh(Deadline(CALL_S))
        silent = []
        for name, of in self._mine().items():
            for p, end in enumerate(of.ends):
                reached = of.let_go.get(p)
                if reached is None:
                    silent.append(f"{name}-{p}: the deduplicator has not let go of it")
                elif reached != end:
                    raise Doubt(f"{name}-{p} was delivered up to offset {reached}, its end was {end}")
        if silent and not self.standings.led(DEDUPLICATOR, Deadline(CALL_S)):
            raise Doubt(f"not running: {DEDUPLICATOR}, and {listed(silent)}")
        return silent

    def _still(self) -> None:
        """The source has got nothing more until nothing more was copied."""
        admin, deadline = self.survey.source_admin, Deadline(CALL_S)
        now = topics.ends(admin, list(self._ends), deadline)
        stable = topics.ends(admin, list(self._ends), deadline, committed=True)
        if moved := cutover_rules.moved(self._ends, now, stable):
            raise Doubt(f"the source has not stood still: {listed(moved)}; stop the producers")

    def promote(self, compared: Mapping[PartitionName, int], step: Step) -> list[Promoted]:
        """Write down that others may write there. `compared`: where the destinations ended when they were
        compared. Raises Doubt."""
        try:
            self._read_mappings()
            records = []
            for name, of in self._mine().items():
                copied = tuple(self._copied(of, p, compared) for p in range(len(of.ends)))
                records.append(
                    kinds.Promotion(name, of.topic_id, of.destination, PROMOTED, of.ends, copied, of.at)
                )
            self.control.append_all(records, Deadline(CALL_S))
        except (VerbatimError, KafkaException):
            self._release()
            raise
        self.control.refresh(Deadline(CALL_S))
        if lost := [name for name, of in self._mine().items() if of.state != PROMOTED]:
            raise Doubt(f"not on record: {', '.join(lost)}")
        found = [_promoted(name, of) for name, of in self._mine().items()]
        step.found = [f"{len(found)} topics: producers may be started at the target"]
        denied = [of.destination for of in found if self._denied(of.destination)]
        if denied and self.settings.acl_sync != "off":
            with suppress(Doubt):
                wait_for(lambda: list(filter(self._denied, denied)), Deadline(self.wait_s))
        if denied := list(filter(self._denied, denied)):
            step.found.append(f"ACL_READ_ONLY is not lifted there yet: {', '.join(denied)}")
        return found

    def _mine(self) -> dict[str, Promotion]:
        """The topics of this run. Raises Doubt where another one has taken them."""
        found = self.control.state.steering.promotions
        taken = {name: of for name, at in self._taken.items() if (of := found.get(name)) and of.at == at}
        if lost := sorted(self._taken.keys() - taken.keys()):
            raise Doubt(f"another run of this command has taken it meanwhile: {', '.join(lost)}")
        return taken

    def _release(self) -> None:
        """Whatever becomes of it: a topic that stays behind is told as one that is being promoted."""
        with suppress(VerbatimError, KafkaException):
            found = self.control.refresh(Deadline(CALL_S)).steering.promotions
            give_back(
                self.control,
                {
                    name: of
                    for name, of in found.items()
                    if of.state == PROMOTING and of.at == self._taken.get(name)
                },
            )

    def _read_mappings(self) -> None:
        """All that were written until now: those of other topics go on."""
        tail = self.survey.tail
        ends = tail.ends(Deadline(CALL_S))

        def unread() -> list[str]:
            tail.catch_up()
            return [] if tail.has_read(ends) else ["a transaction of the deduplicator is not over"]

        wait_for(unread, Deadline(max(self.wait_s, ANSWER_S)))

    def _copied(self, of: Promotion, partition: int, compared: Mapping[PartitionName, int]) -> int:
        """Behind the last copied record; where the mappings do not reach back to it, behind all that was
        compared, which is nobody else's."""
        known = self.survey.tail.index.partitions.get((of.topic_id, partition))
        end = known.end if known is not None and known.destination.topic == of.destination else None
        return compared[of.destination, partition] if end is None else end

    def _denied(self, destination: str) -> bool:
        rules = self.control.refresh(Deadline(CALL_S)).granted.get(destination, frozenset())
        return any(map(keeps_from_writing, rules))


def _promoted(topic: str, of: Promotion, before: bool = False) -> Promoted:
    return Promoted(topic, of.destination, list(zip(of.ends, of.copied, strict=True)), before)
