"""The command `verbatim status`: who runs, how far each topic is copied, what is paused, limited or halted.
Changes nothing, and reads nothing but the link's own topics: the source may be away.

Lag is what the lanes have said last, some seconds ago. What stands at the source and what is delivered are
said by different applications, so under load it is as good as a few seconds are.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from common.app.cli import aligned, echo_json, settings_options
from common.kafka.client import clients
from common.kafka.client.clients import Received
from common.link import identity, lane_counters
from common.link.control_records import DEDUPLICATOR, REPLICATOR
from common.link.control_state import Control
from common.link.lane_counters import Said
from common.link.lane_work import ALL, Work, together
from common.ports import Deadline
from offsets.groups import Groups
from replicator.driver.planner import PositionLog
from verbatim.commands.steering import in_force

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 60.0
OFFSETS = "offsets"
HALTED = 3
"""Exit code."""

Heard = dict[tuple[str, int], tuple[Said, int]]
"""By application and lane, what it has said last, and when (ms since 1970)."""


@click.command()
@settings_options
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option(
    "--watch",
    "every_s",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Look again and again, and show what is delivered a second; Ctrl-C ends it.",
)
@click.pass_context
def status(context: click.Context, settings: Settings, output: str, every_s: float | None) -> None:
    """Show who runs, how far each topic is, what is paused or limited, and what has halted. Changes nothing.

    Needs the target alone. Exit code 3: a partition has halted.
    """
    before: tuple[dict[str, Any], float] | None = None
    while True:
        found, now = look(settings), time.monotonic()
        if before is not None:
            add_rates(before[0], found, now - before[1])
        if output == "json":
            echo_json(found)
        else:
            if every_s is not None:
                click.clear()
            click.echo(text(found))
        if every_s is None:
            context.exit(HALTED if found["halts"] else 0)
        before = found, now
        time.sleep(every_s)


def add_rates(before: dict[str, Any], now: dict[str, Any], seconds: float) -> None:
    """What of each topic was delivered a second, between two looks: offsets. None where one of them does not
    tell. Pure."""
    was = {line["topic"]: line["delivered"] for line in before["topics"]}
    for line in now["topics"]:
        first, last = was.get(line["topic"]), line["delivered"]
        line["per_second"] = None if first is None or last is None else max(0.0, (last - first) / seconds)


def look(settings: Settings) -> dict[str, Any]:
    """Raises LinkRefused where there is no such link."""
    deadline = Deadline(CALL_S)
    link, control = identity.prepare(settings, False, deadline, make=False, ask_source=False)
    with closing(control):
        state = control.refresh(deadline)
    config = settings.client_config("destination", "admin")
    heard: Heard = {}

    def hear(message: Received) -> None:
        if (said := lane_counters.decode(message.key(), message.value())) is not None:
            heard[said.application, said.lane] = said, message.timestamp()[1]

    reading = settings.client_config("destination", "consumer")
    positions = PositionLog(settings.positions_topic, reading, clients.admin(config), hear)
    with closing(positions), closing(Groups(config, "target")) as groups:
        positions.refresh(deadline)
        members = groups.members(deadline)
    leads = {
        name: members.get(f"{settings.application_name}.{name}.leader", False)
        for name in (REPLICATOR, DEDUPLICATOR, OFFSETS)
    }
    force = in_force(settings, state)
    return {
        **force,
        "source": link.source_cluster,
        "target": link.target_cluster,
        "applications": applications(state, heard, leads, int(time.time() * 1000)),
        **standing(force["topics"], state, heard),
        "halts": halts(state),
    }


def newest(heard: Heard, application: str) -> list[tuple[Said, int]]:
    """What the lanes of its newest epoch have said. Pure, as all that follows."""
    own = [said for (name, _), said in heard.items() if name == application]
    last = max(((said.term, said.epoch) for said, _ in own), default=None)
    return [one for one in own if (one[0].term, one[0].epoch) == last]


def work(heard: Heard, application: str) -> Work:
    return together(said.work for said, _ in newest(heard, application))


def applications(state: Control, heard: Heard, leads: dict[str, bool], now_ms: int) -> list[dict[str, Any]]:
    """Those that copy, and `offsets` where it has ever led."""
    found = []
    for name, runs in leads.items():
        if name == OFFSETS and name not in state.leaders:
            continue
        own = newest(heard, name)
        said_ms = max((at for _, at in own), default=None)
        found.append(
            {
                "application": name,
                "runs": runs,
                "instance": state.led_by.get(name),
                "lanes": len(own),
                "said_s": None if said_ms is None else max(0.0, (now_ms - said_ms) / 1000),
            }
        )
    return found


def standing(lines: list[dict[str, Any]], state: Control, heard: Heard) -> dict[str, Any]:
    """Each of these topics with its destination and lag, and the lag of all: None where it is not known."""
    source, delivered = work(heard, REPLICATOR).of, work(heard, DEDUPLICATOR).of
    lags: dict[str, list[int | None]] = {}
    reached_of: dict[str, list[int]] = {}
    for (topic, _), counts in delivered.items():
        if "delivered_offset" in counts:
            reached_of.setdefault(topic, []).append(counts["delivered_offset"])
    for at, counts in source.items():
        end, reached = counts.get("end_offset"), delivered.get(at, Counter()).get("delivered_offset")
        lag = None if end is None or reached is None else max(0, end - reached)
        lags.setdefault(at[0], []).append(lag)
    topics, all_known, total = [], True, 0
    described = state.newest_topics()
    for line in lines:
        name = line["topic"]
        of_each = lags.get(name, [])
        whole = ALL in {partition for topic, partition in source if topic == name}
        known = [lag for lag in of_each if lag is not None]
        expected = described[name].partitions if name in described else 0
        lag = sum(known) if known and (whole or len(known) == expected) else None
        to = state.destinations.get(described[name].topic_id) if name in described else None
        topics.append(
            {
                **line,
                "destination": None if to is None else to.topic,
                "partitions": expected,
                "lag": lag,
                "delivered": sum(of_topic) if (of_topic := reached_of.get(name)) else None,
            }
        )
        total += lag or 0
        all_known &= lag is not None or not line["copied"]
    return {"topics": topics, "lag": total if all_known else None}


def halts(state: Control) -> list[dict[str, Any]]:
    return [
        {
            "topic": halt.topic,
            "partition": partition,
            "application": application,
            "reason": halt.reason,
            "detail": halt.detail,
            "runbook": f"docs: operations/halts#{halt.reason}",
        }
        for (application, (_, partition)), halt in sorted(
            state.halts.items(), key=lambda one: (one[1].topic, one[0][1][1], one[0][0])
        )
    ]


def text(found: dict[str, Any]) -> str:
    """The same for people."""
    lines = [f"{found['link']}: {found['source']} to {found['target']}, {_lag(found['lag'])} to go", ""]
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
    watched = any("per_second" in line for line in found["topics"])
    cells = [["TOPIC", "DESTINATION", "PARTITIONS", "LAG", *(["A SECOND"] if watched else []), "STATE"]]
    for line in found["topics"]:
        cells.append(
            [
                line["topic"],
                line["destination"] or "-",
                str(line["partitions"] or "-"),
                _lag(line["lag"]),
                *([_rate(line.get("per_second"))] if watched else []),
                _state(line),
            ]
        )
    lines.append(aligned(cells) if len(cells) > 1 else "no topic yet")
    if any(found["limit"].values()):
        lines += ["", f"all together: {_limit(found['limit'])}"]
    for halt in found["halts"]:
        lines += [
            "",
            f"HALTED {halt['topic']}-{halt['partition']} ({halt['application']}): {halt['detail'] or halt['reason']}",
            f"  what to do: {halt['runbook']}",
        ]
    return "\n".join(lines)


def _lag(lag: int | None) -> str:
    return "?" if lag is None else f"{lag:,}"


def _rate(rate: float | None) -> str:
    return "?" if rate is None else f"{rate:,.0f}"


def _state(line: dict[str, Any]) -> str:
    found = ["paused" if line["paused"] else "copied" if line["copied"] else "not copied"]
    if line["paused"] and line["paused_by"] != line["topic"]:
        found[0] += f" by {line['paused_by']}"
    if line["halted_partitions"]:
        found.append(f"{line['halted_partitions']} halted")
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
