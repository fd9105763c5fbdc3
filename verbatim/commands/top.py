"""The command `verbatim top`: what `verbatim status` shows, live and as large as the terminal. What is
looked at is status's part."""

from __future__ import annotations

import curses
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

import click
from confluent_kafka import KafkaException

from common.app.cli import aligned, settings_options
from common.errors import KafkaTimeout
from verbatim.commands.status import HALTED, Looks, count_or_unknown, heading, rate_or_unknown, state_of, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.config.settings import Settings

ENDS = ("q", "Q")


class Screen(Protocol):
    """What is needed of a curses window."""

    def getmaxyx(self) -> tuple[int, int]: ...
    def erase(self) -> None: ...
    def addstr(self, y: int, x: int, text: str, attributes: int, /) -> None: ...
    def refresh(self) -> None: ...
    def timeout(self, delay: int, /) -> None: ...
    def getch(self) -> int: ...


@click.command()
@settings_options
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How long between two looks.",
)
@click.pass_context
def top(context: click.Context, settings: Settings, every_s: float) -> None:
    """Watch a link in the terminal: halts first, then topics by how far they are behind.

    Changes nothing; needs the target alone. `q` or Ctrl-C ends it. Where the output is no terminal, it prints
    once what `verbatim status` does. Exit code 3: a partition has halted.
    """
    with closing(Looks(settings)) as looks:
        found = looks.look()
        if sys.stdout.isatty() and sys.stdin.isatty():
            found = curses.wrapper(watch, looks.look, found, every_s)
        else:
            click.echo(text(found))
    context.exit(HALTED if found["halts"] else 0)


def watch(
    screen: Screen, look: Callable[[], dict[str, Any]], found: dict[str, Any], every_s: float
) -> dict[str, Any]:
    """Draw until somebody ends it: what was found last. A look that fails for a while is told and tried
    again."""
    trouble, look_at = "", time.monotonic() + every_s
    try:
        while True:
            draw(screen, found, trouble)
            screen.timeout(max(1, int((look_at - time.monotonic()) * 1000)))
            key = screen.getch()
            if key in map(ord, ENDS):
                return found
            if time.monotonic() < look_at:
                continue  # another key, or the terminal has another size
            try:
                found, trouble = look(), ""
            except (KafkaException, KafkaTimeout) as error:
                trouble = f"not seen since: {error}"
            look_at = time.monotonic() + every_s
    except KeyboardInterrupt:
        return found


def draw(screen: Screen, found: dict[str, Any], trouble: str) -> None:
    height, width = screen.getmaxyx()
    screen.erase()
    for y, (line, loud) in enumerate(lines_of(found, width, height, trouble)):
        try:
            screen.addstr(y, 0, line, curses.A_BOLD if loud else curses.A_NORMAL)
        except curses.error:
            break  # the last cell of the last line, or the terminal has shrunk meanwhile
    screen.refresh()


def lines_of(found: dict[str, Any], width: int, height: int, trouble: str = "") -> list[tuple[str, bool]]:
    """What fits into so many columns and lines, and what of it is loud: the link, what halts, who runs, and
    of the topics those that are furthest behind. Pure."""
    lines = [(heading(found), True), *([(trouble, True)] if trouble else []), ("", False)]
    lines += _halts(found, max(2, height // 3))
    lines += [(line, False) for line in _applications(found).splitlines()] + [("", False)]
    lines += [(line, False) for line in _topics(found, max(2, height - len(lines) - 1)).splitlines()]
    lines = [*lines[: height - 1], ("q ends", False)] if height > 1 else lines[:1]
    return [(printable(line)[: max(0, width - 1)], loud) for line, loud in lines]


def printable(line: str) -> str:
    """Without what could steer a terminal: details may hold what others have written."""
    return "".join(one if one.isprintable() else "?" for one in line)


def _halts(found: dict[str, Any], most: int) -> list[tuple[str, bool]]:
    halts, lines = found["halts"], []
    for halt in halts:
        command = next((way["command"] for way in halt["ways_on"] if way["command"]), halt["runbook"])
        lines += [
            (f"HALTED {halt['topic']}-{halt['partition']} ({halt['reason']}): {halt['detail']}", True),
            (f"  {command}", False),
        ]
    if len(lines) > most:
        shown = (most - 1) // 2
        lines = [*lines[: 2 * shown], (f"{len(halts) - shown} more halted: verbatim status", True)]
    return [*lines, ("", False)] if lines else []


def _applications(found: dict[str, Any]) -> str:
    cells = [
        [
            one["application"],
            "runs" if one["runs"] else "does not run",
            rate_or_unknown(one.get("records_per_second")),
            rate_or_unknown(one.get("bytes_per_second")),
            "-" if one["said_s"] is None else f"{one['said_s']:,.0f} s ago",
            one["instance"] or "-",
        ]
        for one in found["applications"]
    ]
    return aligned([["APPLICATION", "STATE", "RECORDS/S", "BYTES/S", "HEARD OF", "LED BY"], *cells])


def _topics(found: dict[str, Any], most: int) -> str:
    """The unknown first, then those furthest behind."""
    ordered = sorted(
        found["topics"], key=lambda one: (one["lag"] is not None, -(one["lag"] or 0), one["topic"])
    )
    cells = [
        [
            line["topic"],
            count_or_unknown(line["lag"]),
            rate_or_unknown(line.get("per_second")),
            str(line["partitions"] or "-"),
            state_of(line),
            line["destination"] or "-",
        ]
        for line in ordered[: most - 1]
    ]
    head = ["TOPIC", "LAG", "A SECOND", "PARTITIONS", "STATE", "DESTINATION"]
    return aligned([head, *cells]) if cells else "no topic yet"
