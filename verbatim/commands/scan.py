"""The command `verbatim scan`: options and output. What is found out is verbatim/scan/scan.py's part."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TextIO

import click

from common.app.cli import Duration, echo_json, settings_options
from common.config.loading import NO_TARGET
from verbatim.commands.plan import silence
from verbatim.scan.moving import Given
from verbatim.scan.report import as_html, as_text
from verbatim.scan.scan import scan

if TYPE_CHECKING:
    from common.config.settings import Settings

_PRICE = click.FloatRange(min=0)


@click.command("scan")
@functools.partial(settings_options, assumed=NO_TARGET)
@click.option(
    "--seconds",
    type=Duration(),
    default="5s",
    show_default=True,
    help="Between the two looks that tell rates.",
)
@click.option(
    "--batches",
    type=click.IntRange(min=0),
    default=2000,
    show_default=True,
    help="Of so many partitions, at most, the newest batch is looked at.",
)
@click.option(
    "--line", type=click.FloatRange(min=0, min_open=True), metavar="MBIT", help="The line, in Mbit/s."
)
@click.option("--line-price", type=_PRICE, metavar="PRICE", help="Of a GB that is read at the source.")
@click.option("--zone-price", type=_PRICE, metavar="PRICE", help="Of a GB that crosses zones at the target.")
@click.option("--disk-price", type=_PRICE, metavar="PRICE", help="Of a GB of disk for a month.")
@click.option("--html", type=click.File("w", encoding="utf-8"), help="Write the report as a page, too.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def scan_command(
    settings: Settings,
    seconds: float,
    batches: int,
    line: float | None,
    line_price: float | None,
    zone_price: float | None,
    disk_price: float | None,
    html: TextIO | None,
    output: str,
) -> None:
    """Show what a cluster holds, what moving it takes, and what stands in the way. Changes nothing.

    Needs nothing but the way to the source (KAFKA_CLUSTERS_SOURCE_...); KAFKA_CLUSTERS_SOURCE_TOPIC narrows
    it to some topics. With the way to a target too, `verbatim plan` says what stands in the way there. What
    may not be read is named, and left out. No record is read, only headers of batches.
    """
    given = Given(
        line, line_price, zone_price, disk_price, settings.replication_factor, settings.staging_partitions
    )
    with silence():
        found = scan(settings, seconds, batches, given)
    if html is not None:
        html.write(as_html(found))
    if output == "json":
        echo_json(found)
    else:
        click.echo(as_text(found))
