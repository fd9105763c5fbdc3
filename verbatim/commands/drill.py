"""The command `verbatim drill`: options and output. What is done is verbatim/moves/drill.py's part."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from common.app.cli import Duration, echo_json, settings_options
from verbatim.commands import cutover, moving
from verbatim.commands.failover import utc
from verbatim.moves.drill import Drill, Options

if TYPE_CHECKING:
    from common.config.settings import Settings


@click.command("drill")
@settings_options
@click.option(
    "--cut", metavar="COMMAND", help="Cuts the source off: a shell command. [default: you do, when told]"
)
@click.option(
    "--stop", metavar="COMMAND", help="Stops the replicator and `offsets`. [default: you do, when told]"
)
@click.option("--restore", metavar="COMMAND", help="Lets the source back. [default: you do, when told]")
@click.option(
    "--wait",
    "wait_s",
    type=Duration(),
    default="5m",
    show_default=True,
    help="How long each step waits for what it needs, before it refuses.",
)
@moving.output
@click.pass_context
def drill(
    context: click.Context,
    settings: Settings,
    cut: str | None,
    stop: str | None,
    restore: str | None,
    wait_s: float,
    output: str,
) -> None:
    """Play the loss of the source: cut it off, fail over, let it back, and tell what was lost and how long it
    took.

    The link runs, and is well. No consumer is started at the target. Then:

    \b
      ready    replicator and deduplicator run, no partition is halted, no topic paused
      cut      the source is cut off from here and from the link, and does not answer any more
      stop     replicator and `offsets` are stopped
      link, stopped, staging, groups, missing   what `verbatim failover` does
      restore  the source is let back, and answers
      rejoin   what it has that was never copied is counted, as `verbatim back` does

    The link loses nothing by it: start the replicator and `offsets` again, and it goes on copying where it
    was. Where a step refuses after the source was cut off, --restore is run all the same.

    Exit code: 0 done, 1 refused, 2 bad settings or no such link.
    """
    options = Options(cut, stop, restore, wait_s, ask=lambda what: click.echo(f"DO      {what}", err=True))
    if output == "text":
        options.tell = moving.tell
    run = Drill(settings, options)
    error = moving.refusal(run.run)
    if output == "json":
        echo_json(as_json(run, error))
    else:
        click.echo("\n".join(as_text(run, error)))
    moving.end(context, error)


def as_json(run: Drill, error: Exception | None) -> dict[str, Any]:
    """RPO and RTO, and what they are made of."""
    found = run.result
    return {
        **cutover.as_json(run, error),
        "rpo": {"records": found.lost, "seconds": _rounded(found.lost_s)},
        "rto": {"seconds": _rounded(found.recovered_s)},
        "result": {
            name: _rounded(value) if name.endswith("_s") else value for name, value in asdict(found).items()
        },
        "never_copied": [asdict(of) for of in run.uncopied],
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def as_text(run: Drill, error: Exception | None) -> list[str]:
    """The page of results."""
    found, lines = run.result, [""]
    if found.lost is not None and found.cut_ms is not None:
        lines.append(
            f"RPO     {found.lost:,} records, {found.lost_s or 0:.1f} s: so many records, of so many seconds before the cut, would be lost"
        )
    if found.recovered_s is not None:
        lines.append(
            f"RTO     {found.recovered_s:.1f} s from the cut until consumers could go on at the target: it was seen after "
            f"{found.seen_s or 0:.1f} s, the applications were stopped after {found.stopped_s or 0:.1f} s"
        )
    if found.cut_ms is not None:
        lines.append(
            f"cut     at {utc(found.cut_ms)}; {found.lag:,} offsets were not delivered some time before"
        )
    if found.after:
        lines.append(f"after   {found.after:,} records more came to the source, which lived on")
    if found.gone:
        lines.append(
            f"gone    {found.gone:,} offsets were never copied, and the source itself has them no more"
        )
    if run.rows:
        groups, exact = {row.key.group for row in run.rows}, sum(row.record.exact for row in run.rows)
        lines.append(f"groups  {len(groups)}, with {len(run.rows)} partitions, of which {exact} exact")
    lines += [
        f"        {of.topic}-{of.partition}: {of.records:,} records never copied, offsets {of.first_offset} to {of.last_offset}"
        for of in run.uncopied
        if of.records
    ]
    if error is None:
        return [*lines, "ok: start the replicator and `offsets` again: the link goes on where it was"]
    return [*lines, "REFUSED: let the source back, start replicator and `offsets` again, mend what is named"]
