"""What `verbatim plan` found, what it would cost, and how that is shown. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from verbatim.plan.pipelines import PipelinePlan, TopicFlow

if TYPE_CHECKING:
    from schemas.probing import Probe

DAY_S = 24 * 3600

Action = Literal["make", "grow", "there", "refused", "promoted"]
_GROWN: dict[Action, str] = {
    "make": " (to be made)",
    "grow": " (partitions to be added)",
    "there": "",
    "refused": " (refused)",
    "promoted": " (promoted: not copied any more)",
}


@dataclass
class RoutePlan:
    """A topic that a stage takes records of a source topic to."""

    destination: str
    action: Action
    refused: str | None = None

    def text(self) -> str:
        return f"{self.destination}{_GROWN[self.action]}"


@dataclass
class TopicPlan:
    """A source topic and where it goes. `records`: offsets that it holds; `to_copy`: of those, not staged yet
    (both at most: offsets without records count); `record_bytes`: mean of a few, not compressed; `rate`:
    offsets a second; `copies`: replicas at the target."""

    topic: str
    topic_id: str
    partitions: int
    destination: str
    action: Action
    records: int = 0
    to_copy: int = 0
    record_bytes: float | None = None
    rate: float | None = None
    copies: int | None = None
    refused: str | None = None
    meets: list[str] = field(default_factory=list)
    """Other source topics that go, or went, to the same destination."""
    pipeline: TopicFlow | None = None
    routes: list[RoutePlan] = field(default_factory=list)


@dataclass
class Change:
    """Something that the link would make or change, on the target unless `at` says else. In `config`, None
    stands for the cluster's default."""

    what: Literal["topic", "partitions", "config"]
    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    config: dict[str, str | None] = field(default_factory=dict)
    by: str = ""
    at: Literal["source", "target"] = "target"

    def text(self) -> str:
        config = ", ".join(f"{k}={'(default)' if v is None else v}" for k, v in sorted(self.config.items()))
        by = f" (by `{self.by}`)" if self.by else " AT THE SOURCE" if self.at == "source" else ""
        if self.what == "topic":
            factor = "the cluster's default" if self.replication_factor is None else self.replication_factor
            return f"make topic {self.name}{by}: {self.partitions} partitions, replication factor {factor}, {config}"
        if self.what == "partitions":
            return f"add partitions to topic {self.name}{by}: {self.partitions} in all"
        return f"set on topic {self.name}{by}: {config}"


@dataclass
class Cost:
    """In bytes, not compressed; None where the size of records is not known. `copy_bytes`: what is to be
    copied now; `disk_bytes`: what that takes at the destinations, with all replicas; `disk_bytes_a_day` and
    `traffic_bytes_a_second` at the present rate."""

    records: int
    copy_bytes: float | None
    disk_bytes: float | None
    disk_bytes_a_day: float | None
    from_source_bytes_a_second: float | None
    target_bytes_a_second: float | None
    unknown: list[str]


@dataclass
class SchemasPlan:
    """Subjects that would be kept in step; of their versions and compatibility levels those in step, those
    `due` to be written, and those that can't be."""

    subjects: int
    in_step: int
    due: int
    failed: int
    probe: Probe | None = None
    """What the target's registry did when it was asked to; None: it was not."""

    def text(self) -> str:
        text = f"schemas: {self.subjects} subjects; versions and compatibility levels: {self.in_step} in step, {self.due} to be written, {self.failed} refused"
        if self.probe is None:
            return text
        kept = {
            None: "no id was asked for",
            True: "ids are kept",
            False: "ids are not kept, so they are mapped",
        }
        return f"{text}\nschemas: the target's registry registers, reads back, deletes; {kept[self.probe.keeps_ids]} (tried with subject {self.probe.subject}, which is removed again)"


@dataclass
class PlanReport:
    """`failures`: what would make the link refuse, or a partition halt; `warnings`: what may; `notes`: what
    could not be told."""

    link: str
    source_cluster: str | None = None
    target_cluster: str | None = None
    new: bool = True
    pipeline: PipelinePlan | None = None
    schemas: SchemasPlan | None = None
    topics: list[TopicPlan] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failures


def cost(topics: list[TopicPlan]) -> Cost:
    """What copying costs, of those topics that would be copied.

    Each record crosses the network four times: from the source, to staging, from staging, to the destination;
    the last three at the target. At the target it is written twice, with all replicas; staging is trimmed
    each minute in which 4 GiB came together, and every ten minutes.
    """
    copied = [t for t in topics if t.refused is None]
    unknown = sorted(t.topic for t in copied if t.record_bytes is None and t.records)
    known = [t for t in copied if t.record_bytes is not None]
    records = sum(t.to_copy for t in copied)
    if copied and not known and unknown:
        return Cost(records, None, None, None, None, None, unknown)
    copy = sum(t.to_copy * (t.record_bytes or 0) for t in known)
    disk = sum(t.to_copy * (t.record_bytes or 0) * (t.copies or 1) for t in known)
    flow = sum((t.rate or 0) * (t.record_bytes or 0) for t in known)
    kept = sum((t.rate or 0) * (t.record_bytes or 0) * (t.copies or 1) for t in known)
    return Cost(records, copy, disk, kept * DAY_S, flow, 3 * flow, unknown)


def size(count: float | None) -> str:
    """Bytes as people read them."""
    if count is None:
        return "unknown"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def as_json(report: PlanReport) -> dict[str, Any]:
    return {"ok": report.ok, **asdict(report), "cost": asdict(cost(report.topics))}


def as_text(report: PlanReport) -> list[str]:
    made = "new" if report.new else "there already"
    lines = [
        f"link {report.link} ({made}): source cluster {report.source_cluster or '?'} -> target cluster {report.target_cluster or '?'}"
    ]
    lines += [f"would {change.text()}" for change in report.changes]
    lines += [found.text() for found in (report.pipeline, report.schemas) if found]
    lines += [_topic(t) for t in report.topics]
    if report.topics:
        lines += _cost(cost(report.topics))
    lines += [f"note: {text}" for text in report.notes]
    lines += [f"warning: {text}" for text in report.warnings]
    lines += [f"FAILS: {text}" for text in report.failures]
    failed = len(report.failures)
    lines.append(
        f"FAILED: {failed} thing{'s' if failed > 1 else ''} to mend first; nothing was changed"
        if failed
        else f"ok: {len(report.topics)} topics, {sum(t.partitions for t in report.topics)} partitions; nothing was changed"
    )
    return lines


def _topic(t: TopicPlan) -> str:
    grown = _GROWN[t.action]
    rate = "unknown" if t.rate is None else f"{t.rate:,.1f}"
    each = "size unknown" if t.record_bytes is None else f"about {size(t.record_bytes)} each"
    meets = f" where it meets {', '.join(t.meets)}" if t.meets else ""
    return (
        f"topic {t.topic} -> {t.destination or '?'}{grown}{meets}: {t.partitions} partitions, {t.records:,} records ({each}), {t.to_copy:,} to copy, "
        f"{rate} records/s"
        + (f"; {t.pipeline.text()}" if t.pipeline else "")
        + (f"; routed to {', '.join(route.text() for route in t.routes)}" if t.routes else "")
    )


def _cost(c: Cost) -> list[str]:
    lines = [
        f"to copy now: {c.records:,} records, {size(c.copy_bytes)}; at the destinations {size(c.disk_bytes)} with replicas",
        f"at this rate: {size(c.from_source_bytes_a_second)}/s from the source, {size(c.target_bytes_a_second)}/s to and from the target",
        f"and {size(c.disk_bytes_a_day)} a day at the destinations, until their retention",
    ]
    if c.unknown:
        lines.append(f"not in these figures, for want of a size: {', '.join(c.unknown)}")
    return lines
