"""The command `verbatim status`: who runs, how far each topic is copied, what is paused, limited or halted.
Changes nothing, and reads nothing but the link's own topics: the source may be away.

Lag is what the lanes have said last, some seconds ago. What stands at the source and what is delivered are
said by different applications, so under load it is as good as a few seconds are. What the topics add up to is
common/link/link_status.py's part.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import click

from common.app.cli import aligned, echo_json, settings_options
from common.kafka.client import clients
from common.kafka.client.clients import Received
from common.link import identity, lane_words, link_status
from common.link.control_records import DEDUPLICATOR, REPLICATOR
from common.link.control_state import Control
from common.link.lane_words import Heard, hear
from common.link.permissions import OFFSETS
from common.ports import Deadline
from offsets.groups import Groups, shown
from replicator.driver.planner import PositionLog

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 60.0
APPLICATIONS = (REPLICATOR, DEDUPLICATOR, OFFSETS)
RATE_S = 8.0
"""Rates are over at least so long, where there were looks: lanes say something every three seconds."""
HALTED = 3
"""Exit code."""


@click.command()
@settings_options
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.pass_context
def status(context: click.Context, settings: Settings, output: str) -> None:
    """Show who runs, how far each topic is, what is paused or limited, and what has halted. Changes nothing.

    Needs the target alone. Exit code 3: a partition has halted.
    """
    with closing(Looks(settings)) as looks:
        found = looks.look()
    if output == "json":
        echo_json(found)
    else:
        click.echo(text(found))
    context.exit(HALTED if found["halts"] else 0)


class Looks:
    """Looks at a link again and again, over connections that stay. Raises LinkRefused where there is no such
    link."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        deadline = Deadline(CALL_S)
        with ExitStack() as opened:
            self._link, self._control = identity.prepare(
                settings, False, deadline, make=False, ask_source=False
            )
            opened.enter_context(closing(self._control))
            config = settings.client_config("destination", "admin")
            reading = settings.client_config("destination", "consumer")
            self._heard: Heard = {}
            self._earlier: deque[tuple[float, Heard]] = deque()
            positions = PositionLog(settings.positions_topic, reading, clients.admin(config), self._hear)
            self._positions = opened.enter_context(closing(positions))
            self._groups = opened.enter_context(closing(Groups(config, "target")))
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def look(self) -> dict[str, Any]:
        """What there is now; from the second look on, what was delivered a second meanwhile."""
        deadline = Deadline(CALL_S)
        state = self._control.refresh(deadline)
        self._positions.refresh(deadline)
        members = self._groups.members(deadline)
        name = self._settings.application_name
        leads = {each: members.get(f"{name}.{each}.leader", False) for each in APPLICATIONS}
        found = summary(self._settings, state, self._heard, leads, int(time.time() * 1000))
        now, heard = time.monotonic(), dict(self._heard)
        if self._earlier:
            link_status.rate(found, self._earlier[0][1], heard)
        self._earlier.append((now, heard))
        while len(self._earlier) > 1 and self._earlier[1][0] <= now - RATE_S:
            self._earlier.popleft()
        return {
            "link": name,
            "source": self._link.source_cluster,
            "target": self._link.target_cluster,
            **found,
        }

    def _hear(self, message: Received) -> None:
        if (said := lane_words.decode(message.key(), message.value())) is not None:
            hear(self._heard, said, message.timestamp()[1])


def summary(
    settings: Settings, state: Control, heard: Heard, leads: Mapping[str, bool | None], now_ms: int
) -> dict[str, Any]:
    """What is shown of a link. Pure."""
    told = link_status.told(settings, state)
    return link_status.summary(told, link_status.partitions(heard), heard, leads, now_ms)


def text(found: dict[str, Any]) -> str:
    """The same for people."""
    lines = [heading(found), ""]
    cells = [["APPLICATION", "STATE", "LED BY", "LANES", "HEARD OF"]]
    for one in found["applications"]:
        said = "-" if one["said_s"] is None else f"{one['said_s']:,.0f} s ago"
        lanes = str(one["lanes"]) if one["lanes"] else "-"
        cells.append(
            [
                one["application"],
                "runs" if one["runs"] else "does not run",
                one["instance"] or "-",
                lanes,
                said,
            ]
        )
    lines += [aligned(cells), ""]
    cells = [["TOPIC", "DESTINATION", "PARTITIONS", "LAG", "STATE"]]
    for line in found["topics"]:
        cells.append(
            [
                line["topic"],
                line["destination"] or "-",
                str(line["partitions"] or "-"),
                count_or_unknown(line["lag"]),
                state_of(line),
            ]
        )
    lines.append(aligned(cells) if len(cells) > 1 else "no topic yet")
    moves = [f"{shown(move['group'])} ({move['state']})" for move in found["group_moves"]]
    if moves:
        lines += ["", f"groups on their way to the target, or there: {', '.join(moves)}"]
    if any(found["limit"].values()):
        lines += ["", f"all together: {_limit(found['limit'])}"]
    for halt in found["halts"]:
        lines += [
            "",
            f"HALTED {halt['topic']}-{halt['partition']} ({halt['application']}): {halt['detail'] or halt['reason']}",
            f"  what to do: {halt['runbook']}",
            *(f"  {way['what']}: {way['command']}".removesuffix(": ") for way in halt["ways_on"]),
        ]
    return "\n".join(lines)


def heading(found: dict[str, Any]) -> str:
    return f"{found['link']}: {found['source']} to {found['target']}, {count_or_unknown(found['lag'])} to go"


def count_or_unknown(lag: int | None) -> str:
    return "?" if lag is None else f"{lag:,}"


def rate_or_unknown(rate: float | None) -> str:
    return "?" if rate is None else f"{rate:,.0f}"


def state_of(line: dict[str, Any]) -> str:
    found = ["paused" if line["paused"] else "copied" if line["copied"] else "not copied"]
    if line["promotion"]:
        found[0] = line["promotion"]
    elif line["paused"] and line["paused_by"] != line["topic"]:
        found[0] += f" by {line['paused_by']}"
    if line["halted_partitions"]:
        found.append(f"{line['halted_partitions']} halted")
    found += [f"{line[name]:,} {words}" for name, words in link_status.LEFT.items() if line.get(name)]
    if line["bytes_per_second"] or line["records_per_second"]:
        found.append(_limit(line))
    return ", ".join(found)


def _limit(line: dict[str, Any]) -> str:
    parts = [
        f"{line[f'{what}_per_second']:,} {what}/s"
        for what in ("bytes", "records")
        if line[f"{what}_per_second"]
    ]
    return f"at most {' and '.join(parts)}"
