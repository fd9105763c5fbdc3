"""Destination partitions that take nothing for now: set aside, so that those beside them go on, and looked at
until they take records again.

A transaction fails as a whole. So the first refusal costs all of it; whoever refuses again after GRACE_S,
longer than an election takes, is left out of the next ones, and the frames for it are skipped and held as
those of any partition that stands still (deduplicator/lane/blocked_partitions.py). What the admin client can
tell (there is a leader, enough replicas are in sync, the topic is the one that it was) is waited for; where
all that is well, records are tried again, ever more seldom. Nobody waits for an answer here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from common import ports
from common.kafka.client import topics
from common.kafka.errors import NO_RIGHTS
from common.kafka.model import GROUPS_TOPIC
from common.link.halt_reasons import HaltReason, gone
from common.partitions import PartitionName

log = logging.getLogger(__name__)

GRACE_S = 4.0
FIRST_LOOK_S, LAST_LOOK_S, LAST_TRIAL_S = 2.0, 30.0, 300.0
"""Until it is looked at for the first time, and at most; and where only a trial can show whether it is well,
which costs a transaction."""
CALL_S = 10.0


_NOT_ITS_FAULT = NO_RIGHTS | {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.DUPLICATE_SEQUENCE_NUMBER,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.INVALID_TXN_STATE,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.PRODUCER_FENCED,
    KafkaError._FENCED,
}
"""Of the record, the producer or its rights, which are seen to elsewhere."""
_SHOWS = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
"""Whether it is over, the admin client can tell."""


class Waiting(Exception):
    """What a frame needs at the target is not made yet."""


@dataclass(slots=True)
class Aside:
    """Why a destination partition is left out, and when it is looked at next; `asked` are the questions under
    way."""

    reason: str
    detail: str
    code: int
    pause_s: float
    look_at: float
    asked: list[Future[Any]] = field(default_factory=list)


class Unavailable:
    """The destination partitions of one staging partition that are set aside. `expected` says which topic id
    a destination has."""

    def __init__(self, admin: AdminClient, expected: Callable[[str], str | None]) -> None:
        self.aside: dict[PartitionName, Aside] = {}
        self.unsettled: dict[PartitionName, KafkaError] = {}
        """Where it is not known whether a transaction hangs: nothing may be written there before it is."""
        self._admin = admin
        self._expected = expected
        self._inherited: set[PartitionName] = set()
        """Those that an earlier owner had set aside, until they have been looked at."""
        self._since: dict[PartitionName, float] = {}
        """When those that were refused, and have taken nothing since, were refused first."""
        self._pauses: dict[PartitionName, float] = {}
        """Of those that were set aside, and have taken nothing since, how long it lasted."""

    def refused(
        self, errors: Mapping[PartitionName, KafkaError], own: Collection[str]
    ) -> list[PartitionName]:
        """A transaction has failed for these; those of them that are set aside for it. Where one of the
        link's `own` topics is among them, or nobody was named, it is more than a destination that is not
        well."""
        now = ports.monotonic()
        named = {at: error for at, error in errors.items() if error.code() not in _NOT_ITS_FAULT}
        if not named or any(topic in own for topic, _ in named):
            self._since.clear()
            return []
        found = [at for at in named if at in self._pauses or now - self._since.setdefault(at, now) >= GRACE_S]
        for at in found:
            self.set_aside(at, named[at].code(), named[at].str(), now)
        return found

    def without_marker(self, partitions: Collection[PartitionName], own: str) -> list[PartitionName]:
        """Those of the partitions that are set aside because a transaction could not be completed for want of
        their markers."""
        # Whoever has waited for the marker has waited long enough. The group's offsets are in a topic of
        # Kafka's own.
        found = [at for at in partitions if at[0] not in (own, GROUPS_TOPIC)]
        for at in found:
            self.set_aside(at, KafkaError.LEADER_NOT_AVAILABLE, "it has no leader", ports.monotonic())
        return found

    def set_aside(self, at: PartitionName, code: int, words: str, now: float) -> None:
        name = f"{at[0]}-{at[1]}"
        reason, detail = (
            HaltReason.UNAVAILABLE,
            f"destination partition {name} takes no records: {words.removeprefix(f'{name}: ')}",
        )
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            reason, detail = HaltReason.GONE, gone(at[0])
        pause = self._pauses.get(at, 0.0) * 2
        self._pauses[at] = pause = min(
            max(pause, FIRST_LOOK_S), LAST_LOOK_S if code in _SHOWS else LAST_TRIAL_S
        )
        self.aside[at] = Aside(reason, detail, code, pause, now + pause)
        self._since.pop(at, None)
        log.warning("%s; set aside, looked at again in %.0f s", detail, pause)

    def stood_still(self, at: PartitionName, reason: str, detail: str) -> None:
        """An earlier owner has set it aside: not tried before it has been looked at."""
        if at not in self.aside:
            code = (
                KafkaError.UNKNOWN_TOPIC_OR_PART
                if reason == HaltReason.GONE
                else KafkaError.LEADER_NOT_AVAILABLE
            )
            self._pauses.setdefault(at, FIRST_LOOK_S)
            self.aside[at] = Aside(reason, detail, code, FIRST_LOOK_S, ports.monotonic())
            self._inherited.add(at)

    def to_be_looked_at(self) -> bool:
        """Whether one that was inherited may be well by now: a bounded run waits for that."""
        return bool(self._inherited)

    def gone_back(self) -> None:
        """What was well by now has been gone back for."""
        self._inherited &= self.aside.keys()

    def took(self, partitions: Collection[PartitionName]) -> None:
        """These have taken records."""
        if self._since or self._pauses:
            for at in partitions:
                self._since.pop(at, None)
                self._pauses.pop(at, None)

    def look(self) -> None:
        """Ask what is due, and take in what is answered: what seems to be well is set aside no longer."""
        now = ports.monotonic()
        for at, aside in list(self.aside.items()):
            if aside.asked and all(answer.done() for answer in aside.asked):
                self._answered(at, aside, now)
            elif now >= aside.look_at:
                # Again, where a client that was replaced meanwhile never answers.
                aside.asked, aside.look_at = self._ask(at[0]), now + 2 * CALL_S

    def _ask(self, topic: str) -> list[Future[Any]]:
        described = self._admin.describe_topics(TopicCollection([topic]), request_timeout=CALL_S)
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return [described[topic], self._admin.describe_configs([resource], request_timeout=CALL_S)[resource]]

    def _answered(self, at: PartitionName, aside: Aside, now: float) -> None:
        answers, aside.asked = aside.asked, []
        if self._well(at, *answers):
            del self.aside[at]
            return
        self._inherited.discard(at)
        aside.pause_s = min(LAST_LOOK_S, aside.pause_s * 2)
        aside.look_at = now + aside.pause_s

    def _well(self, at: PartitionName, described: Future[Any], configs: Future[Any]) -> bool:
        try:
            found = described.result(0)
        except KafkaException:
            return False
        expected = self._expected(at[0])
        if expected is not None and topics.id_text(found.topic_id) != expected:
            return False
        partition = next((p for p in found.partitions if p.id == at[1]), None)
        if partition is None or partition.leader is None or partition.leader.id < 0:
            return False
        try:
            least = int(configs.result(0)["min.insync.replicas"].value)
        except (KafkaException, KeyError):
            return True  # not allowed to ask: tried instead
        # Newer brokers never demand more than there are.
        return len(partition.isr) >= min(least, len(partition.replicas))
