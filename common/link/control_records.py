"""What the control topic adds up to, in the terms of those who go by it: origins, demands, halts, consents,
destinations. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

REPLICATOR = "replicator"
DEDUPLICATOR = "deduplicator"
MOVING, HELD, MOVED, FOLLOWED = "moving", "held", "moved", "followed"
"""States of a group's move: as below, and that `offsets` keeps the group in step again."""
NO_FLOWS = '{"flows":[],"keys":{},"version":1}'
"""The definition of what a link has that has a pipeline no longer."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the copying of a source partition begins, decided once."""

    topic: str
    offset: int


@dataclass(frozen=True, slots=True)
class Request:
    """An open question or demand about a source partition; `at` is the control offset of the record.

    `next` is the source position asked for (None: the deduplicator knows of no record of this partition).
    `held` is the staging partition and offset of the first frame that was skipped, `held_start` that frame's
    first source position. `answers` says that it is the answer to the replicator's last question.
    """

    at: int
    topic: str
    next: int | None
    held: tuple[int, int] | None = None
    held_start: int | None = None
    answers: bool = False


@dataclass(frozen=True, slots=True)
class Halt:
    """A partition that has stopped. `next` is what the destination has reached, `available` where records
    could go on."""

    at: int
    application: str
    topic: str
    reason: str
    next: int | None
    available: int | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Consent:
    """An operator's accepted loss: go on although the offsets from `next` up to `to` (None: to what there is)
    are gone."""

    at: int
    topic: str
    next: int | None
    to: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a source topic's records go. `refused` says why nothing may be written there; `gone`, that it was
    deleted at the target.

    `config` is what the link has set on it: what somebody else has set may be kept where it is no longer the
    same. `compacted`: it takes no record without a key. `id`: its topic id, where that was said.
    """

    topic: str
    partitions: int
    max_message_bytes: int
    refused: str | None = None
    config: dict[str, str] = field(default_factory=dict)
    compacted: bool = False
    id: str | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """A destination that was let in: by the newest record that did, its topic id where that was said, and the
    ids of its source topics."""

    at: int
    id: str | None
    sources: frozenset[str]


@dataclass(frozen=True, slots=True)
class GroupMove:
    """A consumer group that `verbatim move-group` has taken from `offsets`. `at`: the control offset of the
    record by which it did. `state`: MOVING; HELD, `offsets` has answered that it writes nothing of the group
    any more; MOVED, its consumers go on at the target."""

    at: int
    state: str


@dataclass(frozen=True, slots=True)
class PipelineVersion:
    """A pipeline that the link has, or has had. `at`: the control offset of its record; `definition` as
    common/pipeline/definition.py makes it, `sha256` its hash, in hex."""

    at: int
    definition: str
    sha256: str
