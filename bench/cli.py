"""The benchmark's command line: `python -m bench`, and `python -m bench report` to write down what it
found."""

from __future__ import annotations

import math
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

import click

from bench import copiers, report, sitting
from bench.clusters import NEAR, Far, two_brokers
from bench.sitting import Scale, Sitting

PARTS = ("throughput", "latency", "recovery")
QUICK = Scale(
    records=0.5,
    shapes=sitting.MAIN_SHAPES[:1],
    main_copiers=(copiers.VERBATIM, "mm2-throughput", copiers.FLOOR),
    rates=(1_000, 5_000),
    rate_s=6.0,
    pause_minutes=0.0,
    warm_s=20.0,
)
_SHAPES = {shape.name: shape for shape in sitting.SHAPES + sitting.OTHER_SHAPES}


@click.group(invoke_without_command=True)
@click.option("--only", type=click.Choice(PARTS), multiple=True, help="Only this part; may be given again.")
@click.option(
    "--quick",
    is_flag=True,
    help="A first look, in some minutes: fewer shapes, rates and copiers, one repetition.",
)
@click.option(
    "--repetitions", type=click.IntRange(min=1), help="Of everything; 3 unless given (1 with --quick)."
)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Keep the figures in this JSON file."
)
@click.option("--append", is_flag=True, help="Add to the file's sittings instead of starting it anew.")
@click.option(
    "--shape",
    "shapes",
    type=click.Choice(list(_SHAPES)),
    multiple=True,
    help="Only this shape; may be given again.",
)
@click.option(
    "--copier",
    "names",
    type=click.Choice(copiers.NAMES),
    multiple=True,
    help="Only this copier; may be given again.",
)
@click.option(
    "--rate",
    "rates",
    type=click.IntRange(min=1),
    multiple=True,
    help="Only this rate, in records/s; may be given again.",
)
@click.option(
    "--pause-minutes",
    type=click.FloatRange(min=0),
    help="How long to look for the longest pause at 1,000 records/s.",
)
@click.option(
    "--far-source",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Round trip of copiers to the source, in ms.",
)
@click.option(
    "--far-target",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Round trip of copiers to the target, in ms.",
)
@click.option(
    "--line",
    type=click.FloatRange(min=1),
    default=math.inf,
    help="What a line to a cluster that is far away carries in each direction, in Mbit/s. [default: no limit]",
)
@click.option(
    "--cut",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Percent of the connections to a cluster that is far away that are cut each second.",
)
@click.pass_context
def cli(
    context: click.Context,
    only: tuple[str, ...],
    quick: bool,
    repetitions: int | None,
    output: Path | None,
    append: bool,
    shapes: tuple[str, ...],
    names: tuple[str, ...],
    rates: tuple[int, ...],
    pause_minutes: float | None,
    far_source: float,
    far_target: float,
    line: float,
    cut: float,
) -> None:
    """Measure Verbatim, MirrorMaker 2 and a plain loop, side by side on two real brokers of this machine.

    Takes two to three hours; nothing else should run meanwhile. Needs Java 17. Figures of one machine are
    worth comparing only with figures of the same sitting.
    """
    if context.invoked_subcommand is not None:
        return
    scale = _scale(quick, shapes, names, rates, pause_minutes)
    repetitions = repetitions or (1 if quick else 3)
    parts = only or PARTS
    # Whatever has been started ends with the `with` blocks below, so a signal must unwind them.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    copiers.lay_by_classes(click.echo)
    about = sitting.about_the_machine(sitting.command_line(sys.argv[1:]))
    with (
        tempfile.TemporaryDirectory(prefix="verbatim-bench-") as folder,
        two_brokers(
            Path(folder), *(Far(ms, line, cut) if ms else NEAR for ms in (far_source, far_target))
        ) as pair,
    ):
        run = Sitting(pair, scale, click.echo)
        try:
            if "throughput" in parts:
                # For the others the bare topic does it: they are paced, and count only what comes after some
                # seconds.
                run.warm_up()
                run.throughput(repetitions)
            if "latency" in parts:
                run.latency(repetitions)
            if "recovery" in parts:
                run.recovery(repetitions)
        finally:
            # Also what was measured before something failed.
            if output is not None and run.results:
                sitting.save(output, about, run.results, append)
    click.echo("")
    click.echo(report.as_markdown([{**about, "results": run.results}]))
    context.exit(1 if any(result["kind"] == "failure" for result in run.results) else 0)


def _scale(
    quick: bool,
    shapes: tuple[str, ...],
    names: tuple[str, ...],
    rates: tuple[int, ...],
    pause_minutes: float | None,
) -> Scale:
    base = QUICK if quick else Scale()
    return Scale(
        records=base.records,
        shapes=tuple(_SHAPES[name] for name in shapes) or base.shapes,
        chosen=names,
        main_copiers=base.main_copiers,
        rates=rates or base.rates,
        rate_s=base.rate_s,
        pause_minutes=base.pause_minutes if pause_minutes is None else pause_minutes,
        warm_s=base.warm_s,
    )


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@cli.command("report")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--into",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("docs/internals/performance.md"),
    show_default=True,
)
def report_command(file: Path, into: Path) -> None:
    """Write the figures of a JSON FILE into the page on performance, between its generated markers, and plot
    them beside it."""
    report.write(file, into)
    click.echo(f"{into} and its plot hold the figures of {file}")
