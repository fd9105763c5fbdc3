"""What the control topic's records add up to. Pure: the topic is read and written in
common/link/control_log.py.

One partition, never compacted, so its order is a history on which both applications and the operator's
commands agree. Every record is a JSON object with a `kind`; a record's offset serves as its number. Links may
share the topic, and others may write to it: what is not this link's is skipped. Where several writers may
race (two leaders of one application, one of them paused), the rule is that the first record wins, and
everyone reads to the end before acting.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from common.errors import ControlError
from common.kafka.model import Acl
from common.link import control_kinds as kinds
from common.link import promotions
from common.link.control_kinds import SourceTopic
from common.link.control_records import (
    DEDUPLICATOR,
    FOLLOWED,
    HELD,
    MOVED,
    MOVING,
    Consent,
    Destination,
    GroupMove,
    Halt,
    Origin,
    PipelineVersion,
    Request,
    Settled,
)
from common.link.throttling import Steering, checked_entries, checked_limit
from common.partitions import PartitionId


@dataclass(slots=True)
class Control:
    """All that the control topic says of one link up to `position`. `link` None: of whatever link, where it
    has one only.

    One thread takes in records at a time; others may read meanwhile: what they go through is a copy.
    """

    position: int = 0
    link: str | None = None
    identity: kinds.Identity | None = None
    leaders: dict[str, int] = field(default_factory=dict)
    """application -> control offset of its newest leader record: that leader's term."""
    led_by: dict[str, str] = field(default_factory=dict)
    """application -> the instance that leads, or did last."""
    started: bool = False
    start_offsets: str | None = None
    """The START_OFFSETS by which the link has begun; None where that was not said."""
    origins: dict[PartitionId, Origin] = field(default_factory=dict)
    topics: dict[str, SourceTopic] = field(default_factory=dict)
    """topic id -> newest description."""
    destinations: dict[str, Destination] = field(default_factory=dict)
    """topic id -> newest destination."""
    routes: dict[tuple[str, str], Destination] = field(default_factory=dict)
    """(topic id, destination) -> how that is, to which a stage takes records of the topic."""
    copied_into: dict[str, set[str]] = field(default_factory=dict)
    """Destination -> names of the source topics whose records have been let in, now or before."""
    settled: dict[str, Settled] = field(default_factory=dict)
    """Destination -> how it was let in last."""
    accepted: dict[str, int] = field(default_factory=dict)
    """Destination -> control offset of the newest consent to use it although records are there, partitions
    lack, or it is another one."""
    acls: dict[str, list[Acl]] = field(default_factory=dict)
    """Source topic -> the access rules that concern it."""
    given_up: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Transactional id -> producer id and epoch that nobody uses any more, though its last transaction is
    still being completed."""
    granted: dict[str, frozenset[Acl]] = field(default_factory=dict)
    """Destination -> the access rules that the link has made there, or is about to make."""
    deleted: set[str] = field(default_factory=set)
    """Ids of topics that are gone from the source. Their copies are kept."""
    ended: dict[tuple[str, int], int] = field(default_factory=dict)
    """(application, term) -> highest epoch told to end."""
    asks: dict[PartitionId, Request] = field(default_factory=dict)
    resends: dict[PartitionId, Request] = field(default_factory=dict)
    holds: dict[PartitionId, Request] = field(default_factory=dict)
    """Holes in staging that have not closed yet: staging must not be trimmed past their first skipped
    frame."""
    halts: dict[tuple[str, PartitionId], Halt] = field(default_factory=dict)
    """(application, partition) -> why it stands still."""
    consents: dict[PartitionId, Consent] = field(default_factory=dict)
    steering: Steering = field(default_factory=Steering)
    """What operators have paused, limited or promoted."""
    group_moves: dict[str, GroupMove] = field(default_factory=dict)
    """Source group -> how far it is on its way to the target, if it is."""
    followed: set[str] = field(default_factory=set)
    """Source groups that were on their way, or moved, and were given back to `offsets`."""
    handed_over: dict[str, kinds.HandedOver] = field(default_factory=dict)
    """Source topic id -> what was said last where its consumers may go on at the target."""
    pipelines: dict[int, PipelineVersion] = field(default_factory=dict)
    """Number -> pipeline, oldest first."""
    dead_letters: kinds.DeadLetters | None = None
    """The topic of dead letters, as it was found last."""

    def apply(self, offset: int, value: bytes | None) -> str | None:
        """Take in the record at `offset`; of one that is skipped, why, unless it is another link's.

        Skipped is what carries no link of ours, and what is of a kind that this release does not know. Raises
        ControlError for any other record that can't be understood: this link's, and damaged. Without a `link`
        nothing is skipped.
        """
        if offset < self.position:
            return None
        skipped = None
        try:
            record = _of_link(self.link, value)
            if isinstance(record, dict):
                kind = record["kind"]
                if self.link is None or kind in kinds.KINDS or not isinstance(kind, str):
                    self._take(offset, kinds.decode(record))
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

    def _take(self, offset: int, record: kinds.ControlRecord) -> None:
        getattr(self, "_on_" + record.kind.replace("-", "_"))(offset, record)

    def deposed(self, application: str, term: int) -> bool:
        """Whether a newer leader than the one of `term` has taken over."""
        return self.leaders.get(application, -1) > term

    def epoch_ended(self, application: str, term: int, epoch: int) -> bool:
        """Whether the lanes of this epoch are to finish."""
        return self.deposed(application, term) or self.ended.get((application, term), -1) >= epoch

    def newest_topics(self) -> dict[str, SourceTopic]:
        """Source topics by name, as last described; of one that was made again, the last."""
        return {source.topic: source for source in self.topics.copy().values()}

    def all_destinations(self) -> list[tuple[str, Destination]]:
        """Of each topic id its destination, and those that stages take records of it to."""
        routes = ((topic_id, to) for (topic_id, _), to in self.routes.copy().items())
        return [*self.destinations.copy().items(), *routes]

    def destination_of(self, topic_id: str, name: str | None) -> Destination | None:
        """The destination of a topic id that is called so, or else its own."""
        own = self.destinations.get(topic_id)
        if name is None or (own is not None and own.topic == name):
            return own
        return self.routes.get((topic_id, name), own)

    def copies(self) -> dict[str, str]:
        """Source topic -> destination, of the topics that are copied."""
        return {
            name: to.topic
            for name, source in self.newest_topics().items()
            if source.topic_id not in self.deleted
            and (to := self.destinations.get(source.topic_id)) is not None
            and to.refused is None
        }

    @property
    def pipeline(self) -> int:
        """The number of the newest pipeline; 0: there was never one."""
        return next(reversed(self.pipelines), 0)

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

    def present(self) -> set[str]:
        """Ids of the topics that the source has now."""
        return {t.topic_id for t in self.newest_topics().values()} - self.deleted

    def topic_id_history(self, topic: str) -> list[str]:
        """The ids under which a topic's name has been copied, oldest first."""
        return list(dict.fromkeys(tid for (tid, _), of in self.origins.copy().items() if of.topic == topic))

    # one method for each kind of record

    def _on_identity(self, offset: int, r: kinds.Identity) -> None:
        if self.identity is None:
            self.identity = r

    def _on_leader(self, offset: int, r: kinds.Leader) -> None:
        self.leaders[r.application] = offset
        self.led_by[r.application] = r.instance

    def _on_started(self, offset: int, r: kinds.Started) -> None:
        if not self.started:
            self.start_offsets = r.start_offsets
        self.started = True

    def _on_origin(self, offset: int, r: kinds.Origin) -> None:
        # A paused first leader may come back and decide `latest` for a partition that appeared after the link
        # had begun: its records would be skipped. So an initial origin counts only until the link has
        # started.
        if r.initial and self.started:
            return
        self.origins.setdefault(r.key, Origin(r.topic, r.offset))

    def _on_topic(self, offset: int, r: SourceTopic) -> None:
        self.topics[r.topic_id] = r
        self.deleted.discard(r.topic_id)

    def _on_topic_acls(self, offset: int, r: kinds.TopicAcls) -> None:
        self.acls[r.topic] = list(r.acls)

    def _on_granted(self, offset: int, r: kinds.Granted) -> None:
        self.granted[r.destination] = frozenset(r.acls)

    def _on_given_up(self, offset: int, r: kinds.GivenUp) -> None:
        self.given_up[r.transactional_id] = (r.producer_id, r.epoch)

    def _on_topic_deleted(self, offset: int, r: kinds.TopicDeleted) -> None:
        self.deleted.add(r.topic_id)

    def _on_destination(self, offset: int, r: kinds.Destination) -> None:
        self.destinations[r.topic_id] = self._let_in(offset, r)

    def _on_route(self, offset: int, r: kinds.Route) -> None:
        self.routes[r.topic_id, r.destination] = self._let_in(offset, r)

    def _let_in(self, offset: int, r: kinds.Verdict) -> Destination:
        if r.refused is None:
            self.copied_into.setdefault(r.destination, set()).add(r.topic)
            before = self.settled.get(r.destination)
            sources = {r.topic_id} if before is None else before.sources | {r.topic_id}
            self.settled[r.destination] = Settled(offset, r.destination_id, frozenset(sources))
        return Destination(
            r.destination, r.partitions, r.max_message_bytes, r.refused, r.config, r.compacted,
            r.destination_id, r.gone,
        )  # fmt: skip

    def _on_accept_destination(self, offset: int, r: kinds.AcceptDestination) -> None:
        self.accepted.update(dict.fromkeys(r.destinations, offset))

    def _on_end_epoch(self, offset: int, r: kinds.EndEpoch) -> None:
        key = (r.application, r.term)
        self.ended[key] = max(self.ended.get(key, -1), r.epoch)

    def _on_ask(self, offset: int, r: kinds.Ask) -> None:
        self.asks[r.key] = Request(offset, r.topic, None)

    def _on_resend(self, offset: int, r: kinds.Resend) -> None:
        # Said by the one who answers, not taken from the order: a demand written between a question and its
        # answer is neither.
        asked = self.asks.get(r.key)
        answers = asked is not None and r.answers == asked.at
        if answers:
            del self.asks[r.key]
        self.resends[r.key] = Request(offset, r.topic, r.next, r.held, r.held_start, answers)
        self._hold(offset, r.key, r)

    def _on_halted(self, offset: int, r: kinds.Halted) -> None:
        halt = Halt(offset, r.application, r.topic, r.reason, r.next, r.available, r.detail)
        key = (r.topic_id, r.partition)
        self.halts[(r.application, key)] = halt
        self._hold(offset, key, r)

    def _hold(self, offset: int, key: PartitionId, r: kinds.Resend | kinds.Halted) -> None:
        if r.held is not None:
            held = Request(offset, r.topic, r.next, r.held, r.held_start)
            self.holds.setdefault(key, held)

    def _on_resumed(self, offset: int, r: kinds.Resumed) -> None:
        key = (r.topic_id, r.partition)
        self.halts.pop((r.application, key), None)
        if r.application == DEDUPLICATOR:
            self.holds.pop(key, None)

    def _on_accept_loss(self, offset: int, r: kinds.AcceptLoss) -> None:
        self.consents[r.key] = Consent(offset, r.topic, r.next, r.to, r.reason)

    def _on_pause(self, offset: int, r: kinds.Pause) -> None:
        self.steering = self.steering.with_pause(checked_entries(r.topics), r.paused)

    def _on_limit(self, offset: int, r: kinds.Limit) -> None:
        limit = checked_limit(r.bytes_per_second, r.records_per_second)
        self.steering = self.steering.with_limit(checked_entries(r.topics), limit)

    def _on_group_move(self, offset: int, r: kinds.GroupMove) -> None:
        _take_move(self.group_moves, offset, r)
        if r.state == FOLLOWED:
            self.followed.add(r.group)

    def _on_promotion(self, offset: int, r: kinds.Promotion) -> None:
        self.steering = replace(
            self.steering, promotions=promotions.promoted(self.steering.promotions, offset, r)
        )

    def _on_let_go(self, offset: int, r: kinds.LetGo) -> None:
        self.steering = replace(self.steering, promotions=promotions.let_go(self.steering.promotions, r))

    def _on_dead_letters(self, _: int, r: kinds.DeadLetters) -> None:
        self.dead_letters = r

    def _on_handed_over(self, offset: int, r: kinds.HandedOver) -> None:
        self.handed_over[r.topic_id] = r

    def _on_pipeline(self, offset: int, r: kinds.Pipeline) -> None:
        # A paused leader may wake up and write the number that its successor has written.
        if r.n > self.pipeline:
            self.pipelines[r.n] = PipelineVersion(offset, r.definition, r.sha256)


def _of_link(wanted: str | None, value: bytes | None) -> dict[str, Any] | str | None:
    """The record, if it is the link's (None: of any); else why it is none (None: it is another link's)."""
    try:
        record = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        # With this link's name in it, it may be one of its own that was cut.
        if wanted is None or orjson.dumps(wanted) in (value or b""):
            raise
        return "it is not JSON"
    if wanted is None:
        return dict(record.items())
    if not isinstance(record, dict):
        return "it is no JSON object"
    link = record.get("link")
    if link == wanted:
        return record
    if isinstance(link, str):
        return None
    # Early releases named no link.
    known = link is None and str(record.get("kind")) in kinds.KINDS
    return record if known else "it names no link"


def _take_move(found: dict[str, GroupMove], offset: int, r: kinds.GroupMove) -> None:
    before = found.get(r.group)
    if r.state == FOLLOWED:
        found.pop(r.group, None)
    elif r.state in (MOVING, MOVED):
        found[r.group] = GroupMove(offset, r.state)
    elif r.state != HELD:
        raise TypeError(f"state is {r.state!r}")
    elif before == GroupMove(r.answers if r.answers is not None else -1, MOVING):
        # An answer to an earlier question says nothing of this one.
        found[r.group] = GroupMove(before.at, HELD)
