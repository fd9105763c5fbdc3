"""A world for one link: two clusters, both applications, what befalls them, and what must hold whatever
does."""

from __future__ import annotations

import bisect
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any
from unittest import mock

import orjson
from confluent_kafka import KafkaException

import common.app.application
import common.app.lane_term
import common.link.batch_frame
import common.ports
import deduplicator.lane.delivery
import deduplicator.lane.fencing
import deduplicator.lane.frame_handler
import deduplicator.lane.lane
import replicator.lane.lane
import replicator.lane.partition_copy
import replicator.lane.source_reader
import replicator.lane.staging_writer
import replicator.main
from common.config import loading
from common.config.settings import Settings
from common.errors import VerbatimError
from common.kafka.client.topics import id_text
from common.link.control_state import Control
from common.link.halt_reasons import AT_THE_DESTINATION, HaltReason
from common.link.offset_mappings import Mapping, decode
from common.link.schema_map import Mapped, SchemaId, encode_id
from deduplicator.lane import dedup
from tests.simulation import batches, clients
from tests.simulation.applications import Query, Simulated, SimulatedDeduplicator, SimulatedReplicator, Table
from tests.simulation.cluster import Cluster, Entry, Log, Txn
from tests.simulation.pipelines import ROUTED, Pipelines, Rule, SimulatedFile
from tests.simulation.scheduler import Chooser, Process, Scheduler, Seeded, Task
from tests.support.control_json import encode

Key = tuple[str, int]
TOPIC = "orders"
"""The source topic, and its destination."""
OWN_HEADERS = 11
"""Of a dead letter, its last ones."""
OTHER = "returns"
"""The second source topic, where there is one: it is merged into the same destination."""
APPLICATIONS: dict[str, type[Simulated]] = {
    "replicator": SimulatedReplicator,
    "deduplicator": SimulatedDeduplicator,
}


class Wrong(AssertionError):
    """Something that must hold does not."""


@dataclasses.dataclass
class Instance:
    """An instance of an application, started again when it dies."""

    name: str
    process: Process
    task: Task
    app: Simulated | None = None


def settings(**variables: str) -> Settings:
    return loading.load(
        environ={
            "APPLICATION_NAME": "link",
            "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "source",
            "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "target",
            "KAFKA_CLUSTERS_SOURCE_TOPIC": TOPIC,
            "STAGING_PARTITIONS": "1",
            "TOPIC_REFRESH_INTERVAL": "30s",
            "HEALTH_PORT": "0",
            **variables,
        }
    )


SETTINGS = settings()
MERGED = settings(
    KAFKA_CLUSTERS_SOURCE_TOPIC=f"{TOPIC},{OTHER}",
    KAFKA_CLUSTERS_DESTINATION_TOPIC=TOPIC,
    SEVERAL_SOURCES="merge",
    STAGING_PARTITIONS="2",
)
"""Of a link with two source topics: partitions of one number go by different staging partitions, so by
different owners."""


class Way:
    """How topics of the source are asked for: by id, or by name."""

    by_names = False


@contextmanager
def by_names(really: bool = True) -> Iterator[None]:
    """The worlds that are made meanwhile ask for topics by name (or not)."""
    before, Way.by_names = Way.by_names, really
    try:
        yield
    finally:
        Way.by_names = before


def _source(entry: Entry) -> tuple[Key, int]:
    """Of a record at a destination: the source partition, and the offset there."""
    assert entry.value is not None
    topic_id, partition, offset = entry.value.split(b"/")[:3]
    return (topic_id.decode(), int(partition)), int(offset)


class World:
    """`lost` says that something was lost for good: then partitions may halt. Use it as a context."""

    def __init__(
        self,
        chooser: Chooser,
        settings: Settings = SETTINGS,
        partitions: int = 2,
        lanes: int = 1,
        lazy: bool = False,
        records: int = 0,
    ) -> None:
        self.chooser = chooser
        self.scheduler = Scheduler(chooser)
        self.by_names = Way.by_names
        self.settings = settings
        self.lanes = lanes
        self.lazy = lazy
        self.fold_s = 60.0
        clock = self.scheduler.monotonic
        self.source = Cluster("source", clock, lambda: False)
        self.target = Cluster("target", clock, lambda: self.lazy)
        self.clusters = {"source": self.source, "target": self.target}
        self.late: list[Callable[[], None]] = []
        self._late: list[tuple[float, Callable[[], None]]] = []
        self.leaders: dict[str, Process] = {}
        self.instances: list[Instance] = []
        self.queries: list[Query] = []
        self.zombies: list[Process] = []
        self.table = Table(self)
        self.promotes = False
        """Whether a topic was ever taken from the link."""
        self.pipelines = Pipelines()
        self.marks: dict[tuple[str, int, int], bytes | None] = {}
        """By (topic id, partition, offset) of what was delivered, which pipeline it says that it came by."""
        self.left_out: dict[Key, set[int]] = {}
        """Offsets that mappings cover by pipelines that leave them out."""
        self.letters: dict[tuple[str, int, int], Entry] = {}
        """By (topic id, partition, offset), the dead letters that are committed."""
        self._unmapped: dict[tuple[str, int, int], tuple[str, int, int]] = {}
        """Where those lie that no mapping leads to yet."""
        self._version: dict[Key, int] = {}
        self.states: Counter[str] = Counter()
        """Interesting states that were visited."""
        self.lost = False
        self.harmed = False
        """Whether frames were lost or spoilt in staging: only then may any be missed."""
        self.consumers: list[clients.Consumer | batches.BatchConsumer] = []
        self.held_up: set[str] = set()
        """Of what happens by itself, what does not happen now: "late", "markers", "replication",
        "answers"."""
        self.given_up: set[tuple[str, int, int]] = set()
        """(topic id, partition, offset) of records whose loss was accepted."""
        self.supervised = True
        self.records: dict[Key, list[tuple[int, Any]]] = {}
        """What the source ever held: (offset, content) by (topic id, partition)."""
        self.topics = [name for name in (TOPIC, OTHER) if settings.selects(name)]
        self.topic_order: list[str] = []
        self.ids: dict[str, str] = {}
        """Source topic -> its present id."""
        self._undecided: dict[Log, list[Entry]] = {}
        self._checked: dict[Log, int] = {}
        self.delivered: dict[Key, list[int]] = {}
        self._in_topic: dict[tuple[Key, str], list[int]] = {}
        """The same of each topic of the target, in the order in which they lie there."""
        self.reached: dict[Key, int] = {}
        self.frames: dict[Key, list[tuple[int, int, int]]] = {}
        self._origins: dict[Key, int] = {}
        self._looked_at = 0.0
        self._where: dict[tuple[str, int, int], tuple[str, int, int]] = {}
        self._make_topics(partitions)
        self.scheduler.before_step = self._supervise
        self.scheduler.events.append(self._something_late)
        self.scheduler.events.append(self._markers)
        self.scheduler.events.append(self._replication)
        self.target.on_commit = lambda txn: self._check(txn)
        self.target.on_decision = self._check_let_go
        for topic in self.topics:
            for p in range(partitions):
                if records:
                    self.produce(p, records, topic=topic)

    def _make_topics(self, partitions: int) -> None:
        s = self.settings
        self.target.create(s.control_topic, 1, dict(clients.DEFAULTS))
        self.target.create(s.positions_topic, 1, dict(clients.DEFAULTS))
        self.target.create(
            s.staging_topic, s.staging_partitions, {**clients.DEFAULTS, "max.message.bytes": "67108864"}
        )
        self.target.create(s.mappings_topic, s.staging_partitions, dict(clients.DEFAULTS))
        for topic in self.topics:
            self.make_source(partitions, topic)
        self.target.log(s.positions_topic, 0).on_append = self._check_position
        for log in self.target.topics[s.staging_topic].logs:
            log.on_append = self._remember_frame

    @contextmanager
    def living(self) -> Iterator[World]:
        """Put this world in the place of the real one."""
        make: dict[str, Any] = {
            "monotonic": self.scheduler.monotonic,
            "sleep": self.scheduler.sleep,
            "wait": lambda futures, timeout: self.scheduler.wait(
                timeout, lambda: all(f.done() for f in futures)
            ),
            "Lock": lambda: clients.Lock(self.scheduler),
            "Condition": lambda: clients.Condition(self.scheduler),
            "thread": lambda target, name: clients.Thread(self.scheduler, target, name),
            "Consumer": lambda config, logger: clients.Consumer(self, config),
            "Producer": lambda config, logger: clients.Producer(self, config),
            "shared_admin": lambda config, whole, logger: clients.AdminClient(self, whole(config)),
        }
        # Nobody looks as often as in production, and limits are so small that a few records make several
        # frames and batches.
        slower: list[tuple[Any, dict[str, Any]]] = [
            (replicator.lane.partition_copy, {"MAX_FRAME_BYTES": 300, "MAX_FRAME_RECORDS": 3}),
            (replicator.lane.staging_writer, {"IN_FLIGHT": 3, "BATCH_BYTES": 0}),
            (replicator.lane.lane, {"POLL_S": 20.0, "IDLE_POLL_S": 20.0, "MANY": 2}),
            (deduplicator.lane.lane, {"POLL_S": 20.0, "IDLE_POLL_S": 20.0}),
            (common.app.application, {"TURN_S": 10.0}),
            (common.app.lane_term, {"LOOK_INTERVAL_S": 5.0, "tame_garbage_collector": lambda: None}),
            (deduplicator.lane.delivery, {"LOOK_S": 10.0, "IDLE_S": 10.0, "MAX_BATCH_BYTES": 100}),
            (replicator.main, {"PipelineFile": partial(SimulatedFile, self.pipelines)}),
            *self._batches(),
        ]
        patches = [mock.patch.multiple(common.ports, **make)]
        patches += [mock.patch.multiple(module, **values) for module, values in slower]
        for patch in patches:
            patch.start()
        try:
            yield self
        finally:
            try:
                self.scheduler.close()
            finally:
                # The last one first: two may be of one name, and each puts back what it found.
                for patch in reversed(patches):
                    patch.stop()

    def _batches(self) -> list[tuple[Any, dict[str, Any]]]:
        """What to put where batches go."""
        take_apart = common.link.batch_frame.BatchFrame.rows

        def rows(wholes: common.link.batch_frame.BatchFrame) -> Any:
            if wholes.batches:
                self.visited("a batch was taken apart")
            return take_apart(wholes)

        made = common.link.batch_frame.pack

        def pack(rows: Any, starts: Any, *how: Any) -> Any:
            batches = made(rows, starts, *how)
            for number, at in enumerate(starts):
                if batches[number] is not None and rows.column(0)[at].as_py() % 2 == 0:
                    # As from a replicator of a release that made none.
                    batches[number] = None
                made_none = batches[number] is None
                self.visited("records stayed columns" if made_none else "small batches became one")
            return batches

        judged = dedup.decide

        def decide(*given: Any) -> Any:
            decision = judged(*given)
            if decision.action is dedup.Action.OUTDATED:
                self.visited("a frame of an older pipeline was refused")
            return decision

        return [
            (deduplicator.lane.frame_handler, {"decide": decide}),
            (deduplicator.lane.fencing, {"BatchProducer": partial(batches.BatchProducer, self)}),
            (replicator.lane.source_reader, {"BatchConsumer": partial(batches.BatchConsumer, self)}),
            (common.link.batch_frame.BatchFrame, {"rows": rows}),
            (common.link.batch_frame, {"pack": pack}),
        ]

    # what clients ask of the world

    def outcome(self, what: str, *ways: str) -> str:
        way = ways[self.chooser.outcome(len(ways), what)]
        if way != ways[0] and what not in ("consumed", "what was sent"):
            self.visited(f"{what} {way}")
        return way

    def visited(self, state: str) -> None:
        self.states[state] += 1

    # what happens by itself

    def _something_late(self) -> Callable[[], None] | None:
        if "late" in self.held_up:
            return None
        while self.late:
            delay = [0.0, 0.05, 1.0, 10.0, 100.0][self.chooser.outcome(5, "delay")]
            self._late.append((self.scheduler.now + delay, self.late.pop()))
        for i, (due, _) in enumerate(self._late):
            if due <= self.scheduler.now:
                return lambda: self._late.pop(i)[1]()
        return None

    def all_late_arrives(self) -> None:
        late = self.late + [act for _, act in self._late]
        self.late.clear()
        self._late.clear()
        for act in late:
            act()

    def _markers(self) -> Callable[[], None] | None:
        if "markers" in self.held_up:
            return None
        for txn in self.target.unfinished:
            if txn.unmarked or txn.state != "open":
                return lambda txn=txn: self.target.complete(txn, 1)  # type: ignore[misc]
        return None

    def _replication(self) -> Callable[[], None] | None:
        return self.target.replicate if self.target.lagging and "replication" not in self.held_up else None

    def _supervise(self) -> None:
        """Whoever dies is started again; an exception that is no error of ours or Kafka's is a bug."""
        if self.scheduler.now > self._looked_at:
            self._looked_at = self.scheduler.now
            self.target.expire_transactions()
        if not self.scheduler.somebody_ended:
            return
        self.scheduler.somebody_ended = False
        for instance in self.instances:
            if instance.task.is_alive():
                continue
            error = instance.task.error
            if error is not None and not isinstance(error, VerbatimError | KafkaException):
                raise error
            if self.supervised:
                self.kill(instance.process)
                self._start(instance)
        for query in list(self.queries):
            if query.closed:
                self.queries.remove(query)
            else:
                query.look_after()

    # processes

    def process(self, name: str) -> Process:
        return Process(name)

    def start(self, *names: str) -> None:
        for name in names or ("replicator", "deduplicator"):
            process = self.process(name)
            instance = Instance(name, process, None)  # type: ignore[arg-type]
            self._start(instance)
            self.instances.append(instance)

    def _start(self, instance: Instance) -> None:
        process = instance.process = self.process(instance.name)
        instance.app = None

        def main() -> None:
            app = APPLICATIONS[instance.name].__new__(APPLICATIONS[instance.name])
            app.world, app.process = self, process
            app.__init__(self.settings, False)  # type: ignore[misc]
            instance.app = app
            app.main()

        instance.task = self.scheduler.spawn(process, instance.name, main)

    def kill(self, process: Process) -> None:
        """kill -9."""
        if not process.alive:
            return
        process.alive = False
        self.scheduler.somebody_ended = True
        for bury in process.on_death:
            bury()

    def kill_driver(self, instance: Instance, executors_too: bool = True) -> None:
        self.kill(instance.process)
        query = getattr(instance.app, "query", None)
        if query is not None and not query.closed:
            query.closed = True
            for attempt in query.attempts.values():
                if executors_too:
                    self.kill(attempt.process)
                elif attempt.process.alive:
                    self.zombies.append(attempt.process)

    def leading(self, name: str) -> Instance | None:
        """The instance whose driver leads."""
        return next((i for i in self.instances if self.leaders.get(name) is i.process), None)

    def lanes_of(self, name: str) -> list[tuple[Query, int]]:
        return [(q, lane) for q in self.queries if q.name == name and not q.closed for lane in q.attempts]

    # the source

    def make_source(self, partitions: int, topic: str = TOPIC) -> str:
        made = self.ids[topic] = id_text(self.source.create(topic, partitions, dict(clients.DEFAULTS)).id)
        self.topic_order.append(made)
        return made

    def remake_source(self, topic: str = TOPIC) -> None:
        partitions = len(self.source.topics[topic].logs)
        self.source.delete(topic)
        self.make_source(partitions, topic)

    @property
    def topic_id(self) -> str:
        return self.ids[TOPIC]

    def source_log(self, partition: int, topic: str = TOPIC) -> Log:
        return self.source.topics[topic].logs[partition]

    def produce(self, partition: int, n: int = 1, gap: int = 0, tail: int = 0, topic: str = TOPIC) -> None:
        """Records, with offsets before and behind them that hold none."""
        log = self.source_log(partition, topic)
        kept = self.records.setdefault((self.ids[topic], partition), [])
        log.skip(gap)
        for _ in range(n):
            at = log.end
            name = b"%s/%d/%d/%d" % (self.ids[topic].encode(), partition, at, log.leader_epoch)
            content: tuple[bytes | None, bytes, list[tuple[str, bytes | None]] | None, int] = (
                self.pipelines.key(at),
                name,
                [("h", b"%d" % at)] if at % 2 else None,
                1000 + at,
            )
            log.append(*content)
            kept.append((at, content))
        if tail:
            for _ in range(tail):
                log.append(None, None, marker=True)

    def know(self, *schemas: int) -> None:
        """The map has them, as the application `schemas` writes them."""
        name, known = self.settings.schemas_topic, self.pipelines.schemas
        assert known is not None
        if name not in self.target.topics:
            self.target.create(name, 1, dict(clients.DEFAULTS))
        for schema in schemas:
            known[schema] = 100 + schema
            self.target.log(name, 0).append(*encode_id(SchemaId(".", schema), Mapped(100 + schema, "")))

    # what must hold

    def _destination(self) -> list[Log]:
        topic = self.target.topics.get(TOPIC)
        return [*(topic.logs if topic is not None else []), *self.routed_logs()]

    def routed_logs(self) -> list[Log]:
        there = [topic for name in ROUTED if (topic := self.target.topics.get(name)) is not None]
        return [log for topic in there for log in topic.logs]

    def letter_logs(self) -> list[Log]:
        topic = self.target.topics.get(self.settings.dead_letters_topic)
        return topic.logs if topic is not None else []

    def _new(self, log: Log) -> list[Entry]:
        at = self._checked.get(log, 0)
        entries, self._checked[log] = log.read(at, 1 << 30, True)
        return entries

    def _decided(self, log: Log) -> list[Entry]:
        """The same where several owners write: of one whose transaction is over also what stands behind
        another's that is not."""
        if self.settings.several_sources == "fail":
            return self._new(log)
        at = self._checked.get(log, 0)
        self._checked[log] = log.high
        waiting = self._undecided.get(log, [])
        waiting += [e for e in log.entries if at <= e.offset < log.high and not e.marker]
        self._undecided[log] = [e for e in waiting if e.txn is not None and e.txn.state == "open"]
        return [e for e in waiting if e.txn is None or e.txn.state == "committed"]

    def _check(self, _: Txn | None = None) -> None:
        """Everything committed since the last time: each record once, in order, unaltered, where it belongs,
        and mapped."""
        if self._half_visible():
            return  # whose markers are written, but not everywhere yet
        for log in self._destination():
            decided = sorted(self._decided(log), key=lambda entry: entry.offset)
            self._see_interleaving(log, decided)
            for entry in decided:
                if entry.value == b"foreign":
                    continue
                self._check_record(log, entry)
        for log in self.letter_logs():
            for entry in self._new(log):
                self._check_letter(log, entry)
        for log in self.target.topics[self.settings.mappings_topic].logs:
            for entry in self._new(log):
                self._check_mapping(entry)

    def _half_visible(self) -> bool:
        hanging = (txn for log in (*self._destination(), *self.letter_logs()) for txn in log.open)
        return bool(self.target.lagging) or any(
            txn.state != "open" for txn in (*self.target.unfinished, *hanging)
        )

    def _check_record(self, log: Log, entry: Entry) -> None:
        key, at = _source(entry)
        have = self.delivered.setdefault(key, [])
        wanted = self.wanted(key)
        if log.partition != key[1]:
            raise Wrong(f"a record of partition {key[1]} is in {log.partition}")
        if at in have:
            raise Wrong(f"{key} offset {at} was delivered twice")
        its = self._in_topic.setdefault((key, log.topic.name), [])
        before = [o for o in its if o in wanted]
        # What a pipeline has left out between is for the mapping to say.
        if at not in wanted or before != [o for o in wanted if o < at and o in before]:
            raise Wrong(f"{key}: after {its} came {at} in {log.topic.name}, the source has {wanted}")
        if not self.said("pipeline") and (len(have) >= len(wanted) or wanted[len(have)] != at):
            raise Wrong(f"{key}: after {have} came {at}, the source has {wanted}")
        content = next(c for o, c in reversed(self.records[key]) if o == at)
        mark, headers = Pipelines.unmarked(entry.headers)
        try:
            wanted_key = self.pipelines.copied(content[0])
        except KeyError as unknown:
            raise Wrong(f"{key} offset {at} came through with schema {unknown}, which is not known") from None
        if (entry.key, entry.value, headers, entry.timestamp) != (wanted_key, *content[1:]):
            raise Wrong(f"{key} offset {at} was altered: {entry}")
        self.marks[(*key, at)] = mark
        its.append(at)
        bisect.insort(have, at)
        self._where[(log.topic.name, log.partition, entry.offset)] = (*key, at)

    def _check_let_go(self, txn: Txn) -> None:
        """Once the deduplicator has let go of a topic, delivered up to an end, nothing is committed behind
        that. What was before may show later, where a marker is late or missing."""
        promotions = self.control().steering.promotions.values() if self.promotes else ()
        for of in [of for of in promotions if of.stands]:
            entries = (entry for log in self._destination() for entry in log.entries if entry.txn is txn)
            for key, at in (_source(e) for e in entries if e.value not in (None, b"foreign")):
                if at >= of.end(key):
                    raise Wrong(f"{key}: {at} came behind {of.end(key)}, of which was let go")

    def promote(self, topic: str, ends: list[int]) -> int:
        """Take a topic from the link, as `verbatim cutover --topic` does; the record's offset."""
        self.promotes = True
        said = {"topic": topic, "topic_id": self.ids[topic], "destination": TOPIC}
        log = self.target.log(self.settings.control_topic, 0)
        log.append(None, encode("promotion", **said, state="promoting", ends=ends))
        return log.end - 1

    def give_back(self) -> None:
        """Whatever was taken is copied again."""
        for topic, of in self.control().steering.promotions.items():
            if of.stands:
                self.visited("a topic was let go of, and given back")
            said = {"topic": topic, "topic_id": of.topic_id, "destination": TOPIC}
            value = encode("promotion", **said, state="copied", answers=of.at)
            self.target.log(self.settings.control_topic, 0).append(None, value)

    def _see_interleaving(self, log: Log, decided: list[Entry]) -> None:
        """Whether a record of another owner stands between two of one transaction."""
        ends: dict[Txn, tuple[int, int]] = {}
        for entry in decided:
            if entry.txn is not None:
                ends[entry.txn] = (ends.get(entry.txn, (entry.offset, 0))[0], entry.offset)
        for txn, (first, last) in ends.items():
            if any(
                first < e.offset < last and e.txn not in (None, txn) and not e.marker for e in log.entries
            ):
                self.visited("records of several sources interleave")

    def _check_letter(self, log: Log, entry: Entry) -> None:
        own = {name: (item or b"").decode() for name, item in (entry.headers or [])[-OWN_HEADERS:]}
        at = (
            own["verbatim.source.topic-id"],
            int(own["verbatim.source.partition"]),
            int(own["verbatim.source.offset"]),
        )
        if at in self.letters:
            raise Wrong(f"{at} became a dead letter twice")
        self.visited("a dead letter was written")
        self.letters[at] = entry
        self._unmapped[(log.topic.name, log.partition, entry.offset)] = at

    def _check_letters(self, m: Mapping, key: Key, rule: Rule, dead: list[int]) -> None:
        """Those that the mapping's pipeline fails on have one each, to which the mapping leads, with what was
        asked for; and no others have any."""
        of = m.dead_letters
        pairs = [] if of is None else [(s + i, d + i) for s, d, n in of.runs for i in range(n)]
        for s, d in pairs:
            if of is None or self._unmapped.pop((of.topic, of.partition, d), None) != (*key, s):
                raise Wrong(f"{key}: the dead letter of {s} is not at {d}: {m}")
        if [s for s, _ in pairs] != dead:
            raise Wrong(f"{key}: mapping {m} has dead letters of {pairs}, its pipeline fails on {dead}")
        for offset in dead:
            entry = self.letters[(*key, offset)]
            content = next(c for o, c in reversed(self.records[key]) if o == offset)
            headers = entry.headers or []
            own = dict(headers[-OWN_HEADERS:])
            said = (own["verbatim.pipeline"], own["verbatim.source.timestamp"], own["verbatim.payload"])
            if said != (b"%d" % m.pipeline, b"%d" % content[3], b"true" if rule.payload else b"false"):
                raise Wrong(f"{key}: the dead letter of {offset} says {own}")
            held = (entry.key, entry.value, headers[:-OWN_HEADERS] or None)
            if held != (content[:3] if rule.payload else (None, None, None)):
                raise Wrong(f"{key}: the dead letter of {offset} holds {held}")

    def _check_mapping(self, entry: Entry) -> None:
        m = decode(entry.value)
        key = (m.topic_id, m.partition)
        before = self.reached.get(key)
        if before is not None and m.start != before:
            raise Wrong(f"{key}: a mapping begins at {m.start}, the last one ended at {before}")
        if m.next < m.start or (m.next == m.start and before is not None):
            raise Wrong(f"{key}: a mapping that goes nowhere: {m}")
        mapped = {topic: self._mapped(m, key, topic, runs) for (topic, _), runs in m.places.items()}
        inside = [
            o
            for o, _ in self.records.get(key, [])
            if m.start <= o < m.next and (*key, o) not in self.given_up
        ]
        inside = self._by_version(m, key, inside)
        if sorted(s for offsets in mapped.values() for s in offsets) != inside:
            raise Wrong(f"{key}: mapping {m} covers records {inside}")
        rule = self.pipelines.rule(self, m.pipeline)
        for topic, offsets in mapped.items():
            if wrong := [s for s in offsets if (rule.goes_to(s) or m.destination_topic) != topic]:
                raise Wrong(f"{key}: {wrong} went to {topic}: {m}")
        if sum(map(bool, mapped.values())) > 1:
            self.visited("a mapping has several topics")
        self.reached[key] = m.next

    def _mapped(self, m: Mapping, key: Key, topic: str, runs: list[list[int]]) -> list[int]:
        """The source offsets that a mapping leads to a topic."""
        pairs = [(s + i, d + i) for s, d, n in runs for i in range(n)]
        if any(a[0] >= b[0] or a[1] >= b[1] for a, b in pairwise(pairs)):
            raise Wrong(f"{key}: a mapping out of order: {m}")
        for s, d in pairs:
            if self._where.pop((topic, m.destination_partition, d), None) != (*key, s):
                raise Wrong(f"{key}: source offset {s} is not at {d} of {topic}: {m}")
        return [s for s, _ in pairs]

    def _by_version(self, m: Mapping, key: Key, inside: list[int]) -> list[int]:
        """Those that the mapping's pipeline leaves in, each of which must say that it came by that one."""
        rule, before = self.pipelines.rule(self, m.pipeline), self._version.get(key, 0)
        if m.pipeline < before:
            raise Wrong(f"{key}: pipeline {m.pipeline} after {before}: {m}")
        if 0 < before < m.pipeline:
            self.visited("another pipeline went on")
        self._version[key] = m.pipeline
        self._check_letters(m, key, rule, [o for o in inside if rule.fails_on(o)])
        kept = [o for o in inside if not rule.leaves_out(o) and not rule.fails_on(o)]
        self.left_out.setdefault(key, set()).update({*inside} - {*kept})
        if wrong := [o for o in kept if self.marks.get((*key, o)) != rule.mark]:
            raise Wrong(f"{key}: {wrong} did not come by the pipeline of {m}")
        return kept

    def _remember_frame(self, entry: Entry) -> None:
        """All that ever reached staging, in order, with the end of the control topic at that time."""
        headers = {k: v or b"" for k, v in entry.headers or []}
        try:
            key = (headers["topic_id"].decode(), int(headers["partition"]))
            frame = (
                self.target.log(self.settings.control_topic, 0).end,
                int(headers["start"]),
                int(headers["next"]),
            )
        except (KeyError, ValueError):
            return  # one that was harmed, repeated
        self.frames.setdefault(key, []).append(frame)

    def _check_position(self, entry: Entry) -> None:
        """A position may be remembered only if staging was given everything below it, since the demand that
        it says it has answered."""
        k, v = orjson.loads(entry.key or b"{}"), orjson.loads(entry.value or b"{}")
        if "topic_id" not in k:
            return
        key, handled = (k["topic_id"], k["partition"]), v["handled"]
        reach = self.origin(key)
        if handled >= 0:
            said = orjson.loads(
                self.target.log(self.settings.control_topic, 0).entries[handled].value or b"{}"
            )
            asked = said["to"] if said["kind"] == "accept-loss" else said.get("next")
            reach = reach if asked is None else asked
        for at, start, end in self.frames.get(key, []):
            if at > handled and start <= reach:
                reach = max(reach, end)
        if v["next"] > reach:
            raise Wrong(f"{key}: position {v} is remembered, what was appended since reaches {reach}")

    def origin(self, key: Key) -> int:
        """Where copying begins: what is below is not wanted. -1 while that is not decided."""
        if key not in self._origins:
            first = next((r for r in self.said("origin") if (r["topic_id"], r["partition"]) == key), None)
            if first is None:
                return -1
            self._origins[key] = first["offset"]
        return self._origins[key]

    def wanted(self, key: Key) -> list[int]:
        """The offsets that are to be delivered: what was given up need not be, but may have been before."""
        origin, have = self.origin(key), self.delivered.get(key, [])
        gone = self.left_out.get(key, set())
        return [
            o
            for o, _ in self.records[key]
            if o >= origin and o not in gone and ((*key, o) not in self.given_up or o in have)
        ]

    def version(self, partition: int) -> int:
        """By which pipeline the topic's partition was delivered last."""
        return self._version.get((self.topic_id, partition), 0)

    def control(self) -> Control:
        state = Control()
        for entry in self.target.topics[self.settings.control_topic].logs[0].entries:
            state.apply(entry.offset, entry.value)
        return state

    def said(self, kind: str) -> list[dict[str, Any]]:
        """The control records of a kind, read without the code that is tested."""
        log = self.target.topics[self.settings.control_topic].logs[0]
        return [
            r for e in log.entries if e.value is not None and (r := orjson.loads(e.value))["kind"] == kind
        ]

    def check(self) -> None:
        """What must hold at any time."""
        self._check()
        if self._where and not self._half_visible():
            raise Wrong(f"records without a mapping: {self._where}")
        if self._unmapped and not self._half_visible():
            raise Wrong(f"dead letters without a mapping: {self._unmapped}")
        halts = self.said("halted")
        # A destination that refuses for a while is set aside for a while.
        passing = {*AT_THE_DESTINATION, HaltReason.DEAD_LETTERS, HaltReason.SCHEMA_UNKNOWN}
        aside = [h for h in halts if h["reason"] in passing]
        if aside:
            self.visited("a destination was set aside")
        if not self.lost and len(aside) < len(halts):
            raise Wrong(f"halted although nothing is lost: {halts}")
        # Frames of a pipeline before the one that was delivered count as missing, and those that were left
        # out while their topic was promoted.
        another = len(self.said("pipeline")) > 1 or self.promotes
        holes = [r for r in self.said("resend") if r.get("held")] if not aside and not another else []
        if not self.lost and not self.harmed and holes:
            raise Wrong(f"frames are missing that nobody took away: {holes}")

    def copied(self) -> bool:
        """Whether all that the source ever held, but for what was given up, is at the destination."""
        return all(
            self.delivered.get(key, []) == self.wanted(key)
            for key in self.records
            if key[0] in self.ids.values()  # one that is gone takes with it what was not read yet
        )

    # running

    def run(self, steps: int) -> None:
        last = self.scheduler.steps + steps
        self.scheduler.run(lambda: self.scheduler.steps >= last, 1e9)

    def run_until(self, what: Callable[[], bool], seconds: float = 600.0) -> None:
        if not self.scheduler.run(what, seconds):
            raise Wrong(
                f"waited {seconds} s in vain; delivered {self.delivered} of {self._ends()}; {self.control().halts}"
            )

    def run_for(self, seconds: float) -> None:
        end = self.scheduler.now + seconds
        self.scheduler.run(lambda: self.scheduler.now >= end, seconds + 1)

    def _ends(self) -> dict[Key, int]:
        return {key: records[-1][0] if records else -1 for key, records in self.records.items()}

    def settle(self, seconds: float = 3000.0) -> None:
        """Faults end: then all must arrive."""
        if self.promotes:
            self.give_back()
        if isinstance(self.chooser, Seeded):
            self.chooser.odds = 0.0
        self.held_up = set()
        self.supervised = self.scheduler.somebody_ended = True
        self.lazy = False
        for process in self.zombies:
            self.kill(process)
        self.all_late_arrives()
        for instance in self.instances:
            instance.process.paused = False
            instance.process.cut_off_until = 0.0
        for query in self.queries:
            for attempt in query.attempts.values():
                attempt.process.paused = False
                attempt.process.cut_off_until = 0.0
        # What the last frame held, if it is lost, is missed only when another one comes.
        for topic in self.topics:
            for p in range(len(self.source.topics[topic].logs)):
                self.produce(p, 1, topic=topic)
        self.run_until(self.copied, seconds)
        self.check()
        if self.said("resumed"):
            self.visited("a hole was repaired")
