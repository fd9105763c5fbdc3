"""The command `schemas`: the registries of a link. Options and what is printed; what is done is elsewhere."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from common.app.cli import echo_json, link_folder, live_file, settings_options
from common.app.entry import entry
from common.app.links.links import Links
from common.errors import SchemasFailed, SettingsError
from schemas.copying import COPIED, IN_STEP, Line
from schemas.look import as_json, by_subject, look, shown, table
from schemas.service import NAME, Service, failures

if TYPE_CHECKING:
    from common.config.settings import Settings


@click.command()
@click.argument("action", required=False, type=click.Choice(["describe", "verify"]))
@partial(settings_options, links=True)
@click.option("--once", is_flag=True, help="One round, then exit.")
@click.option("--dry-run", is_flag=True, help="Print what one round would write, and write nothing.")
@click.option(
    "--output", type=click.Choice(["table", "json"]), help="What an ACTION prints. [default: table]"
)
def command(settings: Settings, action: str | None, once: bool, dry_run: bool, output: str | None) -> None:
    """Keep the schemas of the target's registry in step with the source's, as the file of PIPELINE says.

    Without an ACTION it runs until it is stopped. `describe` shows each version on both sides, `verify`
    compares the registries subject by subject (exit code 1: they differ); both change nothing.
    """
    folder = link_folder()
    if folder is not None and (action is not None or once or dry_run):
        raise SettingsError(
            "--links: goes with nothing that ends by itself: ask each link with --config and its file"
        )
    if action is not None and (once or dry_run):
        raise SettingsError(f"{action}: goes with neither --once nor --dry-run")
    if output is not None and action is None:
        raise SettingsError("--output: is for describe and verify")
    if action is not None:
        lines = look(settings, fingerprints=action == "verify")
        if output == "json":
            echo_json(as_json(lines))
        else:
            click.echo(table(lines) if action == "describe" else "\n".join(by_subject(lines)))
        differ = action == "verify" and any(line.state != IN_STEP for line in lines)
        raise SystemExit(1 if differ else 0)
    if dry_run:
        lines = look(settings)
        for line in lines:
            if line.state != IN_STEP:
                click.echo(shown(line))
        _fail_for(lines)
        return
    if folder is not None:
        raise SystemExit(Links(NAME, settings, folder, lambda of, live: Service(of, False, live)).run())
    service = Service(settings, once, live_file())
    code = service.run()
    if once:
        _summarise(service.lines)
        _fail_for(service.lines)
    raise SystemExit(code)


def _summarise(lines: list[Line]) -> None:
    subjects = len({line.subject for line in lines})
    copied = sum(line.state == COPIED for line in lines)
    failed = len(failures(lines))
    more = f", {failed} subjects failed" if failed else ""
    click.echo(f"schemas: {subjects} subjects, {len(lines)} versions, {copied} copied{more}")


def _fail_for(lines: list[Line]) -> None:
    """Raise SchemasFailed, naming them, where subjects are not in step."""
    if found := failures(lines):
        named = "; ".join(f"subject {subject}: {why}" for subject, why in sorted(found.items()))
        raise SchemasFailed(f"{len(found)} subjects could not be brought in step: {named}")


def cli() -> None:
    """Console script."""
    entry(command)
