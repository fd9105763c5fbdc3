"""The command `offsets`: consumer groups of a link. Options and what is printed; what is done is
elsewhere."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import click

from common.app.cli import echo_json, link_folder, live_file, settings_options
from common.app.entry import entry
from common.app.links.links import Links
from common.errors import GroupRefused, GroupsFailed, LinkRefused, SettingsError
from offsets import failback
from offsets.commit_rule import MEANINGS
from offsets.describe import describe, table
from offsets.failback import Back
from offsets.groups import shown
from offsets.service import NAME, Service, read_only, refusal
from offsets.survey import Row, Unmoved

if TYPE_CHECKING:
    from common.config.settings import Settings


@click.command()
@click.argument("action", required=False, type=click.Choice(["describe"]))
@partial(settings_options, links=True)
@click.option("--once", is_flag=True, help="One round, then exit.")
@click.option("--dry-run", is_flag=True, help="Print what one round would write, and write nothing.")
@click.option(
    "--reverse",
    is_flag=True,
    help="Fail-back, once: translate the target's groups back and WRITE TO THE SOURCE cluster's groups.",
)
@click.option(
    "--output", type=click.Choice(["table", "json"]), help="What `describe` prints. [default: table]"
)
def command(
    settings: Settings, action: str | None, once: bool, dry_run: bool, reverse: bool, output: str | None
) -> None:
    """Keep the offsets of consumer groups at the target in step with the source's, translated by the offset
    mappings.

    Without an ACTION it runs until it is stopped. `describe` shows every group, on both sides, and changes
    nothing.
    """
    folder = link_folder()
    if folder is not None and (action is not None or once or dry_run or reverse):
        raise SettingsError(
            "--links: goes with nothing that ends by itself: ask each link with --config and its file"
        )
    if action is not None and (once or dry_run or reverse):
        raise SettingsError("describe: goes with none of --once, --dry-run, --reverse")
    if output is not None and action is None:
        raise SettingsError("--output: is for describe")
    if action is not None:
        _describe(settings, output or "table")
    elif reverse:
        _fail_back(settings, dry_run)
    elif dry_run:
        _dry_run(settings)
    else:
        if folder is not None:
            raise SystemExit(Links(NAME, settings, folder, lambda of, live: Service(of, False, live)).run())
        service = Service(settings, once, live_file())
        code = service.run()
        if once:
            _summarise(service.rows, service.unmoved)
            _fail_for(service.rows, service.unmoved)
        raise SystemExit(code)


def _describe(settings: Settings, output: str) -> None:
    with closing(read_only(settings, needs_source=False)) as survey:
        lines = describe(survey)
    if output == "json":
        echo_json(lines)
    else:
        click.echo(table(lines))


def _dry_run(settings: Settings) -> None:
    with closing(read_only(settings, needs_source=True)) as survey:
        found = survey.look()
    rows = found.rows
    for row in rows:
        r = row.record
        what = "would be written" if r.outcome == "written" else f"{r.outcome}: {MEANINGS[r.outcome]}"
        click.echo(
            f"group {shown(r.target_group)}, {r.destination_topic}-{r.destination_partition}: {_or_none(row.committed)} -> "
            f"{_or_none(r.offset)} ({'exact' if r.exact else r.why}; source offset {r.source_offset} of {row.key.topic}): {what}"
        )
    for left in found.unmoved:
        click.echo(f"group {shown(left.group)}: not moved ({left.outcome}): {left.detail}")
    if (refused := refusal(rows, settings)) is not None:
        raise GroupRefused(refused[0])


def _fail_back(settings: Settings, dry_run: bool) -> None:
    with closing(read_only(settings, needs_source=True)) as survey:
        if n := survey.control.state.pipeline:
            raise LinkRefused(
                f"--reverse: records of this link went through a pipeline ({n} is the newest); going back over what one has left out is not built yet"
            )
        rows = failback.look(survey)
        where = f"the SOURCE cluster {survey.link.source_name} ({settings.source_bootstrap_servers})"
        click.echo(f"nothing is written: what would go to {where}" if dry_run else f"writing to {where}")
        _refuse_back(settings, rows)
        if not dry_run:
            rows = failback.write(survey, rows)
    for row in rows:
        what = MEANINGS_BACK.get(row.outcome, row.outcome)
        if dry_run and row.outcome == "written":
            what = "would be written"
        click.echo(
            f"group {shown(row.key.group)}, {row.key.topic}-{row.key.partition}: {_or_none(row.committed)} -> {_or_none(row.found.offset)} "
            f"({'exact' if row.found.exact else row.found.why}; target offset {row.target.offset}): {what}"
            + (f" ({row.detail})" if row.detail else "")
        )
    if failed := [row for row in rows if row.outcome == "failed"]:
        key = failed[0].key
        raise GroupRefused(
            f"{len(failed)} offsets could not be written at the source: group {shown(key.group)}, {key.topic}-{key.partition}: {failed[0].detail}"
        )


NEVER = ("several-sources", "repartitioned")
MEANINGS_BACK = {
    "active": "active: the group has members at the source; left alone",
    "target-ahead": "source-ahead: the source's group is ahead; never moved back",
    "several-sources": f"several-sources: {MEANINGS['several-sources']}",
}


def _refuse_back(settings: Settings, rows: list[Back]) -> None:
    for outcome, setting, name in (
        ("active", settings.on_active_group, "ON_ACTIVE_GROUP"),
        ("several-targets", settings.on_several_targets, "ON_SEVERAL_TARGETS"),
    ):
        refused = [row.key for row in rows if row.outcome == outcome]
        if setting == "fail" and refused:
            key = refused[0]
            raise GroupRefused(
                f"group {shown(key.group)}, {key.topic}-{key.partition}: {outcome} at the source ({name}=fail)"
            )


def _summarise(rows: list[Row], unmoved: list[Unmoved]) -> None:
    written = sum(row.record.outcome == "written" and not row.doubt for row in rows)
    inexact = sum(row.record.offset is not None and not row.record.exact for row in rows)
    groups = len({row.key.group for row in rows})
    never = Counter(row.record.outcome for row in rows if row.record.outcome in NEVER)
    failed = sum(_failed(row) for row in rows)
    more = "".join(f", {count} never translated ({outcome})" for outcome, count in never.items())
    more += f", {failed} failed" if failed else ""
    more += f", {len(unmoved)} groups not moved" if unmoved else ""
    click.echo(
        f"offsets: {groups} groups, {len(rows)} partitions, {written} written, {inexact} not exact{more}"
    )


def _fail_for(rows: list[Row], unmoved: list[Unmoved]) -> None:
    """Raise GroupsFailed, naming them, where offsets of groups could not be moved: what is left to a next
    round, this run does not have."""
    failed = {row.key.group: row.doubt or row.record.detail for row in rows if _failed(row)}
    failed |= {left.group: left.detail for left in unmoved if left.outcome == "failed"}
    if failed:
        named = "; ".join(f"group {shown(group)}: {why}" for group, why in sorted(failed.items()))
        raise GroupsFailed(f"offsets of {len(failed)} groups could not be moved: {named}")


def _failed(row: Row) -> bool:
    return row.record.outcome == "failed" or bool(row.doubt)


def _or_none(offset: int | None) -> str:
    return "none" if offset is None else str(offset)


def cli() -> None:
    """Console script."""
    entry(command)
