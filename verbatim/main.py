"""The operator's command line: a list of commands, each in its own module."""

from __future__ import annotations

from typing import Any

import click

from common.app.cli import entry
from verbatim.commands.accept_destination import accept_destination
from verbatim.commands.accept_loss import accept_loss
from verbatim.commands.acls import acls_command
from verbatim.commands.cutover import cutover
from verbatim.commands.failover import failover
from verbatim.commands.plan import plan
from verbatim.commands.steering import limit, pause, resume, running
from verbatim.commands.topics import topics_command
from verbatim.commands.verify import verify
from verbatim.quickstart.quickstart import quickstart


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
