"""Looks at a cluster and changes nothing: topics, sizes, rates, formats, groups, access rules, quotas. What
may not be read is named, and leaves its own field empty.

Rights, groups' kinds and, where a target is given, all else that stands in a link's way are judged by what
the applications and `verbatim plan` go by.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, TopicDescription

from common.config import client_properties
from common.config.loading import NOWHERE
from common.errors import VerbatimError
from common.kafka.client import acls, clients, cluster_check, topics
from common.kafka.errors import retrying
from common.kafka.wire.record_batch import CODECS, BatchHeader
from common.link.permissions import SOURCE, needed_on
from common.partitions import PartitionName
from common.ports import Deadline
from offsets.group_protocol import MOVABLE
from offsets.groups import Groups, shown
from verbatim.plan.granted_rights import lacking
from verbatim.plan.plan import make_plan
from verbatim.plan.sampling import unread
from verbatim.scan.calls import Calls
from verbatim.scan.moving import Given, moving

if TYPE_CHECKING:
    from common.config.settings import Settings

REACH_S, CALL_S = 15.0, 30.0
FORM = 1
"""Of the report as JSON: a newer one has names that an older reader would miss."""
CONFIGS = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "max.message.bytes",
    "message.timestamp.type",
    "message.format.version",
    "min.insync.replicas",
)
_CODEC = {number: name for name, number in CODECS.items()}

Line = dict[str, Any]


def scan(settings: Settings, seconds: float, most_batches: int, given: Given) -> Line:
    """All that was found of the source. `seconds` lie between the two looks that tell rates; batches of so
    many partitions are looked at. Raises SettingsError, LinkRefused, KafkaTimeout where the cluster can't be
    reached at all."""
    cluster = cluster_check.cluster_id(settings, "source", Deadline(REACH_S))
    found = _Scan(settings, seconds, most_batches)
    with found:
        report = found.run()
    in_the_way = found.in_the_way
    if settings.destination_bootstrap_servers != NOWHERE:
        plan = make_plan(settings, 0.0)
        in_the_way += [*plan.failures, *plan.warnings]
    sums = moving(report["topics"], given)
    return {
        "form": FORM,
        "cluster": cluster,
        "asked": asked(settings),
        "seconds": seconds,
        **report,
        "in_the_way": in_the_way,
        "moving": sums,
    }


def asked(settings: Settings) -> Line:
    """How the source was reached and which topics were wanted; of properties that hold a secret, or a path of
    this machine, the names alone."""
    config = settings.client_config("source", "admin")
    servers = config.pop("bootstrap.servers")
    return {
        "bootstrap_servers": servers,
        "topic": settings.source_topic,
        "topic_exclude": settings.source_topic_exclude,
        "properties": {name: _telling(name, str(value)) for name, value in sorted(config.items())},
    }


def _telling(name: str, value: str) -> str | None:
    hidden = client_properties.is_secret(name) or client_properties.LOGIN.search(value)
    return None if hidden or name.endswith((".location", ".file")) else value


class _Scan(ExitStack):
    def __init__(self, settings: Settings, seconds: float, most_batches: int) -> None:
        super().__init__()
        self._settings, self._seconds, self._most_batches = settings, seconds, most_batches
        config = settings.client_config("source", "admin")
        self._admin: AdminClient = clients.admin(config)
        self._calls = self.enter_context(closing(Calls(config)))
        # What is read goes by the way in of consumers, which may be another one.
        self._reads = self.enter_context(closing(Calls(settings.client_config("source", "consumer"))))
        self._groups_of = self.enter_context(closing(Groups(config, "source")))
        self._leaderless: set[PartitionName] = set()
        self.unread: list[dict[str, str]] = []
        self.in_the_way: list[str] = []

    def run(self) -> Line:
        names = topics.names(self._admin, "source", Deadline(CALL_S))
        wanted = [name for name in names if self._settings.selects(name)]
        described: dict[str, TopicDescription] = {}
        with self._part("topics"):
            hidden: set[str] = set()
            described = topics.descriptions(self._admin, wanted, Deadline(CALL_S), rights=True, hidden=hidden)
            self._tell({f"topic {name}": "it may not be described; grant DESCRIBE" for name in hidden})
        lines = {name: self._topic(name, one) for name, one in sorted(described.items())}
        self._configs(lines)
        bounds = self._offsets(lines)
        self._sizes(lines)
        self._batches(lines, bounds)
        for line in lines.values():
            _derive(line)
        return {
            "brokers": self._brokers(),
            "topics": list(lines.values()),
            "groups": self._groups({at: end for at, (_, end) in bounds.items()}),
            "topic_acls": self._acls(),
            "quotas": self._quotas(),
            "unread": self.unread,
        }

    @contextmanager
    def _part(self, what: str) -> Iterator[None]:
        try:
            yield
        except (VerbatimError, KafkaException) as error:
            self._tell({what: unread(error)})

    def _tell(self, reasons: dict[str, str]) -> None:
        self.unread += [{"what": what, "why": why} for what, why in sorted(reasons.items())]

    def _topic(self, name: str, found: TopicDescription) -> Line:
        leaderless = [p.id for p in found.partitions if p.leader is None or p.leader.id < 0]
        self._leaderless |= {(name, p) for p in leaderless}
        self.in_the_way += [f"{name}-{p} has no leader; it is copied once it has one" for p in leaderless]
        operations = found.authorized_operations
        granted = None if operations is None else frozenset(one.name for one in operations)
        missing = lacking(needed_on(SOURCE, "<topics>"), granted)
        if missing:
            self.in_the_way.append(f"topic {name}: {', '.join(missing)} not allowed; grant it")
        empty = ("bytes", "bytes_from", "replica_bytes", "records", "records_per_second", "bytes_per_second")
        return {
            "topic": name,
            "partitions": len(found.partitions),
            "replication_factor": min((len(p.replicas) for p in found.partitions), default=0),
            **dict.fromkeys(empty),
            "codecs": {},
            "formats": {},
            "batches_seen": 0,
            "batch_bytes": None,
            "batch_records": None,
            "transactional": None,
            "config": {},
            "lacking": missing,
        }

    def _configs(self, lines: dict[str, Line]) -> None:
        with self._part("configurations of topics"):
            hidden: set[str] = set()
            found = topics.topic_settings(self._admin, list(lines), Deadline(CALL_S), hidden)
            for name in lines.keys() & found.keys():
                lines[name]["config"] = {k: found[name][k].value for k in CONFIGS if k in found[name]}
            reason = "it may not be read; grant DESCRIBE_CONFIGS"
            self._tell({f"configuration of topic {name}": reason for name in hidden})

    def _offsets(self, lines: dict[str, Line]) -> dict[PartitionName, tuple[int, int]]:
        """Log start and end of each partition; and how many records, and how fast they come."""
        all_of = {(name, p) for name, line in lines.items() for p in range(line["partitions"])}
        first: dict[PartitionName, tuple[int, int]] = {}
        with self._part("offsets"):
            failed: dict[PartitionName, str] = {}
            first = topics.bounds(
                self._admin, sorted(all_of - self._leaderless), Deadline(CALL_S), failed=failed
            )
            began = time.monotonic()
            time.sleep(self._seconds)
            last = topics.ends(self._admin, first, Deadline(CALL_S), failed=failed)
            passed = max(0.001, time.monotonic() - began)
            for name, line in lines.items():
                own = [(name, p) for p in range(line["partitions"]) if (name, p) in last]
                if len(own) == line["partitions"]:
                    line["records"] = sum(last[one] - first[one][0] for one in own)
                    grown = sum(max(0, last[one] - first[one][1]) for one in own)
                    line["records_per_second"] = grown / passed
            self._tell({f"offsets of {name}-{p}": why for (name, p), why in failed.items()})
        return first

    def _sizes(self, lines: dict[str, Line]) -> None:
        with self._part("sizes of logs"):
            sizes, failed = self._calls.log_sizes(Deadline(CALL_S))
            self._tell({f"sizes of logs of broker {at}": why for at, why in failed.items()})
            for name, line in lines.items():
                own = [sizes.get((name, p), []) for p in range(line["partitions"])]
                if all(own):
                    # Replicas differ by what has just come, and by when each deletes its segments.
                    line["bytes"], line["bytes_from"] = sum(map(max, own)), "log-dirs"
                    line["replica_bytes"] = None if failed else sum(map(sum, own))

    def _batches(self, lines: dict[str, Line], bounds: dict[PartitionName, tuple[int, int]]) -> None:
        with self._part("newest batches"):
            # The first partitions of all topics before the second ones.
            filled = sorted((p, name) for (name, p), (low, end) in bounds.items() if low < end)
            left_out = len(filled) - self._most_batches
            if left_out > 0:
                self._tell({"newest batches": f"{left_out} partitions were not looked at (--batches)"})
            asked = {(name, p): bounds[name, p] for p, name in filled[: self._most_batches]}
            found, failed = self._reads.newest_batches(asked, Deadline(CALL_S))
            self._tell({f"newest batch of {name}-{p}": why for (name, p), why in failed.items()})
            of: dict[str, list[BatchHeader]] = {}
            for (name, _), header in found.items():
                of.setdefault(name, []).append(header)
            for name, headers in of.items():
                line, count = lines[name], len(headers)
                line["codecs"] = dict(Counter(_CODEC.get(one.codec, str(one.codec)) for one in headers))
                line["formats"] = dict(Counter(str(one.magic) for one in headers))
                line["batches_seen"], line["batch_bytes"] = count, sum(one.size for one in headers) / count
                line["batch_records"] = sum(max(1, one.count) for one in headers) / count
                line["transactional"] = any(one.transactional for one in headers)

    def _brokers(self) -> list[Line] | None:
        with self._part("brokers"):
            found = retrying(
                "listing brokers", lambda t: self._admin.list_topics(timeout=t), Deadline(CALL_S)
            )
            by_id = sorted(found.brokers.items())
            return [{"id": number, "address": f"{one.host}:{one.port}"} for number, one in by_id]
        return None

    def _groups(self, ends: dict[PartitionName, int]) -> list[Line] | None:
        lines: list[Line] | None = None
        with self._part("groups"):
            listed = self._groups_of.listed(Deadline(CALL_S))
            lines = [
                {"group": name, "type": one.kind, "active": one.active, "lag": None}
                for name, one in sorted(listed.items())
            ]
            for name, one in sorted(listed.items()):
                if one.kind not in MOVABLE:
                    self.in_the_way.append(
                        f"group {shown(name)} is of type {one.kind}: its offsets are not moved"
                    )
            failed: dict[str, str] = {}
            asked = [name for name, one in listed.items() if one.kind in MOVABLE]
            stand = self._groups_of.committed(asked, Deadline(CALL_S), failed)
            self._tell({f"offsets of group {shown(name)}": why for name, why in failed.items()})
            for line in lines:
                own = {at: of.offset for at, of in stand.get(line["group"], {}).items() if at in ends}
                if own:
                    line["lag"] = sum(max(0, ends[at] - offset) for at, offset in own.items())
        return lines

    def _acls(self) -> int | None:
        with self._part("access rules"):
            return len(acls.topic_acls(self._admin, "source", Deadline(CALL_S)))
        return None

    def _quotas(self) -> list[Line] | None:
        with self._part("quotas"):
            return [quota._asdict() for quota in self._calls.quotas(Deadline(CALL_S))]
        return None


def _derive(line: Line) -> None:
    """A topic's size by its newest batches, where brokers do not tell it; and how many bytes come."""
    each = None if not line["batch_records"] else line["batch_bytes"] / line["batch_records"]
    if line["bytes"] is None and line["records"] is not None and (each is not None or not line["records"]):
        line["bytes"], line["bytes_from"] = int(line["records"] * (each or 0)), "newest-batches"
    if line["records_per_second"] is not None:
        of_log = line["bytes"] / line["records"] if line["bytes"] and line["records"] else 0.0
        line["bytes_per_second"] = line["records_per_second"] * (of_log if each is None else each)
