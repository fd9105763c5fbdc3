"""What is asked of each leader, when, and whose answer has come: connections, fetch sessions, leaders that
change. What answers mean is left to others.

Every leader is served by itself. Nothing here waits for one of them: a broker that accepts connections and is
silent, that refuses them, is slow at TLS or dies stops the partitions that it leads, is tried again by
itself, and named once (common/kafka/wire/broker_backoff.py). For one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from common import ports
from common.errors import LinkRefused
from common.kafka.errors import NO_RIGHTS
from common.kafka.wire import fetch_protocol
from common.kafka.wire.broker_backoff import DATA, TRIES
from common.kafka.wire.broker_connections import BrokerConnections, Line, Question
from common.kafka.wire.connection import UnsupportedVersion, wait_for
from common.kafka.wire.fetch_limits import SHORT_WAIT_MS, FetchLimits
from common.kafka.wire.fetch_protocol import FETCH, FETCH_BY_NAME, NO_SESSION, Fetched, Wanted
from common.kafka.wire.growth import Growth
from common.kafka.wire.protocol import Address
from common.partitions import PartitionId, PartitionName

log = logging.getLogger(__name__)

AHEAD_BYTES = 64 << 10
"""A broker whose answer has less is asked again when that is waited for, not before: it would answer with the
next record alone, and all behind that would wait for another one."""
CALL_S = 10.0
ANSWER_S = 25.0
"""How long a broker may take beyond the time that it may wait for records."""
METADATA_AGE_MS = 300_000
"""As in Kafka's own consumer."""
BACK_OFF_S, MOST_BACK_OFF_S = 0.1, 2.0
LOOK_S = 0.05
"""While a leader can't be asked, or is not known, it is looked whether it can be."""
_SESSION_LOST = frozenset({70, 71, 106})


@dataclass(slots=True)
class Position:
    """Where a partition is read. `end` is the high watermark that was told last; `leader` who is asked for
    it, `replica` that it is a follower (its id), `leader_epoch` which leader is meant; nobody is asked before
    `rests_until`."""

    key: PartitionId
    topic: str
    partition: int
    offset: int
    epoch: int
    held: bool = False
    stopped: bool = False
    end: int = -1
    leader: Address | None = None
    leader_epoch: int = -1
    replica: int | None = None
    rests_until: float = 0.0
    unknown_since: float | None = None
    aligned: bool = False
    doubted: tuple[int, int] | None = None
    room: int = 0
    """The last three are common/kafka/wire/fetch_answers.py's."""

    @property
    def name(self) -> PartitionName:
        return self.topic, self.partition

    def wanted(self, most_bytes: int) -> Wanted:
        return Wanted(self.offset, self.epoch, max(most_bytes, self.room), self.leader_epoch)


@dataclass(slots=True)
class Session:
    """What is wanted of a broker, and what it knows of that. `untold`: of these it may know something
    else."""

    number: int = NO_SESSION
    epoch: int = 0
    wanted: dict[PartitionId, Position] = field(default_factory=dict)
    known: dict[PartitionId, Wanted] = field(default_factory=dict)
    untold: set[PartitionId] = field(default_factory=set)
    answer_by: float | None = None
    """While a request is in flight."""
    waits: bool = False
    """Whether that may wait long."""
    more: bool = False
    """Whether partitions are wanted that no request has named yet."""
    had_much: bool = False
    """Whether its last answer had: then more is there, most likely."""
    size: Growth = field(default_factory=Growth)
    asked: tuple[int, int] = (0, 0)
    """For how many bytes at most it was asked: of one partition, and in all."""
    ids: dict[str, str] | None = None
    """Of a broker that is asked by the topics' names, their ids; None: one that is asked by ids."""

    def begin_anew(self) -> None:
        """All is said again."""
        self.number, self.epoch, self.known = NO_SESSION, 0, {}
        self.untold = set(self.wanted)


class FetchSessions:
    """Raises LinkRefused where a broker is too old to be asked."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.brokers = BrokerConnections(config)
        self.limits = FetchLimits(config)
        self._rack = str(config.get("client.rack", ""))
        self._age_s = int(config.get("metadata.max.age.ms", METADATA_AGE_MS)) / 1000
        self.positions: dict[PartitionId, Position] = {}
        self.changed: dict[PartitionId, Position] = {}
        """Of these something else is wanted than the sessions have, or of another broker; and those that no
        broker is known to lead."""
        self.sessions: dict[Address, Session] = {}
        self.refusals: list[tuple[list[Position], KafkaError]] = []
        """Partitions whose leader does not let us in; none: who was asked for leaders does not."""
        self.by_name = False
        """Whether a broker has been asked by the topics' names. For good, then: what it answered may not have
        been taken yet."""
        self._look_after = 0.0
        """When leaders may be asked for again."""
        self._question: Question | None = None
        """For leaders, while it is not answered."""
        self._all = False
        """Whether it is for those of all partitions, since what is known is old."""
        self._asked_until = 0.0
        self._unanswered = 0
        """How many of these came to nothing since the last answer."""
        self._renew_at = ports.monotonic() + self._age_s
        """When that is so, and followers are left for the leaders."""
        self._idle: set[Address] = set()
        """Leaders of which something is wanted, and that could not be asked for it yet."""

    def close(self) -> None:
        self.brokers.close()

    def more_comes(self) -> bool:
        """Whether a broker that had much was asked for more, and has not answered."""
        return any(s.had_much and s.answer_by is not None for s in self.sessions.values())

    def asked_of_one(self) -> int:
        """Of how many partitions a broker is asked for at most."""
        return max((len(session.wanted) for session in self.sessions.values()), default=0)

    def had_much(self) -> bool:
        return any(session.had_much for session in self.sessions.values())

    # asking

    def ask(self, now: float, ahead: bool = False) -> bool:
        """Send a request to each leader that owes no answer and can be asked, `ahead` to those of them that
        had much; whether there was one."""
        self._place()
        self._find_leaders(now)
        if not ahead:
            self._idle.clear()
        asked = False
        for leader, session in list(self.sessions.items()):
            if session.more and session.waits and session.answer_by is not None:
                self._ask_otherwise(leader, session)
            if session.wanted and session.answer_by is None and (session.had_much or not ahead):
                asked |= self._ask(leader, session, now)
        return asked

    def _ask_otherwise(self, leader: Address, session: Session) -> None:
        """Take back a request that may wait long, since other partitions have come to this leader: with its
        connection, which has room for one."""
        self.brokers.drop((leader, DATA))
        session.answer_by = None
        session.begin_anew()

    def _ask(self, leader: Address, session: Session, now: float) -> bool:
        line: Line = (leader, DATA)
        try:
            if not self.brokers.usable(line, now):
                self._idle.add(leader)
                return False
            self._send(line, session)
        except UnsupportedVersion as why:
            raise LinkRefused(why.args[0].str()) from None
        except KafkaException as why:
            self._fail(leader, why, now)
            return False
        return True

    def _find_leaders(self, now: float) -> None:
        """Ask for the leaders that are not known, or take the answer."""
        if self._question is None:
            self._all = now >= self._renew_at
            asked = self.positions if self._all else self.changed
            if not asked or now < self._look_after:
                return
            self._look_after = now + BACK_OFF_S
            self._asked_until = now + CALL_S
            self._question = self.brokers.leaders_of({at.topic for at in asked.values()})
        try:
            answer = self._question.answer()
            if answer is None:
                if now < self._asked_until:
                    return
                self._question.give_up()
                raise self._question.problem
            self.brokers.learn(answer)
        except UnsupportedVersion as why:
            raise LinkRefused(why.args[0].str()) from None
        except KafkaException as exception:
            self._unanswered += 1
            self._look_after = now + min(MOST_BACK_OFF_S, BACK_OFF_S * (1 << min(self._unanswered, 10)))
            error: KafkaError = exception.args[0]
            if error.code() in NO_RIGHTS:
                self.refusals.append(([], error))
            log.debug("leaders: %s", error)
        else:
            self._unanswered = 0
            if self._all:
                self._renew_at = now + self._age_s
                for at in self.positions.values():
                    at.replica = None
            # Of their topics' other partitions, too, leaders may have been learnt.
            self.changed |= self.positions
            self._place()
        self._question = None

    def _whom(self, at: Position) -> Address | None:
        """Whom to ask for a partition: its leader, or who follows it nearby."""
        if at.rests_until and at.rests_until > ports.monotonic():
            return None
        if at.replica is not None and (nearby := self.brokers.address(at.replica)) is not None:
            return nearby
        return self.brokers.leader(at.name)

    def follow(self, at: Position, node: int, now: float) -> None:
        """Read a partition from a broker that follows its leader, and is nearer."""
        at.replica = node
        if self.brokers.address(node) is None:
            self.back_to_leader(at, now)

    def back_to_leader(self, at: Position, now: float) -> None:
        """Ask the leader again. It may well name the same follower at once: hence the pause."""
        at.replica, at.rests_until = None, now + BACK_OFF_S

    def _place(self) -> None:
        """Want of each leader what has changed. What has none stays where it is."""
        unled: dict[PartitionId, Position] = {}
        for key, at in self.changed.items():
            wanted = not at.held and not at.stopped
            leader = self._whom(at) if wanted else None
            if at.leader != leader and at.leader in self.sessions:
                before = self.sessions[at.leader]
                before.wanted.pop(key, None)
                before.untold.add(key)
            at.leader, at.leader_epoch = leader, self.brokers.epoch(at.name)
            if leader is not None:
                session = self.sessions.setdefault(leader, Session())
                session.more |= key not in session.wanted and key not in session.known
                session.wanted[key] = at
                session.untold.add(key)
            elif wanted:
                unled[key] = at
        self.changed = unled

    def _send(self, line: Line, session: Session) -> None:
        known = session.known
        now = ports.monotonic()
        wait_ms = self.limits.wait_ms(now)
        partition_bytes, most_bytes = asked = self.limits.bytes(session.size.factor, len(self.sessions))
        if asked[0] != session.asked[0]:
            session.untold = {*session.untold, *session.wanted}
        session.asked = asked
        wanted = {
            key: session.wanted[key].wanted(partition_bytes)
            for key in session.untold
            if key in session.wanted
        }
        changed = {key: w for key, w in wanted.items() if known.get(key) != w}
        gone = [key for key in session.untold if key in known and key not in wanted]
        connection = self.brokers[line]
        names = None
        if connection.knows(FETCH):
            session.ids = None
        else:
            self.by_name = True
            names = {key[0]: self.positions[key].topic for key in (*changed, *gone)}
            session.ids = (session.ids or {}) | {name: topic_id for topic_id, name in names.items()}
        body = fetch_protocol.fetch(
            changed,
            gone,
            session.number,
            session.epoch,
            wait_ms,
            self.limits.least_bytes,
            most_bytes,
            self._rack,
            names,
        )
        connection.send(FETCH if names is None else FETCH_BY_NAME, [body], None)
        known |= changed
        for key in gone:
            del known[key]
        session.untold = set()
        session.more, session.waits = False, wait_ms > SHORT_WAIT_MS
        session.answer_by = now + wait_ms / 1000 + ANSWER_S

    def _fail(self, leader: Address, why: KafkaException, now: float) -> None:
        """A broker can't be reached or makes no sense: it may lead nothing any more."""
        error: KafkaError = why.args[0]
        session = self.sessions.pop(leader, None)
        if session is not None:
            self.changed |= session.wanted
            for at in session.wanted.values():
                at.replica = None
            if error.code() in NO_RIGHTS:
                self.refusals.append((list(session.wanted.values()), error))
        self.brokers.lost((leader, DATA), why)
        self.brokers.forget_leader(leader)
        self.later(now)

    def later(self, now: float) -> None:
        """Leaders are not asked for at once."""
        self._look_after = max(self._look_after, now + BACK_OFF_S)

    # taking

    def answered(self, timeout_s: float, all_within_s: float) -> list[Address]:
        """Whose answer is there, waiting for one of them; and for all, where they were just asked. Goes on
        meanwhile with connections and leaders that are wanted."""
        begun = ports.monotonic()
        while True:
            waiting = [a for a, session in self.sessions.items() if session.answer_by is not None]
            ready = [a for a in waiting if self.brokers[a, DATA].complete()]
            now = ports.monotonic()
            left = (all_within_s if ready else max(timeout_s, all_within_s)) - (now - begun)
            if left <= 0 or (ready and len(ready) == len(waiting)):
                return ready
            what = [self.brokers[a, DATA].waits_for() for a in waiting if a not in ready]
            unsettled = self._idle or self._question is not None or self.changed
            if unsettled:
                left = min(left, LOOK_S)
                lines = [self.brokers[a, DATA] for a in self._idle if self.brokers.has((a, DATA))]
                what += [line.waits_for() for line in lines if line.opening()]
                what += self._question.waits_for() if self._question is not None else []
            wait_for(what, left)
            if unsettled:
                self.ask(ports.monotonic())
                if self.refusals:
                    return ready

    def take(self, address: Address, now: float) -> Fetched | None:
        """What a leader has answered; None where that is nothing."""
        session = self.sessions[address]
        try:
            answer = fetch_protocol.fetched(self.brokers[address, DATA].received(), session.ids)
        except KafkaException as why:
            self._fail(address, why, now)
            return None
        TRIES.worked(address, DATA)
        session.answer_by = None
        sizes = [len(part.records) for part in answer.parts.values() if len(part.records)]
        of_one, in_all = session.asked
        session.had_much = sum(sizes) >= AHEAD_BYTES
        full = 2 * sum(sizes) >= min(in_all, of_one * max(1, len(sizes)))
        session.size.came(sum(sizes), full, self.limits.most_factor, ports.monotonic())
        return answer if self._goes_on(session, answer) else None

    def give_up(self, now: float) -> None:
        """Lose the brokers that owe their answer for too long."""
        for address, session in list(self.sessions.items()):
            by = session.answer_by
            # An answer may take longer than that to arrive, as long as something comes.
            if by is not None and now > max(by, self.brokers[address, DATA].used + ANSWER_S):
                self._fail(address, self.brokers[address, DATA].late(), now)

    @staticmethod
    def _goes_on(session: Session, answer: Fetched) -> bool:
        if answer.error or not answer.session:
            # Its session is over, or it makes none, being asked for too many.
            session.begin_anew()
        else:
            session.number = answer.session
            session.epoch = session.epoch % 0x7FFFFFFF + 1
        if answer.error and answer.error not in _SESSION_LOST:
            log.warning("fetching: %s", KafkaError(answer.error).str())
        return not answer.error
