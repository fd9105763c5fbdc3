"""The command `replicator`: its options; what it does is main's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from common.app.cli import live_file, settings_options
from common.app.entry import entry

if TYPE_CHECKING:
    from common.config.settings import Settings


@click.command()
@settings_options
@click.option(
    "--until-caught-up", is_flag=True, help="Copy up to the end offsets found at the start, then exit."
)
def command(settings: Settings, until_caught_up: bool) -> None:
    """Phase 1: read the source topics and append their records, in frames, to the staging topic on the
    target."""
    from replicator.main import Replicator  # which imports Spark: help needs none of it

    raise SystemExit(Replicator(settings, until_caught_up, live_file()).run())


def cli() -> None:
    """Console script."""
    entry(command)
