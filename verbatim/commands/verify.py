"""The command `verbatim verify`: options, progress and how a report is shown. What is compared is
verify_link's part."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from common.app.cli import Duration, echo_json, settings_options
from common.config.fields import CLUSTERS
from common.config.settings import Settings
from common.errors import SettingsError
from common.kafka.client import cluster_check
from common.ports import Deadline
from verbatim.pipeline.keys import keys_of
from verbatim.verify.comparison import Kind, PartitionReport
from verbatim.verify.link import LinkReport, OnProgress, Options, verify_link

_LINE_EVERY_S = 10.0


@click.command("verify")
@settings_options
@click.option("--topic", "topics", multiple=True, help="Only this source topic (may be repeated).")
@click.option(
    "--allow-behind",
    is_flag=True,
    help="Source records at the end that are not at the destination yet are no finding: a link that runs is always a little behind.",
)
@click.option("--complete", is_flag=True, hidden=True, help="Everything must have arrived: so it is anyway.")
@click.option(
    "--sample",
    type=click.FloatRange(0, 1, min_open=True),
    help="Compare only this fraction, in whole windows of offsets chosen by --seed. Faults outside of them stay unseen.",
)
@click.option("--seed", default=0, show_default=True, help="Chooses the windows of --sample.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(),
    default="60s",
    show_default=True,
    help="How long to wait for an answer of a cluster.",
)
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def verify(
    context: click.Context,
    settings: Settings,
    topics: tuple[str, ...],
    allow_behind: bool,
    complete: bool,
    sample: float | None,
    seed: int,
    timeout_s: float,
    output: str,
) -> None:
    """Compare source and destination record by record, independently of what the link believes.

    Reads both sides of each partition and compares key, value, headers (order, repetition, null) and
    timestamp of every record, their order, and whether each offset mapping points at the equal record. It
    reports what was

    \b
      lost        missing, though later records have arrived (or the mappings say so)
      duplicated  there again
      reordered   there, at another place
      altered     there, but not word for word
      foreign     at the destination, but never at the source
      mapping     an offset mapping that is missing, ambiguous or wrong
      gone-at-target  deleted at the destination, by retention there, though the source still has it
      halted      a partition that stands still, with the reason
      behind      source records at the end that are not at the destination yet

    with count and first offsets. Exit code: 0 nothing found, 1 something found, 2 bad settings.

    A link with a pipeline is held against what the pipeline makes of each source record: `transformed`
    records are not as they came, and `filtered` ones are not to be at the destination. Each record that is
    to be a dead letter must be one, once, in the link's topic of these. Each topic that a stage takes
    records to is compared with what is to be there, and `routed` ones are to be in no other. Keys of masks
    are those of the file that PIPELINE names; what a mask made with others is not compared, which is said.

    Of identical records in a row, which one is missing can't be told: it is the last that is named. Of
    compacted, trimmed or re-created topics it compares what both sides still have, and says so.
    """
    if allow_behind and complete:
        raise SettingsError("--allow-behind: goes with no --complete")
    for cluster in CLUSTERS:
        cluster_check.cluster_id(settings, cluster, Deadline(timeout_s))
    with _progress(quiet=output == "json") as show:
        report = verify_link(settings, Options(topics, sample, seed, timeout_s, keys_of(settings), show))
    if output == "json":
        echo_json(as_json(report, allow_behind))
    else:
        click.echo("\n".join(as_text(report, allow_behind)))
    context.exit(1 if report.failed(allow_behind) else 0)


class _Lines:
    """A line now and then where there is no terminal."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _LINE_EVERY_S

    def __call__(self, done: int, total: int, what: str) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LINE_EVERY_S
            click.echo(f"verify: {what}: {done:,} of about {max(total, done):,} records read", err=True)


@contextmanager
def _progress(quiet: bool) -> Iterator[OnProgress]:
    if quiet:
        yield lambda done, total, what: None
    elif not sys.stderr.isatty():
        yield _Lines()
    else:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("verify")
            # Redrawn by rich, not by each batch.
            yield lambda done, total, what: bar.update(
                task, completed=done, total=max(total, done), description=what
            )


def _where(kind: Kind, report: PartitionReport) -> str:
    finding = report.findings[kind]
    parts = []
    if finding.source_offset is not None:
        parts.append(f"source offset {finding.source_offset}")
    if finding.destination_offset is not None:
        parts.append(f"destination offset {finding.destination_offset}")
    if finding.version:
        parts.append(f"pipeline version {finding.version}")
    place = f", first at {', '.join(parts)}" if parts else ""
    return place + (f" ({finding.detail})" if finding.detail else "")


def as_text(report: LinkReport, allow_behind: bool = False) -> list[str]:
    lines = []
    for p in report.partitions:
        verdict = "FAILED" if p.findings or (p.behind and not allow_behind) else "ok"
        at = f"{p.topic}/{p.partition}" + (
            f" -> {p.destination_topic}/{p.partition}" if p.destination_topic != p.topic else ""
        )
        lines.append(
            f"{verdict:6} {at}: {p.source_records:,} source and {p.destination_records:,} destination records, {p.equal:,} equal{_made([p])}"
        )
        lines += [
            f"       {kind}: {p.findings[kind].count:,}{_where(kind, p)}"
            for kind in Kind
            if kind in p.findings
        ]
        if p.behind:
            lines.append(
                f"       behind: {p.behind:,} not at the destination yet, from source offset {p.first_behind}"
            )
        lines += [f"       note: {note}" for note in p.notes]
    lines += [f"note: {note}" for note in report.notes]
    found = sum(f.count for p in report.partitions for f in p.findings.values())
    behind = sum(p.behind for p in report.partitions)
    records = sum(p.source_records + p.destination_records for p in report.partitions)
    verdict = "FAILED" if report.failed(allow_behind) else "ok"
    lines.append(
        f"{verdict}: {len(report.partitions)} partitions, {sum(p.equal for p in report.partitions):,} records equal{_made(report.partitions)}, {found:,} findings,"
        f" {behind:,} behind; {records:,} records of both sides in {report.seconds:.1f} s"
    )
    return lines


def _made(partitions: list[PartitionReport]) -> str:
    """What pipelines did."""
    transformed, filtered = sum(p.transformed for p in partitions), sum(p.filtered for p in partitions)
    made = f", {transformed:,} transformed, {filtered:,} filtered" if transformed or filtered else ""
    routed, dead = sum(p.routed for p in partitions), sum(p.dead_letters for p in partitions)
    made += f", {routed:,} routed" if routed else ""
    return made + (f", {dead:,} dead letters" if dead else "")


def as_json(report: LinkReport, allow_behind: bool = False) -> dict[str, Any]:
    """The report as JSON: `ok`, `complete` (whether records that have not arrived are a finding), `seconds`,
    `notes`, and for each of `partitions` its counts, `findings` by class and notes."""
    return {
        "ok": not report.failed(allow_behind),
        "complete": not allow_behind,
        "seconds": round(report.seconds, 3),
        "notes": report.notes,
        "partitions": [
            {
                "topic": p.topic,
                "partition": p.partition,
                "destination_topic": p.destination_topic,
                "source_records": p.source_records,
                "destination_records": p.destination_records,
                "equal": p.equal,
                "transformed": p.transformed,
                "filtered": p.filtered,
                "dead_letters": p.dead_letters,
                "routed": p.routed,
                "behind": p.behind,
                "first_behind": p.first_behind,
                "findings": {
                    kind.value: {
                        "count": f.count,
                        "source_offset": f.source_offset,
                        "destination_offset": f.destination_offset,
                        "pipeline": f.version,
                        "detail": f.detail,
                    }
                    for kind, f in p.findings.items()
                },
                "notes": p.notes,
            }
            for p in report.partitions
        ],
    }
