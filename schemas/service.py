"""The main loop of `schemas`: election, a round every `interval`, signals, exit codes. What a round finds and
does is elsewhere."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from common.app.cluster_watch import ClusterWatch
from common.app.election import TICK_S, wait_for_lead
from common.app.instance import CALL_S, Instance
from common.config import durations
from common.errors import Deposed, LinkRefused, RegistryError, VerbatimError
from common.kafka.client import clients, topics
from common.kafka.errors import kafka_error, retriable
from common.link import identity
from common.link.control_state import Control
from common.link.halt_reasons import HaltReason
from common.link.identity import Link
from common.link.lane_work import Work
from common.link.schema_map import encode_id
from common.link.schema_map_log import SchemaMapLog
from common.partitions import PartitionId
from common.ports import Deadline
from schemas.configured import SchemasFile
from schemas.copying import FAILED, Copying, Line, Stopped
from schemas.writing import Writing

if TYPE_CHECKING:
    from common.config.live_reload import LiveFile
    from common.config.settings import Settings

log = logging.getLogger(__name__)

NAME = "schemas"


class Service(Instance):
    """One instance. `run` returns the exit code; `once` ends after the first round."""

    name = NAME
    needs_source = False

    def __init__(self, settings: Settings, once: bool, live: LiveFile | None = None) -> None:
        self.file = SchemasFile(settings)
        super().__init__(settings, None if once else live)
        self.once = once
        self.lines: list[Line] = []
        """What became of each version in the last round."""
        self.totals: Counter[str] = Counter()
        self._said: dict[str, str] = {}
        self._waiting: set[tuple[PartitionId, int | None]] = set()
        """As they were when the last round began."""
        self._term: Term | None = None

    def _run(self) -> int:
        s = self.settings
        self.link, self.control = identity.prepare(s, False, Deadline(CALL_S), make=False, ask_source=False)
        self.admin = clients.admin(s.client_config("destination", "admin"))
        make_schemas_topic(s, self.admin, Deadline(CALL_S))
        self._knows_clusters()
        self._stand_for_election()
        watch = ClusterWatch(self.health, {"target": s.client_config("destination", "admin")})
        try:
            while wait_for_lead(self.leadership, self.health, self.stopping, meanwhile=self.follow_link):
                try:
                    self._lead()
                except Deposed as deposed:
                    log.info("%s", deposed)
                    continue
                except Stopped:
                    return 0
                if self.once or self.stopping.is_set():
                    return 0
            return 0
        finally:
            self.health.role = "stopping"
            watch.close()
            self.leadership.close()

    def _lead(self) -> None:
        """Rounds until stopped, once, or deposed (Deposed)."""
        self._begin_term()
        try:
            while not self.stopping.is_set():
                at = time.monotonic() + durations.seconds(self.file.config.interval)
                try:
                    self._round()
                except (KafkaException, VerbatimError) as error:
                    self._ride_out(error)
                if self.once:
                    return
                while time.monotonic() < at and not self.stopping.is_set():
                    self.go_on()
                    self._look_at_file()
                    self.follow_link()
                    self.leadership.poll(TICK_S)
                    if self.file.changed():
                        self._end_term()
                        break
                    if self._awaited() - self._waiting:
                        # At once: records wait for what has been registered since.
                        break
        finally:
            self._end_term()

    def go_on(self) -> None:
        """Said often: alive, and still a member of the election. Raises Deposed, Stopped."""
        self.health.turned = time.monotonic()
        self.show_link()
        if self.stopping.is_set():
            raise Stopped
        if not self.leadership.poll(0.0):
            raise Deposed("another instance leads now")

    def _round(self) -> None:
        state = self.control.refresh(Deadline(CALL_S))
        if state.deposed(NAME, self.term):
            raise Deposed("another instance leads now")
        self._waiting = self._awaited()
        if self._term is None:
            self._term = Term(self)
        self.lines = self._term.copying.round(destinations(self.settings, state, self.link))
        self._tell()

    def _awaited(self) -> set[tuple[PartitionId, int | None]]:
        """Partitions of which a record waits for its schema, and where."""
        halts = self.control.state.halts.copy().items()
        return {(key, halt.next) for (_, key), halt in halts if halt.reason == HaltReason.SCHEMA_UNKNOWN}

    def _end_term(self) -> None:
        if self._term is not None:
            self._term.close()
        self._term = None

    def _ride_out(self, error: Exception) -> None:
        # What was on its way may be there or not: read again.
        self._end_term()
        reason = kafka_error(error)
        passing = (
            error.retriable if isinstance(error, VerbatimError) else retriable(reason) if reason else False
        )
        if isinstance(error, RegistryError) and error.status == 404:
            passing = True  # gone for good since it was listed
        if self.once or not passing:
            raise error
        log.warning("this round ends here: %s", error)

    def _tell(self) -> None:
        """Counters, and one line for each subject that is left alone for a new reason."""
        assert self._term is not None
        self.totals["schemas_registered"] += self._term.copying.written
        self._term.copying.written = 0
        self.totals["rounds"] += 1
        failed = failures(self.lines)
        self.totals["subjects_failed"] = len(failed)
        self.health.work = Work(Counter(self.totals))
        for subject, why in failed.items():
            if self._said.get(subject) != why:
                log.error("subject %s is not in step: %s", subject, why)
        self._said = failed


class Term:
    """What a leader has of registries and map, until something fails; made anew then."""

    def __init__(self, service: Service) -> None:
        """Finishes what an earlier one has left. Raises SchemaMismatch."""
        self.source, self.target = service.file.connect()
        self.log = SchemaMapLog(service.settings, service.admin)
        try:
            found = self.log.catch_up(Deadline(CALL_S))
            config = service.file.config
            writing = Writing(self.target, self.log, config.ids)
            # Compaction keeps the last record of an id; the first one counts.
            if found.disputed:
                writing.append([encode_id(key, found.ids[key]) for key in found.disputed])
            writing.restore()
            self.copying = Copying(self.source, self.target, found, config, writing, service.go_on)
            self.copying.check_fingerprints()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.log.close()
        self.source.close()
        self.target.close()


def failures(lines: list[Line]) -> dict[str, str]:
    """Subject -> why it is not in step."""
    found: dict[str, str] = {}
    for line in lines:
        if line.state == FAILED:
            found.setdefault(line.subject, line.detail)
    return found


def destinations(settings: Settings, state: Control, link: Link) -> dict[str, str]:
    """Source topic -> destination, of the link's topics as they are named: also before they are there."""
    named = settings.by_destination(state.running_topics(), link.source_name)
    return {topic: name for name, of in named.items() for topic in of}


def make_schemas_topic(settings: Settings, admin: AdminClient, deadline: Deadline) -> None:
    """Make the schemas topic where it is missing. Raises LinkRefused."""
    name = settings.schemas_topic
    identity.make_topics(settings, admin, {name: (1, {"cleanup.policy": "compact"})}, deadline)
    if topics.not_writable(admin, [name], deadline):
        raise LinkRefused(f"topic {name}: not allowed to write to it; grant WRITE")
