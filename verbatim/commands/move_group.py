"""The command `verbatim move-group`: options and output. What is done is verbatim/moves/group_move.py's and
group_back.py's part."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from common.app.cli import echo_json, settings_options
from common.errors import SettingsError
from offsets.groups import shown
from offsets.survey import Row
from verbatim.commands import moving
from verbatim.commands.cutover import group_line
from verbatim.moves.group_back import GroupsBack
from verbatim.moves.group_move import GroupMoves
from verbatim.moves.group_ways import Options, Way, Ways

if TYPE_CHECKING:
    from common.config.settings import Settings
    from verbatim.moves.steps import Step


@click.command("move-group")
@settings_options
@click.argument("groups", nargs=-1, metavar="[GROUP]...")
@click.option(
    "--matching",
    metavar="EXPRESSION",
    help="Groups whose whole name the regular expression matches, too.",
)
@moving.wait("each step of a group waits for what it needs, before the group is refused")
@click.option("--dry-run", is_flag=True, help="Show the plan, and change nothing.")
@click.option("--back", is_flag=True, help="Move the groups back to the source.")
@click.option(
    "--return-link",
    metavar="NAME",
    help="The link that copies the same topics back to the source: with PROVENANCE_HEADERS, groups are moved by what both have copied.",
)
@moving.accept_redelivery
@moving.output
@click.pass_context
def move_group(
    context: click.Context,
    settings: Settings,
    groups: tuple[str, ...],
    matching: str | None,
    wait_s: float,
    dry_run: bool,
    back: bool,
    return_link: str | None,
    accept_redelivery: bool,
    output: str,
) -> None:
    """Move consumer GROUPs to the target, one by one, while producers stay at the source; or back.

    Replicator and deduplicator run; `offsets` may. Stop the consumers of a group. Then, for each group:

    \b
      members    no consumer of the group runs, on either side: its offsets stand still
      copy       all is copied up to where it stands, and its offsets are translated exactly
      hold       `offsets`, where it runs, has let go of the group
      write      its offsets are written at the target
      check      they stand there, and have not moved at the source

    Then its consumers may be started at the target, and nothing else moves the group's offsets any more.
    A group is refused on any doubt, and is as it was before; the others go on. Run it again at any time,
    also after it was killed. --back goes the other way: exactly, whatever was read at the target, which takes
    the rights of `offsets --reverse`.

    Exit code: 0 all were moved, or may be, 1 all were refused, 2 bad settings or no such link, 3 some were
    refused.
    """
    if not groups and matching is None:
        raise SettingsError("GROUP: name a group, or give --matching")
    try:
        expression = None if matching is None else re.compile(matching, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as wrong:
        raise SettingsError(f"--matching: no regular expression: {wrong}") from None
    options = Options(groups, expression, wait_s, accept_redelivery, dry_run, return_link)
    if output == "text":
        options.planned = lambda ways: click.echo("\n".join(map(plan_line, ways)))
        options.tell = _tell
    run = (GroupsBack if back else GroupMoves)(settings, options)
    error = moving.refusal(run.run)
    if output == "json":
        echo_json(as_json(run, error))
    else:
        click.echo(last_line(run, error))
    moving.end(context, error)


def _tell(group: str, step: Step) -> None:
    click.echo(f"{step.line()}  group {shown(group)}")


def plan_line(way: Way) -> str:
    """What is to be done with a group, and what stands in its way."""
    said = {
        "kept": "done before",
        "refused": f"REFUSED: {way.refused}",
    }.get(way.state, f"{len(way.partitions)} partitions, to {shown(way.target_group)}")
    waits = f"; waits: {'; '.join(way.waits)}" if way.waits and way.state != "refused" else ""
    notes = "".join(f"; note: {note}" for note in way.notes)
    return f"plan    group {shown(way.group)}: {said}{waits}{notes}"


def last_line(run: Ways, error: Exception | None) -> str:
    done = sum(way.state in ("done", "kept") for way in run.ways)
    if error is None:
        what = "nothing was changed" if run.options.dry_run else f"{done} groups"
        return f"ok: done in {run.seconds:.1f} s: {what}"
    others = f"; {done} others may go on" if done else ""
    return f"REFUSED: {error}{others}; mend what is named, and run it again"


def as_json(run: Ways, error: Exception | None) -> dict[str, Any]:
    return {
        "ok": error is None,
        "seconds": round(run.seconds, 3),
        "refused": None if error is None else str(error),
        "groups": [
            {
                "group": way.group,
                "target_group": way.target_group,
                "state": way.state,
                "refused": way.refused,
                "waits": way.waits,
                "notes": way.notes,
                "seconds": round(way.steps.seconds, 3),
                "steps": way.steps.as_json(),
                "partitions": [
                    group_line(found) if isinstance(found, Row) else moving.back_line(found)
                    for found in way.partitions
                ],
            }
            for way in run.ways
        ],
    }
