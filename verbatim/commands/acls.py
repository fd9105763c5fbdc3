"""The command `verbatim acls`: the access rules of the copies beside those of their sources, and what would
be granted and revoked.

Changes nothing. What the rules should be is decided in common/link/acl_sync.py; the deduplicator grants and
revokes.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from common.app.cli import aligned, echo_json, settings_options
from common.kafka.client import acls as acl_calls
from common.kafka.client import clients
from common.kafka.model import LITERAL
from common.link import acl_sync, identity
from common.link.promotions import destinations
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 60.0

HEADINGS = ("TOPIC", "DESTINATION", "ACTION", "PERMISSION", "OPERATION", "PRINCIPAL", "HOST")


@click.command("acls")
@settings_options
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def acls_command(settings: Settings, output: str) -> None:
    """Show the access rules of each copy: in step, to be granted, to be revoked, or set by somebody else.
    Changes nothing.

    With ACL_SYNC=off it shows what ACL_SYNC=read would do.
    """
    lines = look(settings)
    if output == "json":
        echo_json(lines)
    else:
        names = [heading.lower() for heading in HEADINGS]
        click.echo(aligned([list(HEADINGS), *([str(line[name]) for name in names] for line in lines)]))


def look(settings: Settings) -> list[dict[str, Any]]:
    """One mapping for each rule of each copy. Raises LinkRefused without such a link, without the right, or
    without an authorizer."""
    deadline = Deadline(CALL_S)
    found, control = identity.prepare(settings, False, deadline, make=False)
    with closing(control):
        state = control.refresh(deadline)
    of_source = dict(state.acls)
    if found.source_reached:
        everything = acl_calls.topic_acls(
            clients.admin(settings.client_config("source", "admin")), "source", deadline
        )
        of_source |= {topic: acl_sync.of_topic(everything, topic) for topic in state.copies()}
    there = acl_calls.topic_acls(
        clients.admin(settings.client_config("destination", "admin")), "target", deadline
    )
    lines = []
    copies = state.copies()
    promoted = destinations(state.steering.promotions)
    wanted = acl_sync.on_copies(
        of_source, copies, state.copied_into, settings.acl_policy(), promoted, state.granted
    )
    for destination in sorted(set(copies.values()) - (promoted - wanted.keys())):
        topic = ", ".join(sorted(state.copied_into.get(destination, ())))
        rules = wanted.get(destination, set())
        here = {acl for acl in there if acl.pattern == LITERAL and acl.name == destination}
        for step in acl_sync.steps(rules, here, state.granted.get(destination, frozenset())):
            acl = step.acl
            lines.append(
                {
                    "topic": topic,
                    "destination": destination,
                    "action": step.action,
                    "permission": acl.permission,
                    "operation": acl.operation,
                    "principal": acl.principal,
                    "host": acl.host,
                }
            )
    return lines
