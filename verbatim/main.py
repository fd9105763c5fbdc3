"""The operator's command line: a list of commands, each in its own module, which is imported only when that
command is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from common.app.entry import entry


class Later(click.Command):
    """A command of the list: what help and completion say of it, and where it is."""

    def __init__(self, name: str, where: str, short_help: str) -> None:
        """`where`: module and attribute, as `package.module:attribute`."""
        super().__init__(name, short_help=short_help)
        self._where = where

    def load(self) -> click.Command:
        """The command itself."""
        module, _, attribute = self._where.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """The command's own, by which click then calls it."""
        return self.load().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Called by itself, not through the list: the context is the command's own."""
        return ctx.command.invoke(ctx)


COMMANDS = [
    Later(
        "accept-destination",
        "verbatim.commands.accept_destination:accept_destination",
        "Let the link write into DESTINATIONs that hold records of somebody else's, have too few partitions, or were deleted"
        " at the target.",
    ),
    Later(
        "accept-loss",
        "verbatim.commands.accept_loss:accept_loss",
        "Let a halted partition of TOPIC go on behind records that are gone.",
    ),
    Later(
        "acls",
        "verbatim.commands.acls:acls_command",
        "Show the access rules of each copy: in step, to be granted, to be revoked, or set by somebody else.",
    ),
    Later(
        "back",
        "verbatim.commands.back:back",
        "Turn a link round after a cutover or a failover: what was copied there is not copied back, and all that came since is.",
    ),
    Later(
        "bundle",
        "verbatim.commands.bundle:bundle",
        "Put into one file what somebody who helps has to see: no records, no secrets.",
    ),
    Later(
        "convert",
        "verbatim.commands.convert:convert",
        "Write the settings that are those of MirrorMaker 2, K2K or kafka-reo in FILE.",
    ),
    Later(
        "cutover",
        "verbatim.commands.cutover:cutover",
        "Make sure, step by step, that consumers can go on at the target at exactly the record that they would have read next.",
    ),
    Later(
        "demote",
        "verbatim.commands.demote:demote",
        "Let the link copy promoted TOPICs again (names or regular expressions), from where it ended.",
    ),
    Later(
        "drill",
        "verbatim.commands.drill:drill",
        "Play the loss of the source: cut it off, fail over, let it back, and tell what was lost and how long it took.",
    ),
    Later(
        "failover",
        "verbatim.commands.failover:failover",
        "Let consumers go on at the target when the source is gone, and tell what may be missing.",
    ),
    Later(
        "init",
        "verbatim.commands.init:init",
        "Write the files of a link, into an empty folder, from what `verbatim scan --output json` wrote to SCAN.",
    ),
    Later(
        "limit",
        "verbatim.commands.steering:limit",
        "Let no more than so much be read: of each of the TOPICs (names or regular expressions), or of all topics together.",
    ),
    Later(
        "links",
        "verbatim.commands.links:links_command",
        "Show all links of a target cluster: where each comes from, how far it is, and which are sick.",
    ),
    Later(
        "move-group",
        "verbatim.commands.move_group:move_group",
        "Move consumer GROUPs to the target, one by one, while producers stay at the source; or back.",
    ),
    Later(
        "pause",
        "verbatim.commands.steering:pause",
        "Stop reading TOPICs at the source: names or regular expressions, none for all, also those that appear later.",
    ),
    Later(
        "pipeline",
        "verbatim.commands.pipeline:pipeline",
        "Try a pipeline's file, and show the link's: what is done with records on their way (docs: guides/pipelines).",
    ),
    Later(
        "plan",
        "verbatim.commands.plan:plan",
        "Show what the link would do, and what would keep it from doing so.",
    ),
    Later(
        "quickstart",
        "verbatim.quickstart.quickstart:quickstart",
        "See it work, on this machine, in a minute or two: needs nothing but Java 17.",
    ),
    Later(
        "resume",
        "verbatim.commands.steering:resume",
        "Go on reading TOPICs: names or regular expressions, none for all, whatever was paused.",
    ),
    Later(
        "scan",
        "verbatim.commands.scan:scan_command",
        "Show what a cluster holds, what moving it takes, and what stands in the way.",
    ),
    Later(
        "status",
        "verbatim.commands.status:status",
        "Show who runs, how far each topic is, what is paused or limited, and what has halted.",
    ),
    Later(
        "top",
        "verbatim.commands.top:top",
        "Watch a link in the terminal: halts first, then topics by how far they are behind.",
    ),
    Later(
        "topics",
        "verbatim.commands.topics:topics_command",
        "Show each source topic and its copy, with what the deduplicator would change of the copy's configuration.",
    ),
    Later(
        "verify",
        "verbatim.commands.verify:verify",
        "Compare source and destination record by record, independently of what the link believes.",
    ),
]
"""A test sees to it that each says what its command says."""


class _Commands(click.Group):
    """Called as the console script, it ends with one line and an exit code for each of the project's
    errors."""

    def __call__(self, *args: Any, **extra: Any) -> Any:
        entry(self, prog_name="verbatim")


@click.group(cls=_Commands, commands=COMMANDS)
@click.version_option(package_name="verbatim-kafka", prog_name="verbatim")
def cli() -> None:
    """Look after links that copy Kafka topics from cluster to cluster, exactly once."""
