"""The command `verbatim plan`: options and output. What is found out is verbatim/plan/plan.py's part."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from common.app.cli import Duration, echo_json, settings_options
from verbatim.plan.plan import make_plan
from verbatim.plan.report import as_json, as_text

if TYPE_CHECKING:
    from common.config.settings import Settings


@contextmanager
def silence() -> Iterator[None]:
    """The production code logs what it makes; here it only pretends to."""
    loggers = [logging.getLogger(name) for name in ("replicator", "deduplicator", "common")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@click.command("plan")
@settings_options
@click.option(
    "--seconds",
    type=Duration(),
    default="3s",
    show_default=True,
    help="Time between the two looks that tell the rates.",
)
@click.option(
    "--probe",
    is_flag=True,
    help="Try the target's schema registry, too: a subject is registered there, and removed again.",
)
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def plan(context: click.Context, settings: Settings, seconds: float, probe: bool, output: str) -> None:
    """Show what the link would do, and what would keep it from doing so. Changes nothing on either cluster.

    Connects to both clusters with the link's settings and goes through all that the applications do before
    they copy: versions, identity, rights, the link's own topics, destinations and their configuration,
    origins, halts. What would be made or changed the brokers are asked to validate. Lists the source topics
    with sizes and rates, and what copying them would cost.

    Exit code: 0 nothing stands against it, 1 something would fail, 2 bad settings.
    """
    with silence():
        report = make_plan(settings, seconds, probe)
    if output == "json":
        echo_json(as_json(report))
    else:
        click.echo("\n".join(as_text(report)))
    context.exit(0 if report.ok else 1)
