"""The command `replicator`: its options; what it does is main's."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import click

from common.app.cli import settings_options
from common.app.entry import entry

if TYPE_CHECKING:
    from common.config.settings import Settings


@click.command()
@functools.partial(settings_options, links=True)
@click.option(
    "--until-caught-up", is_flag=True, help="Copy up to the end offsets found at the start, then exit."
)
def command(settings: Settings, until_caught_up: bool) -> None:
    """Phase 1: read the source topics and append their records, in frames, to the staging topic on the
    target."""
    from common.app.links.running import run  # which imports Spark: help needs none of it
    from replicator.main import Replicator

    raise SystemExit(run(Replicator, settings, until_caught_up))


def cli() -> None:
    """Console script."""
    entry(command)
