"""The command `verbatim accept-destination`: an operator's consent to write into a topic at the target that
is not, or no longer, the link's own.

It writes the consent to the control topic; the deduplicator looks at the destination again then. It counts
for the topic as it is: one that is deleted afterwards needs another one.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import click

from common.app.cli import echo_json, settings_options
from common.errors import SettingsError
from common.link import identity
from common.link.control_kinds import AcceptDestination
from common.link.control_state import Control
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 60.0


def known(settings: Settings, state: Control, source_name: str) -> set[str]:
    """The destinations of a link: those on record, and where its source topics would go; pure."""
    names = {to.topic for _, to in state.all_destinations()} | set(state.settled)
    for topic in state.running_topics():
        try:
            names.add(settings.destination_topic(topic, source_name))
        except SettingsError:
            continue  # it has none
    return names - {""}


@click.command("accept-destination")
@settings_options
@click.argument("destinations", nargs=-1, required=True, metavar="DESTINATION...")
@click.option("--output", type=click.Choice(["text", "json"]), default="text")
def accept_destination(settings: Settings, destinations: tuple[str, ...], output: str) -> None:
    """Let the link write into DESTINATIONs that hold records of somebody else's, have too few partitions, or
    were deleted at the target.

    One that is missing is made again; what was copied into the former one is not copied again. The running
    deduplicator follows it within seconds.
    """
    deadline = Deadline(CALL_S)
    found, control = identity.prepare(settings, False, deadline, make=False, ask_source=False)
    with closing(control):
        state = control.refresh(deadline)
        for name in destinations:
            if name not in known(settings, state, found.source_name):
                raise SettingsError(f"DESTINATION: {name} is no destination of this link")
        control.append(AcceptDestination(tuple(destinations)), deadline)
    if output == "json":
        echo_json({"destinations": list(destinations)})
    else:
        for name in destinations:
            click.echo(f"{name}: accepted as a destination as it is now")
