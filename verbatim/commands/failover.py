"""The command `verbatim failover`: options and output. What is done is verbatim/moves/failover.py's part."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click
from confluent_kafka import KafkaException

from common.app.cli import echo_json, settings_options
from common.errors import PartitionsHalted, VerbatimError
from offsets.commit_rule import MEANINGS
from verbatim.commands import cutover, moving
from verbatim.moves.failover import Failover, Missing, Options

if TYPE_CHECKING:
    from common.config.settings import Settings
    from offsets.survey import Row


@click.command("failover")
@settings_options
@moving.wait("each step waits for what it needs, before it refuses")
@moving.output
@click.pass_context
def failover(context: click.Context, settings: Settings, wait_s: float, output: str) -> None:
    """Let consumers go on at the target when the source is gone, and tell what may be missing. Never connects
    to the source.

    The replicator and `offsets` are stopped, the deduplicator runs. Then:

    \b
      link       it is the link that it was made as
      stopped    neither replicator nor `offsets` runs: were the source to come back now, nothing below would
      be certain staging    the deduplicator has delivered all that is staged groups     the last offsets of
      the source's groups, as `offsets` recorded them, are translated and written missing    what is known of
      each partition's end

    It may be run again at any time. A group that has members, or is ahead by its own consumption, is left
    alone.

    Exit code: 0 consumers may be started at the target, 1 refused, or a group could not be moved, 2 bad
    settings or no such link, 3 done, but some partitions stand still.
    """
    options = Options(wait_s)
    if output == "text":
        options = replace(options, tell=moving.tell)
    run = Failover(settings, options)
    error = moving.refusal(run.run)
    if error is None and (still := [m for m in run.missing if m.why is not None]):
        error = PartitionsHalted(f"{len(still)} partitions stand still")
    if output == "json":
        echo_json(as_json(run, error))
    else:
        click.echo("\n".join(as_text(run, error)))
    moving.end(context, error)


def as_json(run: Failover, error: VerbatimError | KafkaException | None) -> dict[str, Any]:
    return {
        **cutover.as_json(run, error),
        "missing": [{**asdict(m), "at_least": m.at_least} for m in run.missing],
        "last_staged_ms": run.last_staged_ms,
        "last_heartbeat_ms": run.last_heartbeat_ms,
    }


def as_text(run: Failover, error: VerbatimError | KafkaException | None) -> list[str]:
    lines = [_group(row) for row in run.rows]
    lines += [_missing(m) for m in run.missing]
    if run.last_staged_ms is not None:
        lines.append(
            f"the replicator last wrote down a position at {utc(run.last_staged_ms)}; what the source got later may be missing"
        )
    if run.last_heartbeat_ms is not None:
        lines.append(f"the last heartbeat of the source that arrived is of {utc(run.last_heartbeat_ms)}")
    if error is None:
        lines.append(f"ok: done in {run.steps.seconds:.1f} s: consumers may be started at the target")
    elif isinstance(error, PartitionsHalted):
        lines.append(
            f"done in {run.steps.seconds:.1f} s, but {error}: consumers may be started at the target"
        )
    else:
        lines.append("REFUSED: mend what is named, and run it again")
    return lines


def utc(ms: int) -> str:
    """A time as people read it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ms / 1000)) + f".{ms % 1000:03d}Z"


def _group(row: Row) -> str:
    r = row.record
    what = MEANINGS[r.outcome] if r.exact else f"{MEANINGS[r.outcome]} ({r.why})"
    return (
        f"group {r.target_group}, {r.destination_topic}-{r.destination_partition}: source offset {r.source_offset} is "
        f"{'-' if r.offset is None else r.offset} there: {what}"
    )


def _missing(m: Missing) -> str:
    newest = "no record there" if m.newest_ms is None else f"newest record of {utc(m.newest_ms)}"
    end = "not known how far" if m.delivered is None else f"up to source offset {m.delivered}"
    known = f", at least {m.at_least:,} offsets missing" if m.at_least else ""
    why = f"; stands still: {m.why}" if m.why else ""
    return f"partition {m.topic}-{m.partition}: delivered {end} ({newest}){known}{why}"
