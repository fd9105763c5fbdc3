"""The operator's command line: a list of commands, each in its own module."""

from __future__ import annotations

from typing import Any

import click

from common.cli import entry
from verbatim.accept_destination import accept_destination
from verbatim.accept_loss import accept_loss
from verbatim.acls_command import acls_command
from verbatim.cutover_command import cutover
from verbatim.failover_command import failover
from verbatim.plan_command import plan
from verbatim.quickstart import quickstart
from verbatim.steering_command import limit, pause, resume, running
from verbatim.topics_command import topics_command
from verbatim.verify_command import verify


class _Commands(click.Group):
    """Called as the console script, it ends with one line and an exit code for each of the project's errors."""

    def __call__(self, *args: Any, **extra: Any) -> Any:
        entry(self, prog_name="verbatim")


@click.group(cls=_Commands)
@click.version_option(package_name="verbatim", prog_name="verbatim")
def cli() -> None:
    """Look after links that copy Kafka topics from cluster to cluster, exactly once."""


cli.add_command(accept_destination)
cli.add_command(accept_loss)
cli.add_command(acls_command)
cli.add_command(cutover)
cli.add_command(failover)
cli.add_command(limit)
cli.add_command(pause)
cli.add_command(plan)
cli.add_command(quickstart)
cli.add_command(resume)
cli.add_command(running)
cli.add_command(topics_command)
cli.add_command(verify)
