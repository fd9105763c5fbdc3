"""The control topic's records and what they add up to. Pure: the topic is read and written in common/control_log.py.

One partition, never compacted, so its order is a history on which both applications and the operator's commands agree. Every
record is a JSON object with a `kind`; a record's offset serves as its number. Where several writers may race (two leaders of one
application, one of them paused), the rule is that the first record wins, and everyone reads to the end before acting.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from common.errors import ControlError

Key = tuple[str, int]
"""A source partition within a link: (topic id, partition)."""

REPLICATOR = "replicator"
DEDUPLICATOR = "deduplicator"


def encode(kind: str, **fields: Any) -> bytes:
    """A control record."""
    return orjson.dumps({"kind": kind, **fields})


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the copying of a source partition begins, decided once."""

    topic: str
    offset: int


@dataclass(frozen=True, slots=True)
class Request:
    """An open question or demand about a source partition; `at` is the control offset of the record.

    `next` is the source position asked for (None: the deduplicator knows of no record of this partition). `held` is the staging
    partition and offset of the first frame that was skipped, `held_start` that frame's first source position.
    """

    at: int
    topic: str
    next: int | None
    held: tuple[int, int] | None = None
    held_start: int | None = None


@dataclass(frozen=True, slots=True)
class Halt:
    """A partition that has stopped. `next` is what the destination has reached, `available` where records could go on."""

    at: int
    application: str
    topic: str
    reason: str
    next: int | None
    available: int | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Consent:
    """An operator's accepted loss: go on although the offsets from `next` up to `to` (None: to what there is) are gone."""

    at: int
    topic: str
    next: int | None
    to: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A source topic as the replicator described it: what the destination must be able to hold."""

    topic: str
    topic_id: str
    partitions: int
    config: dict[str, str]


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a source topic's records go. `refused` says why nothing may be written there."""

    topic: str
    partitions: int
    max_message_bytes: int
    refused: str | None = None


@dataclass(slots=True)
class Control:
    """All that the control topic says up to `position`."""

    position: int = 0
    identity: dict[str, Any] | None = None
    leaders: dict[str, int] = field(default_factory=dict)
    """application -> control offset of its newest leader record: that leader's term."""
    started: bool = False
    origins: dict[Key, Origin] = field(default_factory=dict)
    topics: dict[str, SourceTopic] = field(default_factory=dict)
    """topic id -> newest description."""
    destinations: dict[str, Destination] = field(default_factory=dict)
    """topic id -> newest destination."""
    ended: dict[tuple[str, int], int] = field(default_factory=dict)
    """(application, term) -> highest epoch told to end."""
    asks: dict[Key, Request] = field(default_factory=dict)
    resends: dict[Key, Request] = field(default_factory=dict)
    holds: dict[Key, Request] = field(default_factory=dict)
    """Holes in staging that have not closed yet: staging must not be trimmed past their first skipped frame."""
    halts: dict[tuple[str, Key], Halt] = field(default_factory=dict)
    """(application, partition) -> why it stands still."""
    consents: dict[Key, Consent] = field(default_factory=dict)

    def apply(self, offset: int, value: bytes | None) -> None:
        """Take in the record at `offset`. Raises ControlError for one that can't be understood."""
        if offset < self.position:
            return
        try:
            record = orjson.loads(value or b"")
            handler = getattr(self, "_on_" + record["kind"].replace("-", "_"))
            handler(offset, record)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
            raise ControlError(
                f"control record at offset {offset} can't be understood ({error!r}): "
                "was it written by a newer release, or by something else?"
            ) from None
        self.position = offset + 1

    def deposed(self, application: str, term: int) -> bool:
        """Whether a newer leader than the one of `term` has taken over."""
        return self.leaders.get(application, -1) > term

    def epoch_ended(self, application: str, term: int, epoch: int) -> bool:
        """Whether the lanes of this epoch are to finish."""
        return self.deposed(application, term) or self.ended.get((application, term), -1) >= epoch

    def topic_id_history(self, topic: str) -> list[str]:
        """The ids under which a topic's name has been copied, oldest first."""
        return list(dict.fromkeys(tid for (tid, _), origin in self.origins.items() if origin.topic == topic))

    # one method for each kind of record

    def _on_identity(self, offset: int, r: dict[str, Any]) -> None:
        if self.identity is None:
            self.identity = {k: v for k, v in r.items() if k != "kind"}

    def _on_leader(self, offset: int, r: dict[str, Any]) -> None:
        self.leaders[r["application"]] = offset

    def _on_started(self, offset: int, r: dict[str, Any]) -> None:
        self.started = True

    def _on_origin(self, offset: int, r: dict[str, Any]) -> None:
        # A paused first leader may come back and decide `latest` for a partition that appeared after the link had begun:
        # its records would be skipped. So an initial origin counts only until the link has started.
        if r.get("initial") and self.started:
            return
        self.origins.setdefault((r["topic_id"], r["partition"]), Origin(r["topic"], r["offset"]))

    def _on_topic(self, offset: int, r: dict[str, Any]) -> None:
        self.topics[r["topic_id"]] = SourceTopic(r["topic"], r["topic_id"], r["partitions"], r["config"])

    def _on_destination(self, offset: int, r: dict[str, Any]) -> None:
        self.destinations[r["topic_id"]] = Destination(
            r["destination"], r["partitions"], r["max_message_bytes"], r.get("refused")
        )

    def _on_end_epoch(self, offset: int, r: dict[str, Any]) -> None:
        key = (r["application"], r["term"])
        self.ended[key] = max(self.ended.get(key, -1), r["epoch"])

    def _on_ask(self, offset: int, r: dict[str, Any]) -> None:
        self.asks[_key(r)] = Request(offset, r["topic"], None)

    def _on_resend(self, offset: int, r: dict[str, Any]) -> None:
        held = tuple(r["held"]) if r.get("held") is not None else None
        request = Request(offset, r["topic"], r["next"], held, r.get("held_start"))
        self.resends[_key(r)] = request
        self.asks.pop(_key(r), None)
        if held is not None and _key(r) not in self.holds:
            self.holds[_key(r)] = request

    def _on_halted(self, offset: int, r: dict[str, Any]) -> None:
        if r.get("held") is not None and _key(r) not in self.holds:
            self.holds[_key(r)] = Request(offset, r["topic"], r.get("next"), tuple(r["held"]), r.get("held_start"))
        self.halts[(r["application"], _key(r))] = Halt(
            offset, r["application"], r["topic"], r["reason"], r.get("next"), r.get("available"), r.get("detail", "")
        )

    def _on_resumed(self, offset: int, r: dict[str, Any]) -> None:
        self.halts.pop((r["application"], _key(r)), None)
        if r["application"] == DEDUPLICATOR:
            self.holds.pop(_key(r), None)

    def _on_accept_loss(self, offset: int, r: dict[str, Any]) -> None:
        self.consents[_key(r)] = Consent(offset, r["topic"], r.get("next"), r.get("to"), r["reason"])


def _key(record: dict[str, Any]) -> Key:
    return (record["topic_id"], record["partition"])
