"""The command `verbatim demote`: options and output. What is done is verbatim/moves/demotion.py's part."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from common.app.cli import Duration, echo_json, settings_options
from verbatim.commands import moving
from verbatim.moves.demotion import Demotion, Options

if TYPE_CHECKING:
    from common.config.settings import Settings


@click.command("demote")
@settings_options
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--quiet",
    "quiet_s",
    type=Duration(),
    default="5s",
    show_default=True,
    help="For so long the destinations must stand still, to show that nobody writes there.",
)
@click.option("--dry-run", is_flag=True, help="Look at what stands in the way, and change nothing.")
@moving.output
@click.pass_context
def demote(
    context: click.Context,
    settings: Settings,
    topics: tuple[str, ...],
    quiet_s: float,
    dry_run: bool,
    output: str,
) -> None:
    """Let the link copy promoted TOPICs again (names or regular expressions), from where it ended.

    Stop who writes to their copies. Refused where a destination holds anything behind the copies, where the
    source no longer has what comes next, or where either topic was made again. A promotion that ended
    half-way is taken back.

    Exit code: 0 they are copied again, or may be, 1 refused, 2 bad settings or not this link.
    """
    options = Options(moving.entries("TOPIC", topics), quiet_s, dry_run)
    if output == "text":
        options = replace(options, tell=moving.tell)
    run = Demotion(settings, options)
    error = moving.refusal(run.run)
    if output == "json":
        echo_json(as_json(run, error))
    elif error is None:
        again = f"copied again: {', '.join(run.found)}" if run.found else "all of them are copied already"
        what = "nothing was changed" if dry_run else again
        click.echo(f"ok: done in {run.steps.seconds:.1f} s: {what}")
    else:
        click.echo("REFUSED: nothing was changed; mend what is named, and run it again")
    moving.end(context, error)


def as_json(run: Demotion, error: Exception | None) -> dict[str, Any]:
    return {
        **moving.as_json(run.steps, error),
        "topics": [
            {"topic": topic, "destination": of.destination, "state": of.state}
            for topic, of in run.found.items()
        ],
    }
