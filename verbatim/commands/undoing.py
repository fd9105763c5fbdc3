"""`verbatim cutover --undo`: output. What is done is verbatim/moves/undo.py's part. No command of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from common.app.cli import echo_json
from offsets.failback import Back
from offsets.groups import shown
from verbatim.commands import moving
from verbatim.moves.undo import Options, Undo

if TYPE_CHECKING:
    from common.config.settings import Settings


def undo(context: click.Context, settings: Settings, wait_s: float, output: str) -> None:
    """Ends the command."""
    options = Options(wait_s)
    if output == "text":
        options.tell = moving.tell
    run = Undo(settings, options)
    error = moving.refusal(run.run)
    if output == "json":
        echo_json(as_json(run, error))
    else:
        click.echo("\n".join([*map(_group, run.rows), last_line(run, error)]))
    moving.end(context, error)
    context.exit(0)


def as_json(run: Undo, error: Exception | None) -> dict[str, Any]:
    return {
        **moving.as_json(run.steps, error),
        "groups": [{"group": row.key.group, **moving.back_line(row)} for row in run.rows],
    }


def last_line(run: Undo, error: Exception | None) -> str:
    if error is not None:
        return "REFUSED: mend what is named, and run it again"
    what = "groups were taken back" if run.rows else "nothing has to be undone"
    return f"ok: {what}: consumers and producers may go on at the source"


def _group(row: Back) -> str:
    return (
        f"group {shown(row.key.group)}, {row.key.topic}-{row.key.partition}: goes on at offset {row.found.offset} of the source "
        f"({row.target.offset} at the target)"
    )
