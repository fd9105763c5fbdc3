"""Where MirrorMaker 2 has stopped: read from its offsets topic at the target, and proved by what lies on both
sides. What is certain and what is not is judged in replicator/driver/mirror_maker_positions.py.

Writes nothing. The record at the position is compared with the last one at the destination: it need not be
known whether MirrorMaker 2 ran with exactly-once, nor how it ended. Where it has copied more than it has
written down, its last copy is of another record.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME
from confluent_kafka.admin import AdminClient

from common import ports
from common.config.fields import Cluster
from common.config.start_offsets import MirrorMaker, StartOffsets
from common.errors import LinkRefused
from common.kafka.client import clients, topics
from common.kafka.client.clients import Received
from common.kafka.client.range_reader import of_partitions
from common.kafka.errors import retrying
from common.partitions import PartitionName
from common.ports import Deadline
from replicator.driver.mirror_maker_positions import (
    Content,
    Evidence,
    Flow,
    Positions,
    chosen,
    doubt,
    refusal,
    running,
    take,
)

if TYPE_CHECKING:
    from common.config.settings import Settings

WATCH_S = 3.0
"""How long it is watched at least whether positions still move. A MirrorMaker 2 with exactly-once that runs
copies a heartbeat a second, unless that is switched off."""
CLOSING_S = 10.0
"""How long transactions in the offsets topic are waited for."""
SPANS = (20, 1000)
"""Offsets looked at, at the end of a destination: the second time where the first found markers alone."""
AT_ONCE = 500
"""Partitions that a consumer is assigned at a time."""


class Predecessor:
    """The MirrorMaker 2 that a link goes on from. `source_name` is what names of destinations have for the
    source."""

    def __init__(
        self, settings: Settings, source: AdminClient, target: AdminClient, source_name: str
    ) -> None:
        self.settings = settings
        self.source = source
        self.target = target
        self.source_name = source_name

    def origins(
        self, starts: StartOffsets, wanted: Collection[PartitionName], deadline: Deadline
    ) -> tuple[dict[PartitionName, int], list[str]]:
        """Where it would have gone on, of those of the partitions that are to begin so and that it has
        copied; and the destinations that were found to be its copies.

        Raises LinkRefused where anything about it is in doubt.
        """
        origins: dict[PartitionName, int] = {}
        destinations: set[str] = set()
        asked: dict[MirrorMaker, set[PartitionName]] = {}
        for at in wanted:
            start = starts.of(at[0])
            if at not in starts.exact and isinstance(start, MirrorMaker):
                asked.setdefault(start, set()).add(at)
        for start, partitions in asked.items():
            began = ports.monotonic()
            positions, seen = self._positions(start.topic, deadline)
            flows = chosen(positions, start, partitions)
            self._refuse_running(start.topic, flows, deadline)
            known = {at: offset for of in flows.values() for at, offset in of.items()}
            names = {topic: self.settings.destination_topic(topic, self.source_name) for topic, _ in known}
            # Of a topic that it has never copied nothing is known; its destination is judged as any other.
            self._prove({at: known.get(at) for at in sorted(partitions) if at[0] in names}, names, deadline)
            ports.sleep(max(0.0, WATCH_S - (ports.monotonic() - began)))
            self._refuse_moved(start.topic, flows, seen, deadline)
            origins |= {at: offset + 1 for at, offset in known.items()}
            destinations |= set(names.values())
        return origins, sorted(destinations)

    def _positions(self, topic: str, deadline: Deadline) -> tuple[Positions, dict[PartitionName, int]]:
        """All that an offsets topic says now, and up to where it was read."""
        found = topics.describe(self.target, [topic], deadline).get(topic)
        if found is None:
            raise LinkRefused(
                f"START_OFFSETS: the target has no topic {topic}: where are MirrorMaker 2's offsets?"
            )
        partitions = [(topic, p) for p in range(found.partitions)]
        bounds = topics.bounds(self.target, partitions, deadline)
        closing = Deadline(deadline.left(CLOSING_S))
        while any(
            end < bounds[at][1]
            for at, end in topics.ends(self.target, partitions, deadline, committed=True).items()
        ):
            if closing.passed():
                raise LinkRefused(
                    f"START_OFFSETS: a transaction is open in {topic}: MirrorMaker 2 runs, or has just died; once it is stopped, it ends within a "
                    "minute"
                )
            ports.sleep(0.5)
        positions: Positions = {}
        for message in self._read("destination", bounds):
            take(positions, message.key(), message.value())
        return positions, {at: end for at, (_, end) in bounds.items()}

    def _refuse_running(self, topic: str, flows: Collection[Flow], deadline: Deadline) -> None:
        with warnings.catch_warnings():
            # The calls that stand for it leave out Connect's groups.
            warnings.simplefilter("ignore", DeprecationWarning)
            groups = retrying("listing groups", lambda t: self.target.list_groups(timeout=t), deadline)
        members = [
            (g.id or "", bytes(m.assignment or b""))
            for g in groups
            if g.protocol_type == "connect"
            for m in g.members
        ]
        if (found := running(flows, topic, members)) is not None:
            raise LinkRefused(
                f"START_OFFSETS: MirrorMaker 2 still runs: group {found[1]} of the target has tasks of {found[0].connector}; stop it"
            )

    def _refuse_moved(
        self, topic: str, flows: Collection[Flow], seen: Mapping[PartitionName, int], deadline: Deadline
    ) -> None:
        ends = topics.ends(self.target, seen, deadline, committed=True)
        new = {at: (begin, ends[at]) for at, begin in seen.items()}
        for message in self._read("destination", new):
            if take({}, message.key(), message.value()) in flows:
                raise LinkRefused(
                    f"START_OFFSETS: MirrorMaker 2 still runs: its positions in {topic} move; stop it"
                )

    def _prove(
        self, positions: Mapping[PartitionName, int | None], names: Mapping[str, str], deadline: Deadline
    ) -> None:
        """Raise LinkRefused unless each destination ends with the record that MirrorMaker 2 says to have
        copied last."""
        there = topics.describe(self.target, sorted(set(names.values())), deadline)
        copies = {at: (names[at[0]], at[1]) for at in positions}
        missing = {
            at: f"the target has no {topic}-{p}: is it called so there?"
            for at, (topic, p) in copies.items()
            if positions[at] is not None and (topic not in there or p >= there[topic].partitions)
        }
        if missing:
            raise refusal(missing)
        copies = {at: to for at, to in copies.items() if to[0] in there and to[1] < there[to[0]].partitions}
        source = self._bounds(self.source, copies.keys(), deadline)
        target = self._bounds(self.target, copies.values(), deadline)
        behind = {
            at: (offset, offset + 1)
            for at in copies
            if (offset := positions[at]) is not None and source[at][0] <= offset < source[at][2]
        }
        # It may read what is not committed, too.
        records = {
            (m.topic(), m.partition()): _content(m, copy=False)
            for m in self._read("source", behind, "read_uncommitted")
        }
        last = self._last({to: (low, stable) for to, (low, stable, _) in target.items()})
        doubts = {}
        for at, to in copies.items():
            found = Evidence(positions[at], source[at], target[to], records.get(at), last.get(to))
            if (why := doubt(found, f"{to[0]}-{to[1]}")) is not None:
                doubts[at] = why
        if doubts:
            raise refusal(doubts)

    def _last(
        self, bounds: Mapping[PartitionName, tuple[int, int]]
    ) -> dict[PartitionName, tuple[int, Content]]:
        """The last committed record of each partition, with its offset, where one is near the end."""
        found: dict[PartitionName, tuple[int, Content]] = {}
        for span in SPANS:
            left = {at: (max(low, end - span), end) for at, (low, end) in bounds.items() if at not in found}
            for message in self._read("destination", left):
                found[message.topic(), message.partition()] = (message.offset(), _content(message, copy=True))
        return found

    @staticmethod
    def _bounds(
        client: AdminClient, partitions: Collection[PartitionName], deadline: Deadline
    ) -> dict[PartitionName, tuple[int, int, int]]:
        """Log start, last stable offset and end. The stable offset last: what is committed meanwhile is no
        open transaction."""
        found = topics.bounds(client, partitions, deadline)
        stable = topics.ends(client, partitions, deadline, committed=True)
        return {at: (low, min(stable[at], end), end) for at, (low, end) in found.items()}

    def _read(
        self,
        side: Cluster,
        ranges: Mapping[PartitionName, tuple[int, int]],
        isolation: str = "read_committed",
    ) -> Iterator[Received]:
        config = self.settings.client_config(side, "consumer")
        left = iter(ranges.items())
        own = {"isolation_level": isolation, "enable_partition_eof": True, "fetch_wait_max_ms": 20}
        with closing(clients.consumer(config, fetch_message_max_bytes=65536, **own)) as reader:
            while some := dict(islice(left, AT_ONCE)):
                yield from of_partitions(reader, some)


def _content(message: Received, copy: bool) -> Content:
    kind, time = message.timestamp()
    stamped = copy and kind == TIMESTAMP_LOG_APPEND_TIME
    return Content(message.key(), message.value(), message.headers() or [], None if stamped else time)
