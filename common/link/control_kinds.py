"""The kinds of records in the control topic: what each says, and its way to JSON and back. Pure.

What they add up to is decided in common/link/control_state.py. A field that has a default may be missing in
what earlier releases wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import orjson

from common.kafka.model import Acl
from common.partitions import PartitionId

if TYPE_CHECKING:
    from common.link import control_records

KINDS: dict[str, type[ControlRecord]] = {}
_SPARSE = {"sparse": True}
"""A field that is written only where it is not None."""


class ControlRecord:
    """A record of the control topic; `kind` is its name there."""

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str = "") -> None:
        if kind:
            cls.kind = kind
            KINDS[kind] = cls


@dataclass(frozen=True)
class PartitionRecord(ControlRecord):
    """One about a source partition."""

    topic: str
    topic_id: str
    partition: int

    @property
    def key(self) -> PartitionId:
        return self.topic_id, self.partition


@dataclass(frozen=True)
class Identity(ControlRecord, kind="identity"):
    """What a link was made with. `topics`: its own topics on the target -> their ids."""

    source_cluster: str
    target_cluster: str
    staging_partitions: int
    topics: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Leader(ControlRecord, kind="leader"):
    """An instance leads its application from this record on; its offset is the term."""

    application: str
    instance: str = ""


@dataclass(frozen=True)
class Started(ControlRecord, kind="started"):
    """Every topic that was there at first has its origin."""

    start_offsets: str | None = None


@dataclass(frozen=True)
class Origin(PartitionRecord, kind="origin"):
    """Where the copying of a partition begins. `initial`: decided by START_OFFSETS, when the link began."""

    offset: int
    initial: bool = False


@dataclass(frozen=True)
class SourceTopic(ControlRecord, kind="topic"):
    """A source topic as the replicator described it: what the destination must be able to hold."""

    topic: str
    topic_id: str
    partitions: int
    config: dict[str, str]
    """All its settings, as they count."""
    explicit: frozenset[str] = frozenset()
    """The settings that were set on the topic itself; the others are its cluster's defaults."""


@dataclass(frozen=True)
class TopicAcls(ControlRecord, kind="topic-acls"):
    """The access rules that concern a source topic."""

    topic: str
    acls: tuple[Acl, ...]


@dataclass(frozen=True)
class Granted(ControlRecord, kind="granted"):
    """The access rules that the link has made for a destination, or is about to make."""

    destination: str
    acls: tuple[Acl, ...]


@dataclass(frozen=True)
class TopicDeleted(ControlRecord, kind="topic-deleted"):
    """A topic is gone from the source."""

    topic: str
    topic_id: str


@dataclass(frozen=True)
class Verdict(ControlRecord):
    """A verdict on a topic that records of a source topic go to; common/link/control_records.py, Destination,
    says what the fields mean."""

    topic: str
    topic_id: str
    destination: str
    partitions: int
    max_message_bytes: int
    refused: str | None = None
    config: dict[str, str] = field(default_factory=dict)
    compacted: bool = False
    destination_id: str | None = None
    gone: bool = False

    @classmethod
    def of(cls, source: SourceTopic, to: control_records.Destination) -> Self:
        """The record of a verdict on where records of a source topic go."""
        return cls(
            source.topic, source.topic_id, to.topic, to.partitions, to.max_message_bytes, to.refused,
            to.config, to.compacted, to.id, to.gone,
        )  # fmt: skip


@dataclass(frozen=True)
class Destination(Verdict, kind="destination"):
    """Where a source topic's records go."""


@dataclass(frozen=True)
class Route(Verdict, kind="route"):
    """Where a stage of the pipeline takes records of a source topic instead."""


@dataclass(frozen=True)
class AcceptDestination(ControlRecord, kind="accept-destination"):
    """An operator's consent to use destinations as they are now."""

    destinations: tuple[str, ...]


@dataclass(frozen=True)
class GivenUp(ControlRecord, kind="given-up"):
    """A producer's id and epoch that nobody uses any more, though its last transaction is still being
    completed."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True)
class EndEpoch(ControlRecord, kind="end-epoch"):
    """The lanes of an application are to finish, in this term up to this epoch."""

    application: str
    term: int
    epoch: int


@dataclass(frozen=True)
class Ask(PartitionRecord, kind="ask"):
    """The replicator asks how far a partition is."""


@dataclass(frozen=True)
class Resend(PartitionRecord, kind="resend"):
    """The deduplicator is at `next` (None: it has nothing), and wants what comes then; with `answers` it is
    an answer to the question at that control offset. `held`, `held_start`: where the first frame that was
    skipped lies in staging (partition, offset), and where it begins."""

    next: int | None = None
    answers: int | None = field(default=None, metadata=_SPARSE)
    held: tuple[int, int] | None = field(default=None, metadata=_SPARSE)
    held_start: int | None = field(default=None, metadata=_SPARSE)


@dataclass(frozen=True)
class Halted(ControlRecord, kind="halted"):
    """A partition has stopped; `next`, `available` and `held` as in Halt and Resend."""

    application: str
    topic: str
    topic_id: str
    partition: int
    reason: str
    detail: str = ""
    next: int | None = None
    available: int | None = None
    held: tuple[int, int] | None = field(default=None, metadata=_SPARSE)
    held_start: int | None = field(default=None, metadata=_SPARSE)


@dataclass(frozen=True, kw_only=True)
class Resumed(ControlRecord, kind="resumed"):
    """A partition that had stopped goes on."""

    application: str
    topic: str = ""
    topic_id: str
    partition: int


@dataclass(frozen=True)
class AcceptLoss(PartitionRecord, kind="accept-loss"):
    """An operator's accepted loss of the source offsets from `next` up to `to`."""

    next: int | None = None
    to: int | None = None
    reason: str = field(kw_only=True)


@dataclass(frozen=True)
class Pause(ControlRecord, kind="pause"):
    """Topics (names and expressions; none: all) stop, or go on."""

    topics: tuple[str, ...]
    paused: bool


@dataclass(frozen=True)
class Limit(ControlRecord, kind="limit"):
    """The most that topics (none: all together) may do in a second."""

    topics: tuple[str, ...]
    bytes_per_second: int | None = None
    records_per_second: int | None = None


@dataclass(frozen=True)
class GroupMove(ControlRecord, kind="group-move"):
    """How far a consumer group is on its way to the target; `state` as common/link/control_records.py,
    GroupMove, has it, or FOLLOWED. With `answers` it is `offsets`' answer to the record at that control
    offset."""

    group: str
    state: str
    answers: int | None = field(default=None, metadata=_SPARSE)


@dataclass(frozen=True)
class Promotion(ControlRecord, kind="promotion"):
    """How far a topic is on its way out of the link; `state`, `ends` and `copied` as
    common/link/promotions.py, Promotion, has them, or COPIED. `answers`: the record that began what this one
    ends."""

    topic: str
    topic_id: str
    destination: str
    state: str
    ends: tuple[int, ...] = ()
    copied: tuple[int, ...] = ()
    answers: int | None = field(default=None, metadata=_SPARSE)


@dataclass(frozen=True)
class LetGo(PartitionRecord, kind="let-go"):
    """The deduplicator takes nothing more of a partition that is delivered up to `next`: its answer to the
    promotion at that control offset."""

    next: int
    answers: int


@dataclass(frozen=True)
class Pipeline(ControlRecord, kind="pipeline"):
    """The link has another pipeline from here on: its number, from 1, and what
    common/pipeline/definition.py says of it. The first record of a number counts."""

    n: int
    definition: str
    sha256: str


@dataclass(frozen=True)
class DeadLetters(ControlRecord, kind="dead-letters"):
    """The link's topic of dead letters, as the deduplicator found it; `refused`: why nothing may be written
    there."""

    topic: str
    topic_id: str | None
    max_message_bytes: int
    refused: str | None = None


@dataclass(frozen=True)
class HandedOver(ControlRecord, kind="handed-over"):
    """Consumers of a topic may go on at the target, as a command (`by`) made sure of. Of each partition all
    below the source offset in `delivered` is there, and the copies end before the destination's offset in
    `ends`, which has an entry for each of its partitions. `emptied`: what the source had below `delivered`
    was deleted there since."""

    topic: str
    topic_id: str
    destination: str
    destination_id: str
    by: str
    delivered: tuple[int, ...]
    ends: tuple[int, ...]
    time_ms: int
    emptied: bool = False


def encode(record: ControlRecord, link: str) -> bytes:
    """A record as it lies in the topic."""
    said = {
        of.name: value
        for of in fields(record)  # type: ignore[arg-type]
        if (value := getattr(record, of.name)) is not None or not of.metadata
    }
    return orjson.dumps({"kind": record.kind, "link": link, **said}, default=_plain)


def decode(values: Mapping[str, Any]) -> ControlRecord:
    """The record that a JSON object tells. Raises KeyError for one of no known kind, and for a field that is
    missing, TypeError for one of another type: it would fail later, far from the record that is to blame, or
    not at all (Kafka's clients take a negative offset for "the end")."""
    cls = KINDS[_text("kind", values["kind"])]
    return cls(
        **{
            of.name: _READ[str(of.type)](of.name, values[of.name])
            for of in fields(cls)  # type: ignore[arg-type]
            if of.name in values or (of.default is MISSING and of.default_factory is MISSING)
        }
    )


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else list(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, not a text")
    return value


def _number(name: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{name} is {value!r}, not a number from 0")
    return value


def _flag(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{name} is {value!r}, not true or false")
    return value


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{name} is {value!r}, not a list")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    return tuple(_text(name, one) for one in _list(name, value))


def _numbers(name: str, value: Any) -> tuple[int, ...]:
    return tuple(_number(name, one) for one in _list(name, value))


def _settings(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} is {value!r}, not an object")
    return {key: _text(key, of) for key, of in value.items()}


def _place(name: str, value: Any) -> tuple[int, int]:
    place = [_number(name, one) for one in _list(name, value)]
    if len(place) != 2:
        raise TypeError(f"{name} is {value!r}, not a partition and an offset")
    return place[0], place[1]


def _acls(name: str, value: Any) -> tuple[Acl, ...]:
    return tuple(Acl(*_texts(name, one)) for one in _list(name, value))


def _or_none(read: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else read(name, value)


_READ: dict[str, Callable[[str, Any], Any]] = {
    "str": _text,
    "str | None": _or_none(_text),
    "int": _number,
    "int | None": _or_none(_number),
    "bool": _flag,
    "tuple[str, ...]": _texts,
    "tuple[int, ...]": _numbers,
    "frozenset[str]": lambda name, value: frozenset(_texts(name, value)),
    "dict[str, str]": _settings,
    "tuple[int, int] | None": _or_none(_place),
    "tuple[Acl, ...]": _acls,
}
"""What reads a field, by how its type is spelled above."""
