"""The command `deduplicator`: its options; what it does is main's."""

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
@click.option("--until-caught-up", is_flag=True, help="Deliver all that is staged at the start, then exit.")
def command(settings: Settings, until_caught_up: bool) -> None:
    """Phase 2: deliver the frames of the staging topic to the destination topics, exactly once."""
    from common.app.links.running import run  # which imports Spark: help needs none of it
    from deduplicator.main import Deduplicator

    raise SystemExit(run(Deduplicator, settings, until_caught_up))


def cli() -> None:
    """Console script."""
    entry(command)
