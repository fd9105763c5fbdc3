"""The control topic's records and what they add up to. Pure: the topic is read and written in common/link/control_log.py.

One partition, never compacted, so its order is a history on which both applications and the operator's commands agree. Every
record is a JSON object with a `kind`; a record's offset serves as its number. Links may share the topic, and others may write to it: what is not
this link's is skipped. Where several writers may race (two leaders of one
application, one of them paused), the rule is that the first record wins, and everyone reads to the end before acting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from common.errors import ControlError
from common.kafka.model import Acl
from common.link.control_records import (
    DEDUPLICATOR,
    Consent,
    Destination,
    Halt,
    Key,
    Origin,
    Request,
    Settled,
    SourceTopic,
)
from common.link.throttling import Steering, checked_entries, checked_limit


def encode(kind: str, **fields: Any) -> bytes:
    """A control record."""
    return orjson.dumps({"kind": kind, **fields})


@dataclass(slots=True)
class Control:
    """All that the control topic says of one link up to `position`. `link` None: of whatever link, where it has one only."""

    position: int = 0
    link: str | None = None
    identity: dict[str, Any] | None = None
    leaders: dict[str, int] = field(default_factory=dict)
    """application -> control offset of its newest leader record: that leader's term."""
    started: bool = False
    start_offsets: str | None = None
    """The START_OFFSETS by which the link has begun; None where that was not said."""
    origins: dict[Key, Origin] = field(default_factory=dict)
    topics: dict[str, SourceTopic] = field(default_factory=dict)
    """topic id -> newest description."""
    destinations: dict[str, Destination] = field(default_factory=dict)
    """topic id -> newest destination."""
    copied_into: dict[str, set[str]] = field(default_factory=dict)
    """Destination -> names of the source topics whose records have been let in, now or before."""
    settled: dict[str, Settled] = field(default_factory=dict)
    """Destination -> how it was let in last."""
    accepted: dict[str, int] = field(default_factory=dict)
    """Destination -> control offset of the newest consent to use it although records are there, partitions lack, or it is another one."""
    acls: dict[str, list[Acl]] = field(default_factory=dict)
    """Source topic -> the access rules that concern it."""
    given_up: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Transactional id -> producer id and epoch that nobody uses any more, though its last transaction is still being completed."""
    granted: dict[str, frozenset[Acl]] = field(default_factory=dict)
    """Destination -> the access rules that the link has made there, or is about to make."""
    deleted: set[str] = field(default_factory=set)
    """Ids of topics that are gone from the source. Their copies are kept."""
    ended: dict[tuple[str, int], int] = field(default_factory=dict)
    """(application, term) -> highest epoch told to end."""
    asks: dict[Key, Request] = field(default_factory=dict)
    resends: dict[Key, Request] = field(default_factory=dict)
    holds: dict[Key, Request] = field(default_factory=dict)
    """Holes in staging that have not closed yet: staging must not be trimmed past their first skipped frame."""
    halts: dict[tuple[str, Key], Halt] = field(default_factory=dict)
    """(application, partition) -> why it stands still."""
    consents: dict[Key, Consent] = field(default_factory=dict)
    steering: Steering = field(default_factory=Steering)
    """What operators have paused or limited."""

    def apply(self, offset: int, value: bytes | None) -> str | None:
        """Take in the record at `offset`; of one that is skipped, why, unless it is another link's.

        Skipped is what carries no link of ours, and what is of a kind that this release does not know. Raises ControlError for any other record
        that can't be understood: this link's, and damaged. Without a `link` nothing is skipped.
        """
        if offset < self.position:
            return None
        skipped = None
        try:
            record = self._of_link(value)
            if isinstance(record, dict):
                kind = _text(record, "kind")
                handler = self._handler(kind)
                if handler is not None:
                    handler(offset, record)
                elif self.link is None:
                    raise KeyError(kind)
                else:
                    skipped = f"this release knows no records of the kind {kind[:40]!r}"
            else:
                skipped = record
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
            raise ControlError(
                f"control record at offset {offset} can't be understood ({error!r}): "
                "was it written by a newer release, or by something else?"
            ) from None
        self.position = offset + 1
        return skipped

    def _of_link(self, value: bytes | None) -> dict[str, Any] | str | None:
        """The record, if it is this link's; else why it is none (None: it is another link's)."""
        try:
            record = orjson.loads(value or b"")
        except orjson.JSONDecodeError:
            # With this link's name in it, it may be one of its own that was cut.
            if self.link is None or orjson.dumps(self.link) in (value or b""):
                raise
            return "it is not JSON"
        if self.link is None:
            return dict(record.items())
        if not isinstance(record, dict):
            return "it is no JSON object"
        link = record.get("link")
        if link == self.link:
            return record
        if isinstance(link, str):
            return None
        # Early releases named no link.
        return (
            record if link is None and self._handler(record.get("kind")) is not None else "it names no link"
        )

    def _handler(self, kind: Any) -> Callable[[int, dict[str, Any]], None] | None:
        """What takes in the records of a kind; None where nothing does."""
        if not isinstance(kind, str) or "_" in kind:
            return None
        return getattr(self, "_on_" + kind.replace("-", "_"), None)

    def deposed(self, application: str, term: int) -> bool:
        """Whether a newer leader than the one of `term` has taken over."""
        return self.leaders.get(application, -1) > term

    def epoch_ended(self, application: str, term: int, epoch: int) -> bool:
        """Whether the lanes of this epoch are to finish."""
        return self.deposed(application, term) or self.ended.get((application, term), -1) >= epoch

    def newest_topics(self) -> dict[str, SourceTopic]:
        """Source topics by name, as last described; of one that was made again, the last."""
        return {source.topic: source for source in self.topics.values()}

    def copies(self) -> dict[str, str]:
        """Source topic -> destination, of the topics that are copied."""
        return {
            name: to.topic
            for name, source in self.newest_topics().items()
            if source.topic_id not in self.deleted
            and (to := self.destinations.get(source.topic_id)) is not None
            and to.refused is None
        }

    def has_several_sources(self, destination: str) -> bool:
        """Whether a destination holds, or may come to hold, the records of several source topics."""
        return len(self.copied_into.get(destination, ())) > 1

    def accepts(self, destination: str) -> bool:
        """Whether an operator has consented to a destination since it was let in."""
        settled = self.settled.get(destination)
        return self.accepted.get(destination, -1) > (-1 if settled is None else settled.at)

    def settled_id(self, destination: str) -> str | None:
        """The topic id of a destination that was let in, where it was said."""
        settled = self.settled.get(destination)
        return None if settled is None else settled.id

    def others_into(self, destination: str, topic: str) -> set[str]:
        """Source topics other than `topic` whose records are, or may come to be, in a destination."""
        return self.copied_into.get(destination, set()) - {topic}

    def deleted_topics(self) -> list[str]:
        """Names of copied topics that are gone from the source, and have not been made again."""
        if not self.deleted:
            return []
        return sorted(name for name, t in self.newest_topics().items() if t.topic_id in self.deleted)

    def running_topics(self) -> list[str]:
        """Names of the topics that were described, and are not gone from the source."""
        return sorted(name for name, t in self.newest_topics().items() if t.topic_id not in self.deleted)

    def topic_id_history(self, topic: str) -> list[str]:
        """The ids under which a topic's name has been copied, oldest first."""
        return list(dict.fromkeys(tid for (tid, _), origin in self.origins.items() if origin.topic == topic))

    # one method for each kind of record; each reads all its fields before it changes anything

    def _on_identity(self, offset: int, r: dict[str, Any]) -> None:
        for name in ("source_cluster", "target_cluster"):
            _text(r, name)
        _number(r, "staging_partitions")
        if self.identity is None:
            self.identity = {k: v for k, v in r.items() if k != "kind"}

    def _on_leader(self, offset: int, r: dict[str, Any]) -> None:
        self.leaders[_text(r, "application")] = offset

    def _on_started(self, offset: int, r: dict[str, Any]) -> None:
        said = _text(r, "start_offsets") if "start_offsets" in r else None
        if not self.started:
            self.start_offsets = said
        self.started = True

    def _on_origin(self, offset: int, r: dict[str, Any]) -> None:
        key, origin = _key(r), Origin(_text(r, "topic"), _number(r, "offset"))
        # A paused first leader may come back and decide `latest` for a partition that appeared after the link had begun:
        # its records would be skipped. So an initial origin counts only until the link has started.
        if r.get("initial") and self.started:
            return
        self.origins.setdefault(key, origin)

    def _on_topic(self, offset: int, r: dict[str, Any]) -> None:
        explicit = r.get("explicit", [])
        if not isinstance(explicit, list) or not all(isinstance(name, str) for name in explicit):
            raise TypeError(f"explicit is {explicit!r}, not a list of settings")
        topic = SourceTopic(
            _text(r, "topic"),
            _text(r, "topic_id"),
            _number(r, "partitions"),
            _texts(r["config"]),
            frozenset(explicit),
        )
        self.topics[topic.topic_id] = topic
        self.deleted.discard(topic.topic_id)

    def _on_topic_acls(self, offset: int, r: dict[str, Any]) -> None:
        self.acls[_text(r, "topic")] = _acls(r["acls"])

    def _on_granted(self, offset: int, r: dict[str, Any]) -> None:
        self.granted[_text(r, "destination")] = frozenset(_acls(r["acls"]))

    def _on_given_up(self, offset: int, r: dict[str, Any]) -> None:
        producer = (_number(r, "producer_id"), _number(r, "epoch"))
        self.given_up[_text(r, "transactional_id")] = producer

    def _on_topic_deleted(self, offset: int, r: dict[str, Any]) -> None:
        self.deleted.add(_text(r, "topic_id"))

    def _on_destination(self, offset: int, r: dict[str, Any]) -> None:
        refused = None if r.get("refused") is None else _text(r, "refused")
        destination = Destination(
            _text(r, "destination"),
            _number(r, "partitions"),
            _number(r, "max_message_bytes"),
            refused,
            _texts(r.get("config", {})),
            bool(r.get("compacted", False)),
            None if r.get("destination_id") is None else _text(r, "destination_id"),
            bool(r.get("gone", False)),
        )
        topic, topic_id = _text(r, "topic"), _text(r, "topic_id")
        self.destinations[topic_id] = destination
        if refused is None:
            self.copied_into.setdefault(destination.topic, set()).add(topic)
            before = self.settled.get(destination.topic)
            sources = {topic_id} if before is None else before.sources | {topic_id}
            self.settled[destination.topic] = Settled(offset, destination.id, frozenset(sources))

    def _on_accept_destination(self, offset: int, r: dict[str, Any]) -> None:
        names = r["destinations"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"destinations is {names!r}, not a list of topics")
        self.accepted.update(dict.fromkeys(names, offset))

    def _on_end_epoch(self, offset: int, r: dict[str, Any]) -> None:
        key = (_text(r, "application"), _number(r, "term"))
        self.ended[key] = max(self.ended.get(key, -1), _number(r, "epoch"))

    def _on_ask(self, offset: int, r: dict[str, Any]) -> None:
        self.asks[_key(r)] = Request(offset, _text(r, "topic"), None)

    def _on_resend(self, offset: int, r: dict[str, Any]) -> None:
        key, request = _key(r), _request(offset, r)
        # Said by the one who answers, not taken from the order: a demand written between a question and its answer is neither.
        asked, answered = self.asks.get(key), _number_or_none(r, "answers")
        answers = asked is not None and answered == asked.at
        if answers:
            del self.asks[key]
        self.resends[key] = replace(request, answers=answers)
        if request.held is not None:
            self.holds.setdefault(key, request)

    def _on_halted(self, offset: int, r: dict[str, Any]) -> None:
        key, request = _key(r), _request(offset, r)
        halt = Halt(
            offset,
            _text(r, "application"),
            request.topic,
            _text(r, "reason"),
            request.next,
            _number_or_none(r, "available"),
            _text(r, "detail") if "detail" in r else "",
        )
        self.halts[(halt.application, key)] = halt
        if request.held is not None:
            self.holds.setdefault(key, request)

    def _on_resumed(self, offset: int, r: dict[str, Any]) -> None:
        key, application = _key(r), _text(r, "application")
        self.halts.pop((application, key), None)
        if application == DEDUPLICATOR:
            self.holds.pop(key, None)

    def _on_accept_loss(self, offset: int, r: dict[str, Any]) -> None:
        self.consents[_key(r)] = Consent(
            offset,
            _text(r, "topic"),
            _number_or_none(r, "next"),
            _number_or_none(r, "to"),
            _text(r, "reason"),
        )

    def _on_pause(self, offset: int, r: dict[str, Any]) -> None:
        paused = r["paused"]
        if type(paused) is not bool:
            raise TypeError(f"paused is {paused!r}, not true or false")
        self.steering = self.steering.with_pause(checked_entries(r["topics"]), paused)

    def _on_limit(self, offset: int, r: dict[str, Any]) -> None:
        self.steering = self.steering.with_limit(checked_entries(r["topics"]), checked_limit(r))


# Fields are held to their types here: a value of another type would fail later, far from the record that is to blame, or not at
# all (Kafka's clients take a negative offset for "the end").


def _key(record: dict[str, Any]) -> Key:
    return (_text(record, "topic_id"), _number(record, "partition"))


def _request(offset: int, r: dict[str, Any]) -> Request:
    held = r.get("held")
    if held is not None:
        if not isinstance(held, list) or len(held) != 2 or any(type(n) is not int or n < 0 for n in held):
            raise TypeError(f"held is {held!r}, not a staging partition and an offset")
        held = (held[0], held[1])
    return Request(
        offset, _text(r, "topic"), _number_or_none(r, "next"), held, _number_or_none(r, "held_start")
    )


def _text(record: dict[str, Any], name: str) -> str:
    value = record[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, not a text")
    return value


def _acls(values: Any) -> list[Acl]:
    found = [Acl(*value) for value in values]
    for acl in found:
        if not all(isinstance(part, str) for part in acl):
            raise TypeError(f"{acl!r} is no access rule")
    return found


def _texts(values: dict[str, Any]) -> dict[str, str]:
    return {name: _text(values, name) for name in values}


def _number(record: dict[str, Any], name: str) -> int:
    value = record[name]
    if type(value) is not int or value < 0:
        raise TypeError(f"{name} is {value!r}, not a number from 0")
    return value


def _number_or_none(record: dict[str, Any], name: str) -> int | None:
    return None if record.get(name) is None else _number(record, name)
