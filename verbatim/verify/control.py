"""What `verbatim verify` takes from the control topic: where copying began, which partitions stand still, and
which pipelines there were. Pure, and takes nothing from the applications that it checks.

Links may share the topic, and others may write to it: what names another link, or none that can be read, is
left out.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from common.errors import VerbatimError
from common.partitions import PartitionId
from verbatim.verify.comparison import Kind, PartitionReport


def plain_id(topic_id: str) -> str:
    """A topic id in one spelling: librdkafka writes base64 with + and /, Kafka's tools the url-safe - and
    _."""
    return topic_id.rstrip("=").replace("+", "-").replace("/", "_")


class Promoted(NamedTuple):
    """A topic that others write at the destination: of each partition the end of the copies there."""

    topic_id: str
    ends: list[int]


class Halt(NamedTuple):
    """Why a partition stands still, and its position at the source where that is known."""

    why: str
    position: int | None


@dataclass
class Said:
    """`origins`: where copying began, by topic, topic id and partition; `topic_ids`: all that a topic has
    had; `accepted`: destinations that were let in though they were somebody else's; `pipelines`: definitions
    by number, oldest first."""

    link: str
    position: int = 0
    """Up to where the topic was read."""
    origins: dict[tuple[str, str, int], int] = field(default_factory=dict)
    topic_ids: dict[str, set[str]] = field(default_factory=dict)
    accepted: set[str] = field(default_factory=set)
    pipelines: dict[int, str] = field(default_factory=dict)
    _promoted: dict[str, Promoted] = field(default_factory=dict)
    """By topic."""
    _taken: dict[str, int] = field(default_factory=dict)
    """Topic -> offset of the record by which it was taken from the link last."""
    _halts: dict[PartitionId, dict[str, Halt]] = field(default_factory=dict)
    """Topic id and partition -> application -> halt."""
    let_in: set[tuple[str, str]] = field(default_factory=set)
    """Topic ids, and topics that stages of a pipeline take their records to, which the link may write to, or
    might."""
    _refused: dict[tuple[str, str | None], str] = field(default_factory=dict)
    """By topic id why nothing may be written to its destination (None), or where a stage takes records."""

    def add(self, offset: int, value: bytes | None) -> None:
        """Take in a record. Raises VerbatimError for one of this link that is damaged: what it says can't be
        guessed."""
        try:
            record = orjson.loads(value or b"")
        except orjson.JSONDecodeError:
            return
        if not isinstance(record, dict) or record.get("link", self.link) != self.link:
            return
        try:
            self._take(offset, record)
        except (KeyError, TypeError, AttributeError) as error:
            raise VerbatimError(
                f"control record at offset {offset}: a damaged {record.get('kind')!r} ({error!r})"
            ) from None

    @property
    def pipeline(self) -> int:
        """The number of the newest pipeline, 0 where there was never one."""
        return next(reversed(self.pipelines), 0)

    def copies_end(self, topic: str, topic_id: str, partition: int) -> int | None:
        """Where the copies of a partition end at the destination, if others write behind them."""
        of = self._promoted.get(topic)
        if of is None or of.topic_id != topic_id or partition >= len(of.ends):
            return None
        return of.ends[partition]

    def halts(self, topic_id: str, partition: int, target: str | None = None) -> list[Halt]:
        """Why a partition stands still, as far as that concerns one of the topics that its records go to."""
        out = list(self._halts.get((topic_id, partition), {}).values())
        refused = (self._refused.get((topic_id, at)) for at in dict.fromkeys((None, target)))
        return out + [Halt(f"destination-refused: {why}", None) for why in refused if why is not None]

    def _take(self, offset: int, record: dict[str, Any]) -> None:
        kind = record.get("kind")
        if kind == "origin":
            place = record["topic"], plain_id(record["topic_id"]), record["partition"]
            # The first counts.
            self.origins.setdefault(place, record["offset"])
            self.topic_ids.setdefault(record["topic"], set()).add(place[1])
        elif kind == "halted":
            detail = f": {record['detail']}" if record.get("detail") else ""
            halt = Halt(f"{record['reason']}{detail}", record.get("next"))
            of = self._halts.setdefault((plain_id(record["topic_id"]), record["partition"]), {})
            of[record["application"]] = halt
        elif kind == "resumed":
            at = plain_id(record["topic_id"]), record["partition"]
            self._halts.get(at, {}).pop(record["application"], None)
        elif kind == "pipeline" and record["n"] > self.pipeline:
            # The first of a number counts.
            if hashlib.sha256(record["definition"].encode()).hexdigest() != record["sha256"]:
                raise TypeError("its definition has another sha256")
            self.pipelines[record["n"]] = record["definition"]
        elif kind == "promotion":
            self._promotion(offset, record)
        elif kind == "accept-destination":
            self.accepted.update(record["destinations"])
        elif kind in ("destination", "route"):
            self._verdict(record, record["destination"] if kind == "route" else None)

    def _verdict(self, record: dict[str, Any], route: str | None) -> None:
        topic_id, refused = plain_id(record["topic_id"]), record.get("refused")
        self._refused.pop((topic_id, route), None)
        if refused is not None:
            self._refused[topic_id, route] = refused
        elif route is not None:
            self.let_in.add((topic_id, route))

    def _promotion(self, offset: int, record: dict[str, Any]) -> None:
        topic, state = record["topic"], record["state"]
        if state == "promoting" and topic not in self._promoted:
            self._taken[topic] = offset
        elif record.get("answers") != self._taken.get(topic):
            return  # of a run that another one has overtaken
        elif state == "promoted":
            self._promoted[topic] = Promoted(plain_id(record["topic_id"]), list(record["copied"]))
        elif state == "copied":
            self._promoted.pop(topic, None)


def report_halts(halts: list[Halt], report: PartitionReport) -> None:
    """Each is a finding: of a partition that stands still more will be missing, whatever is there now."""
    for halt in halts:
        report.add(Kind.HALTED, halt.position, None, halt.why)
