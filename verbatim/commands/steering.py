"""The commands `verbatim pause`, `resume` and `limit`: how a link runs, changed without a restart, and what
is in force.

They write to the control topic and read it; the replicator's lanes obey. What the records add up to is
common/link/throttling.py's part.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from common.app.cli import aligned, echo_json, settings_options
from common.config import topic_names
from common.errors import SettingsError
from common.link import identity
from common.link.control_kinds import ControlRecord, Limit, Pause
from common.link.control_state import Control
from common.link.link_status import in_force
from common.link.throttling import rate
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.settings import Settings
    from common.link.control_log import ControlLog

CALL_S = 60.0

_output = click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
_topics = click.argument("topics", nargs=-1, metavar="[TOPIC]...")


@click.command()
@settings_options
@_topics
@_output
def pause(settings: Settings, topics: tuple[str, ...], output: str) -> None:
    """Stop reading TOPICs at the source: names or regular expressions, none for all, also those that appear
    later.

    The running replicator obeys within seconds, one that starts later too. What is staged is still delivered.
    Exactly where each partition stands it goes on, as long as the source keeps its records.
    """
    _steer(settings, topics, output, lambda entries: Pause(entries, True))


@click.command()
@settings_options
@_topics
@_output
def resume(settings: Settings, topics: tuple[str, ...], output: str) -> None:
    """Go on reading TOPICs: names or regular expressions, none for all, whatever was paused.

    What was said last of a topic counts: one can be taken out of many that are paused.
    """
    _steer(settings, topics, output, lambda entries: Pause(entries, False))


@click.command()
@settings_options
@_topics
@click.option(
    "--bytes-per-second", metavar="SIZE", help="Such as 500KB, 10MB or 64MiB; of frames, before compression."
)
@click.option("--records-per-second", type=click.IntRange(1, 10**12), metavar="COUNT")
@click.option("--none", "none", is_flag=True, help="Take the limit away.")
@_output
def limit(
    settings: Settings,
    topics: tuple[str, ...],
    bytes_per_second: str | None,
    records_per_second: int | None,
    none: bool,
    output: str,
) -> None:
    """Let no more than so much be read: of each of the TOPICs (names or regular expressions), or of all
    topics together.

    Replaces the limit that was there. A topic's own comes on top of that of all together.
    """
    given = bytes_per_second is not None or records_per_second is not None
    if given == none:
        raise SettingsError("limit: give --bytes-per-second, --records-per-second or both, or else --none")
    try:
        size = None if bytes_per_second is None else rate(bytes_per_second)
    except ValueError as error:
        raise SettingsError(f"--bytes-per-second: {error}") from None
    _steer(settings, topics, output, lambda entries: Limit(entries, size, records_per_second))


def _steer(
    settings: Settings,
    topics: tuple[str, ...],
    output: str,
    record: Callable[[tuple[str, ...]], ControlRecord],
) -> None:
    with closing(_opened(settings)) as control:
        deadline = Deadline(CALL_S)
        entries = checked(settings, topics, control.refresh(deadline))
        control.append(record(tuple(entries)), deadline)
        _show(settings, control.refresh(deadline), output)


def checked(settings: Settings, topics: tuple[str, ...], state: Control) -> list[str]:
    """The entries of the command line. Raises SettingsError for one that is none, and for a name that the
    link neither copies nor selects: what it selects may be still to come."""
    steering = state.steering
    known = {*state.running_topics(), *(entry for entry, _ in (*steering.pauses, *steering.limits))}
    entries = [entry for topic in topics for entry in topic_names.split_entries(topic)]
    if topics and not entries:
        raise SettingsError("TOPIC: names no topic")
    for entry in entries:
        try:
            topic_names.compiled(entry)
        except ValueError as error:
            raise SettingsError(f"TOPIC: {error}") from None
        if topic_names.is_name(entry) and entry not in known and not settings.selects(entry):
            raise SettingsError(
                f"TOPIC: {entry} is not copied by this link, and KAFKA_CLUSTERS_SOURCE_TOPIC does not select it"
            )
    return entries


def table(found: dict[str, Any]) -> str:
    """The same as aligned text, the link first."""
    cells = [["TOPIC", "STATE", "BYTES/S", "RECORDS/S", "PAUSED BY"]]
    cells.append(["(all together)", "-", *_rates(found["limit"]), "-"])
    for line in found["topics"]:
        state = "paused" if line["paused"] else "running" if line["copied"] else "not copied"
        state = line["promotion"] or state
        if line["halted_partitions"]:
            state += f", {line['halted_partitions']} halted"
        cells.append([line["topic"], state, *_rates(line), line["paused_by"] or "-"])
    return aligned(cells)


def _rates(limit: dict[str, Any]) -> list[str]:
    rates = (limit["bytes_per_second"], limit["records_per_second"])
    return ["-" if value is None else f"{value:,}" for value in rates]


def _opened(settings: Settings) -> ControlLog:
    return identity.prepare(settings, False, Deadline(CALL_S), make=False, ask_source=False)[1]


def _show(settings: Settings, state: Control, output: str) -> None:
    found = in_force(settings, state)
    if output == "json":
        echo_json(found)
    else:
        click.echo(table(found))
