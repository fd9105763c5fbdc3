"""State of a staging partition, loaded after fencing: which source partitions are how far, and where to start
reading. Reads only.

The order matters. Read before fencing, the mappings could still grow: a predecessor's transaction commits
after they were read, and its records are delivered again. The position is the one that the last mapping
tells. The group's offset, for where there is none, is read before the mappings: another owner may fence this
one in between and move both on. A position that is older than the state only repeats what is seen; a newer
one would show frames as missing that were delivered, and this owner would ask for them, before it learns that
it is fenced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from common.errors import KafkaTimeout
from common.kafka.client import clients
from common.kafka.errors import NO_RIGHTS, denied, retriable, retrying
from common.link import offset_mappings
from common.partitions import PartitionId
from common.ports import Deadline

T = TypeVar("T")


class StalePlan(Exception):
    """The mappings have been cut since the plan was made, behind what it knows. By now the table may know
    all that is missing: nothing is lost yet."""


@dataclass(slots=True)
class Recovered:
    """`next` of each source partition, and the number of its newest pipeline where it has any; whether the
    state is known to hold all of them; the staging offset that the mappings reach (None if there is none);
    where to read staging from, and where staging began when that was found."""

    next: dict[PartitionId, int]
    pipelines: dict[PartitionId, int]
    complete: bool
    staging_offset: int | None
    position: int
    staging_start: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was known of one staging partition, from the Delta table or from whoever owned it before; `folded`
    is M, the mappings offset up to which all is in it, and `complete` says that none below it was lost, and
    that the mappings went on from there when it was told. Without either, `folded` is 0 and nothing is
    known."""

    folded: int
    complete: bool
    staging_offset: int | None
    next: dict[PartitionId, int]
    pipelines: dict[PartitionId, int] = field(default_factory=dict)

    @classmethod
    def from_plan(cls, plan: dict[str, Any]) -> Snapshot:
        return cls(
            plan["folded"],
            plan["complete"],
            plan["staging_offset"],
            _by_partition(plan["states"]),
            _by_partition(plan["pipelines"]),
        )

    def to_plan(self) -> dict[str, Any]:
        return {
            "folded": self.folded,
            "complete": self.complete,
            "staging_offset": self.staging_offset,
            "states": _plain(self.next),
            "pipelines": _plain(self.pipelines),
        }


def _plain(of: dict[PartitionId, int]) -> list[list[Any]]:
    return [[topic_id, partition, number] for (topic_id, partition), number in of.items()]


def _by_partition(plain: list[list[Any]]) -> dict[PartitionId, int]:
    return {(topic_id, partition): number for topic_id, partition, number in plain}


def recover(
    snapshot: Snapshot,
    mappings_topic: str,
    staging_topic: str,
    partition: int,
    until: int,
    config: clients.Config,
    group: str,
    admin: AdminClient,
    deadline: Deadline,
) -> Recovered:
    """Load state and position of a staging partition, together. Call it only after fencing.

    `until` is the offset of a record that was appended to the mappings partition after fencing, and
    acknowledged by all replicas: whatever a predecessor committed stands below it. Reading up to the high
    watermark that the leader tells would not do: a commit that succeeded may not be visible there yet.

    Raises StalePlan.
    """
    staging = clients.watermarks(admin, staging_topic, partition, deadline)
    low, _ = clients.watermarks(admin, mappings_topic, partition, deadline)
    reaches = low <= snapshot.folded
    if snapshot.complete and not reaches:
        raise StalePlan(
            f"{mappings_topic}-{partition} was cut up to offset {low} since it was looked up, {snapshot.folded} is known; planning anew"
        )
    if reaches and 0 <= until - snapshot.folded <= 1:
        # What was committed since would take two offsets at least, a mapping and its transaction's marker.
        # Where nothing is known, nothing of staging is delivered yet.
        at = snapshot.staging_offset if snapshot.next else staging[0]
        if at is not None and staging[0] <= at <= staging[1]:
            return Recovered(
                dict(snapshot.next),
                dict(snapshot.pipelines),
                snapshot.complete,
                snapshot.staging_offset,
                at,
                staging[0],
            )
    reader = clients.reader(config, group_id=group)
    try:
        of_group = committed(reader, group, staging_topic, partition, deadline)
        # Else the client, which has not heard of the topic yet, lets a second pass before it fetches
        # (librdkafka 2.16).
        retrying(
            f"looking up {mappings_topic}", lambda t: reader.list_topics(mappings_topic, timeout=t), deadline
        )
        # With mappings missing between the table and the log start, a row of the table may be stale: only
        # what is read below counts.
        known = dict(snapshot.next) if reaches else {}
        pipelines = dict(snapshot.pipelines) if reaches else {}
        staging_offset = snapshot.staging_offset
        for key, after, pipeline, staging_offset in read_mappings(  # noqa: B007 - the last one counts
            reader,
            mappings_topic,
            partition,
            max(low, snapshot.folded),
            until,
            deadline,
            offset_mappings.reached,
        ):
            known[key] = after
            if pipeline:
                pipelines[key] = pipeline
        position = _position(staging, of_group, staging_offset)
        return Recovered(known, pipelines, snapshot.complete, staging_offset, position, staging[0])
    finally:
        reader.close()


def read_mappings(
    reader: Consumer,
    topic: str,
    partition: int,
    start: int,
    until: int,
    deadline: Deadline,
    understood: Callable[[bytes | None], T],
) -> list[T]:
    """What is committed in [start, until], and what was read beyond. Raises KafkaTimeout, KafkaException,
    MissingRight."""
    reader.assign([TopicPartition(topic, partition, start)])
    out: list[T] = []
    at = start
    while at <= until:
        if deadline.passed():
            raise KafkaTimeout(
                f"reading {topic}-{partition} up to offset {until}: only {at} reached; is a transaction still open there?"
            )
        for message in clients.read(reader, min(0.1, deadline.left()), 1000):
            error = message.error()
            if error is None:
                at = message.offset() + 1
                out.append(understood(message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                at = max(at, message.offset())
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                # Retention moved on since the log start was asked: load again, against the new one.
                raise KafkaException(error)
            elif error.code() in NO_RIGHTS:
                raise denied(f"reading {topic}", error, right="READ")
            elif not retriable(error):
                raise KafkaException(error)
    reader.unassign()
    return out


def committed(reader: Consumer, group: str, topic: str, partition: int, deadline: Deadline) -> int | None:
    """The offset that the group has committed, None without one. Waits where a transaction that commits one
    is being completed."""
    answer = retrying(
        f"reading the offset of {topic}-{partition} that group {group} has committed",
        lambda t: reader.committed([TopicPartition(topic, partition)], timeout=t)[0],
        deadline,
    )
    if answer.error is not None:
        raise KafkaException(answer.error)
    return answer.offset if answer.offset != OFFSET_INVALID and answer.offset >= 0 else None


def _position(staging: tuple[int, int], committed: int | None, from_mappings: int | None) -> int:
    """Where to read staging from. Too low is harmless, since `next` decides; too high shows as a hole, and is
    repaired."""
    low, high = staging
    # The mappings' is the newer one where records were delivered: the group's offset follows now and then,
    # and expires without members.
    for position in (from_mappings, committed):
        if position is not None and low <= position <= high:
            return position
    return low
