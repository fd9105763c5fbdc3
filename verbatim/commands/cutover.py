"""The command `verbatim cutover`: options and output. What is done is verbatim/moves/cutover.py's part."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common.app.cli import Duration, echo_json, settings_options
from common.errors import SettingsError
from offsets.survey import Row
from verbatim.commands import moving, undoing
from verbatim.moves.cutover import Cutover, Options
from verbatim.moves.rehearsal import Rehearsal
from verbatim.moves.topic_plan import TopicMovePlan

if TYPE_CHECKING:
    from common.config.settings import Settings
    from verbatim.moves.drill import Drill
    from verbatim.moves.failover import Failover


@click.command("cutover")
@settings_options
@click.option(
    "--quiet",
    "quiet_s",
    type=Duration(),
    default="5s",
    show_default=True,
    help="For so long the source must stand still, to show that its producers are stopped.",
)
@moving.wait("each step waits for what it needs, before it refuses")
@click.option(
    "--sample",
    type=click.FloatRange(0, 1, min_open=True),
    help="Compare only this fraction of the records, as `verify --sample` does: for topics too large to be compared meanwhile.",
)
@click.option("--seed", default=0, show_default=True, help="Chooses the windows of --sample.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="Move only these topics (names or regular expressions), and promote them: the link goes on with the rest.",
)
@click.option(
    "--producers-first",
    is_flag=True,
    help="With --topic: leave its consumers at the source until they have read it; their offsets stay translated.",
)
@click.option("--dry-run", is_flag=True, help="With --topic: show the plan, and change nothing.")
@moving.accept_redelivery
@click.option(
    "--memory",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that keeps the result of the comparison, so that another run need not repeat it. [default: <link>.cutover.json]",
)
@click.option(
    "--rehearse",
    is_flag=True,
    help="While producers and consumers go on: what would stop a cutover, and how long it would take. Writes nothing.",
)
@click.option(
    "--undo",
    is_flag=True,
    help="After a cutover that came to nothing: make sure that consumers and producers can go on at the source, and take groups back that "
    "have read on at the target.",
)
@moving.output
@click.pass_context
def cutover(
    context: click.Context,
    settings: Settings,
    quiet_s: float,
    wait_s: float,
    sample: float | None,
    seed: int,
    topics: tuple[str, ...],
    producers_first: bool,
    dry_run: bool,
    accept_redelivery: bool,
    memory: Path | None,
    rehearse: bool,
    undo: bool,
    output: str,
) -> None:
    """Make sure, step by step, that consumers can go on at the target at exactly the record that they would
    have read next.

    Stop the producers and the consumers of the source first; replicator and deduplicator run. Then:

    \b
      link       it is the link that it was made as
      producers  the source stands still: no end moves, no transaction is open
      lag        all of it is delivered, no partition is halted
      groups     no consumer runs on either side, all offsets are translated exactly and written
      verify     source and target are the same, record by record
      still      nothing of this has changed meanwhile

    With --topic, of these topics alone, and then:

    \b
      hold       nothing more of them is copied, whatever comes at the source
      promote    where the copies end is on record: others may write there

    Refuses on any doubt, and changes nothing but the groups' offsets at the target (one round of `offsets`,
    where none is running). Once what it names is mended, run it again: it goes on from there.

    --rehearse takes the same steps while all goes on, and names all doubts instead of the first; what comes
    from producers and consumers that run is none. --undo ends what came to nothing: a cutover changes nothing
    that has to be undone, and this says so after a look, or what the operator's own doing was that has to be.

    Exit code: 0 consumers may be started at the target, 1 refused, 2 bad settings or not this link.
    """
    if undo or rehearse:
        alone = "--undo" if undo else "--rehearse"
        if topics or producers_first or dry_run or (undo and rehearse):
            raise SettingsError(
                f"{alone}: goes with no --topic, --producers-first, --dry-run or {'--rehearse' if undo else '--undo'}"
            )
    if undo:
        undoing.undo(context, settings, wait_s, output)
    if not topics and (producers_first or dry_run):
        raise SettingsError("--producers-first, --dry-run: give --topic")
    options = Options(
        quiet_s,
        wait_s,
        sample,
        seed,
        accept_redelivery,
        memory or Path(f"{settings.application_name}.cutover.json"),
        moving.entries("--topic", topics) if topics else (),
        producers_first,
    )
    if output == "text":
        options = replace(options, tell=moving.tell)
    if dry_run:
        _plan(context, settings, options, output)
        return
    run: Cutover = (Rehearsal if rehearse else Cutover)(settings, options)
    error = moving.refusal(run.run)
    if isinstance(run, Rehearsal):
        rehearsed = {**as_json(run, error), **expected(run)}
        echo_json(rehearsed) if output == "json" else click.echo("\n".join(rehearsal_lines(run, error)))
    elif output == "json":
        promoted = [asdict(of) for of in run.promoted]
        echo_json({**as_json(run, error), **({"topics": promoted, "stay": run.stay} if topics else {})})
    elif error is None:
        click.echo("\n".join([*_groups(run.rows), *_topics(run)]))
        what = (
            "start the producers at the target; the consumers stay at the source until they have read it"
            if producers_first
            else "start the consumers at the target, then the producers"
        )
        click.echo(f"ok: done in {run.steps.seconds:.1f} s: {what}")
    else:
        click.echo(
            "REFUSED: consumers and producers stay where they are; mend what is named, and run it again"
        )
    moving.end(context, error)


def _plan(context: click.Context, settings: Settings, options: Options, output: str) -> None:
    plan = TopicMovePlan(settings, options)
    error = moving.refusal(plan.run)
    if output == "json":
        echo_json({**plan.as_json(), "refused": None if error is None else str(error)})
    else:
        click.echo(
            "\n".join([*plan.lines(), "nothing was changed" if error is None else f"REFUSED: {error}"])
        )
    moving.end(context, error)


def expected(run: Rehearsal) -> dict[str, Any]:
    """What a rehearsal tells besides, for JSON: `expected` is in seconds, by step."""
    return {
        "doubts": [asdict(doubt) for doubt in run.doubts],
        "expected": {step: round(seconds, 3) for step, seconds in run.expected.items()},
        "expected_seconds": round(run.expected_s, 3),
    }


def rehearsal_lines(run: Rehearsal, error: Exception | None) -> list[str]:
    """The end of a rehearsal, for people; the steps were told."""
    lines = [f"doubt   {doubt.step:9} {doubt.what}" for doubt in run.doubts]
    steps = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in run.expected.items())
    if run.expected:
        lines.append(f"a cutover stands still for about {run.expected_s:.0f} s: {steps}")
    if error is None:
        return [*lines, "ok: nothing would stop a cutover now"]
    return [*lines, "REFUSED: so would a cutover be; mend what is named, and rehearse it again"]


def as_json(run: Cutover | Failover | Drill, error: Exception | None) -> dict[str, Any]:
    """What is told of all moves."""
    return {
        **moving.as_json(run.steps, error),
        "groups": [group_line(row) for row in run.rows],
    }


def group_line(row: Row) -> dict[str, Any]:
    """What became of a partition of a group, for JSON."""
    r = row.record
    return {
        "group": row.key.group,
        "topic": row.key.topic,
        "partition": row.key.partition,
        "source_offset": r.source_offset,
        "target_group": r.target_group,
        "destination_topic": r.destination_topic,
        "destination_partition": r.destination_partition,
        "offset": r.offset,
        "exact": r.exact,
        "why": r.why,
        "outcome": r.outcome,
    }


def _topics(run: Cutover) -> list[str]:
    return [
        f"topic {of.topic}: {of.destination} is promoted{' (before)' if of.before else ''}; the copies end at offsets "
        f"{', '.join(str(there) for _, there in of.ends)}"
        for of in run.promoted
    ]


def _groups(rows: list[Row]) -> list[str]:
    return [
        f"group {row.record.target_group}, {row.record.destination_topic}-{row.record.destination_partition}: goes on at offset "
        f"{row.record.offset} ({row.record.source_offset} at the source)"
        for row in rows
    ]
