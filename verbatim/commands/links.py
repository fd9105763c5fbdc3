"""The command `verbatim links`: all links of a target cluster, and how each is. Changes nothing. What is
found out is verbatim/links/survey.py's part."""

from __future__ import annotations

import functools
import textwrap
from typing import TYPE_CHECKING, Any

import click

from common.app.cli import aligned, echo_json, settings_options
from common.config.loading import NO_SOURCE
from verbatim.commands.status import HALTED
from verbatim.commands.top import printable
from verbatim.links.summary import age
from verbatim.links.survey import look

if TYPE_CHECKING:
    from common.config.settings import Settings

WIDTH = 110
MOST_NAME = 24
_HEAD = ["LINK", "SOURCE", "TOPICS", "PARTITIONS", "LAG", "HEARD", "GROUPS", "STATE"]


@click.command("links")
@functools.partial(settings_options, assumed=NO_SOURCE)
@click.option(
    "--exclude", default="", metavar="LINKS", help="Links to leave out: names or regular expressions."
)
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--json", "output", flag_value="json", help="The same as --output json.")
@click.pass_context
def links_command(context: click.Context, settings: Settings, exclude: str, output: str) -> None:
    """Show all links of a target cluster: where each comes from, how far it is, and which are sick. Changes
    nothing.

    Needs nothing but the way to the target (KAFKA_CLUSTERS_DESTINATION_...): links are found by their control
    topics, `<link>.control`. One more can be named with --control-topic. Exit code 3: a link has halted, does
    not run, or can't be read.
    """
    found = look(settings, exclude)
    if output == "json":
        echo_json(found)
    else:
        click.echo(text(found))
    context.exit(HALTED if found["sick"] else 0)


def text(found: dict[str, Any]) -> str:
    """The same for people: a table of at most 110 columns, then what is wrong. Pure."""
    # A link's name is what somebody has written into a topic.
    links = [
        {**one, "link": printable(one["link"]), "why": [printable(why) for why in one["why"]]}
        for one in found["links"]
    ]
    if not links:
        return f"{found['target']}: no link is found"
    lines = [f"{found['target']}: {len(links)} links, {found['sick']} of them sick", ""]
    lines += [aligned([_HEAD, *map(_cells, links)])]
    for link in links:
        for why in link["why"]:
            first = "" if lines[-1].startswith(f"{link['link']}: ") else "\n"
            lines.append(first + textwrap.fill(f"{link['link']}: {why}", WIDTH, subsequent_indent="  "))
    return "\n".join(lines)


def _cells(link: dict[str, Any]) -> list[str]:
    said = [line["said_s"] for line in link["applications"] if line["said_s"] is not None]
    lag = "?" if link["lag"] is None else f"{link['lag']:,}{'+' if link['topics_without_lag'] else ''}"
    numbers = ("-" if link[of] is None else str(link[of]) for of in ("topics", "partitions", "groups"))
    topics, partitions, groups = numbers
    heard = age(max(said)) if said else "-"
    return [
        short(link["link"]),
        short(printable(link["source"] or "-")),
        topics,
        partitions,
        lag,
        heard,
        groups,
        link["state"],
    ]


def short(name: str) -> str:
    """A name that fits its column, its ends left."""
    return name if len(name) <= MOST_NAME else f"{name[: MOST_NAME - 12]}…{name[-11:]}"
