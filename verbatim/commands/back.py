"""The command `verbatim back`: options and output. What is done is verbatim/moves/back.py's part."""

from __future__ import annotations

import base64
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common.app.cli import echo_json, settings_options
from verbatim.commands import moving
from verbatim.commands.failover import utc
from verbatim.moves.back import Back, Count, Options, Tails
from verbatim.moves.uncopied import Left

if TYPE_CHECKING:
    from common.config.settings import Settings

_file = click.Path(dir_okay=False, path_type=Path)


@click.command("back")
@settings_options
@click.option(
    "--settings",
    "file",
    type=_file,
    help="Write the settings of the link back to this file (YAML, for --config), and pause this link.",
)
@click.option("--name", help="APPLICATION_NAME of the link back. [default: <link>.back]")
@click.option(
    "--tails",
    type=click.Choice(["refuse", "keep", "empty"]),
    default="refuse",
    show_default=True,
    help="What becomes of records at the source that were never copied: `keep`, they stay where they are, below what is copied back; "
    "`empty`, ALL RECORDS of their topics are DELETED at the source, once those are exported and all others were compared with their "
    "copies, and the topics are copied back whole.",
)
@click.option("--export", type=_file, help="Write these records to this file: JSON lines, bytes in base64.")
@click.option("--keys", is_flag=True, help="Show their keys.")
@moving.wait("it waits for the applications to be stopped, before it refuses")
@moving.output
@click.pass_context
def back(
    context: click.Context,
    settings: Settings,
    file: Path | None,
    name: str | None,
    tails: Tails,
    export: Path | None,
    keys: bool,
    wait_s: float,
    output: str,
) -> None:
    """Turn a link round after a cutover or a failover: what was copied there is not copied back, and all that
    came since is.

    Stop the link's applications first. Then:

    \b
      link      it is the link that it was made as
      stopped   nothing of it runs, and the link back has not begun
      copies    where they end at the target is on record since the cutover or failover, and still so
      source    it has no record that was never copied; those that it has are told one by one
      empty     with `--tails empty`: what is to be deleted at the source is at the target, or exported
      settings  with --settings: they are written, and this link is paused

    Without --settings nothing is changed. It may be run again at any time, until the link back has begun.

    Exit code: 0 the link back may be started, 1 refused, 2 bad settings or no such link.
    """
    lefts: list[dict[str, Any]] = []
    options = Options(file, name, tails, export, wait_s)
    if output == "text":
        options.tell = moving.tell
        options.left = lambda left: click.echo(line(left, keys))
    else:
        options.left = lambda left: lefts.append(as_record(left, keys))
    run = Back(settings, options)
    error = moving.refusal(run.run)
    if output == "json":
        echo_json(as_json(run, error) | {"records": lefts})
    else:
        click.echo("\n".join(as_text(run, error)))
    moving.end(context, error)


def as_json(run: Back, error: Exception | None) -> dict[str, Any]:
    return {
        **moving.as_json(run.steps, error),
        "link": run.report.name,
        "copies": [asdict(of) for of in run.report.handed],
        "never_copied": [asdict(of) for of in run.report.uncopied],
    }


def as_record(left: Left, keys: bool) -> dict[str, Any]:
    """A record that was never copied, for JSON; its key in base64, if that is asked for."""
    found = asdict(left)
    key = found.pop("key")
    return found | ({"key": None if key is None else base64.b64encode(key).decode()} if keys else {})


def line(left: Left, keys: bool) -> str:
    """The same for people."""
    key = f" key {left.key!r}" if keys else ""
    return (
        f"never copied {left.topic}-{left.partition} offset {left.offset} of {utc(left.timestamp_ms)}: {_size('key', left.key_bytes)}, "
        f"{_size('value', left.value_bytes)}, {left.headers} headers{key}"
    )


def _size(what: str, size: int | None) -> str:
    return f"no {what}" if size is None else f"{what} {size:,} B"


def as_text(run: Back, error: Exception | None) -> list[str]:
    lines = [_counted(of) for of in run.report.uncopied]
    if error is not None:
        return [*lines, "REFUSED: mend what is named, and run it again"]
    if run.options.settings is None:
        return [*lines, "ok: nothing was changed; --settings FILE writes the settings of the link back"]
    accepted = " ".join(sorted(of.topic for of in run.report.handed))
    file = run.options.settings
    last = (
        f"ok: start `replicator --config {file}` and `deduplicator --config {file}`, then let them into what was copied from: "
        f"verbatim accept-destination --config {file} {accepted}"
    )
    return [*lines, last]


def _counted(of: Count) -> str:
    gone = f"; {of.gone:,} offsets more are gone at the source, and were never copied" if of.gone else ""
    if of.oldest_ms is None or of.newest_ms is None:
        return f"partition {of.topic}-{of.partition}: nothing is left{gone}"
    return (
        f"partition {of.topic}-{of.partition}: {of.records:,} records were never copied, offsets {of.first_offset} to {of.last_offset}, "
        f"of {utc(of.oldest_ms)} to {utc(of.newest_ms)}, {of.value_bytes:,} B{gone}"
    )
