"""How a link would do on many executors, by bench/scaling_model.py. Starts and measures nothing. Run:
uv run python -m bench.scaling --executors 1,2,4,8,16,32,64,100

For each number of executors: how fast a backlog would go, and what would limit it; of traffic that comes
evenly which part is most in use, what it takes and how long records wait; and how long a start, the end of an
epoch and the loss of an executor hold them up.
"""

from __future__ import annotations

from dataclasses import replace

import click

from bench.scaling_model import (
    PARTITION_TAKES_S,
    SIZES,
    Link,
    boundary_s,
    catching_up,
    lost_s,
    start_s,
    steady,
)


class _Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers above zero, with commas between."""

    name = "numbers"

    def convert(
        self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if not isinstance(value, str):
            return value
        try:
            found = tuple(int(word) for word in value.split(","))
        except ValueError:
            found = ()
        if not found or min(found) < 1:
            self.fail(f"{value!r}: whole numbers above zero, with commas between: 1,2,4", param, ctx)
        return found


_COLUMNS = (
    "executors",
    "a backlog, records/s",
    "as it comes: most in use",
    "p50, p99 s",
    "cores of replicator, deduplicator, target",
    "mappings/s",
    "folds, of a core",
    "start s",
    "an epoch's end s",
    "loss of an executor s",
)
_ONE = click.IntRange(1)


@click.command()
@click.option("--executors", type=_Numbers(), default="1,2,4,8,16,32,64,100", show_default=True)
@click.option(
    "--cores", type=_ONE, default=4, show_default=True, help="CPUs of an executor, for both applications."
)
@click.option(
    "--lanes", type=_ONE, default=4, show_default=True, help="Of either application, on an executor."
)
@click.option("--partitions", type=_ONE, default=100_000, show_default=True)
@click.option("--busy", type=_ONE, help="Partitions to which something comes; all unless given.")
@click.option("--topic-partitions", type=_ONE, default=10, show_default=True, help="Of a topic.")
@click.option("--staging-partitions", type=_ONE, default=1_000, show_default=True)
@click.option("--records-per-second", type=_ONE, default=100_000, show_default=True)
@click.option(
    "--size",
    type=click.IntRange(SIZES[0], SIZES[-1]),
    default=1_000,
    show_default=True,
    help="Bytes of a value.",
)
@click.option("--small-batches", is_flag=True, help="The source's batches have 16 KiB, not 64 KiB and more.")
@click.option("--source-brokers", type=_ONE, default=6, show_default=True)
@click.option("--target-brokers", type=_ONE, default=6, show_default=True)
@click.option("--broker-cores", type=_ONE, default=16, show_default=True)
@click.option("--replicas", type=_ONE, default=3, show_default=True, help="At the target.")
@click.option(
    "--network",
    type=_ONE,
    default=25,
    show_default=True,
    help="Gbit/s of a broker, in each direction.",
)
@click.option(
    "--partition-takes",
    type=click.IntRange(0),
    default=round(PARTITION_TAKES_S * 1000),
    show_default=True,
    help="Milliseconds by which each further partition lengthens a transaction, an upper bound.",
)
@click.option(
    "--one-machine", is_flag=True, help="As where it was measured: brokers are on the only executor."
)
def main(
    executors: tuple[int, ...],
    busy: int | None,
    records_per_second: int,
    network: int,
    partition_takes: int,
    partitions: int,
    small_batches: bool,
    one_machine: bool,
    **given: int,
) -> None:
    """Reckon how a link does on so many executors."""
    if busy is not None and busy > partitions:
        raise click.BadParameter(f"{busy}, of {partitions} partitions", param_hint="--busy")
    if one_machine and executors != (1,):
        raise click.BadParameter("with --one-machine there is 1", param_hint="--executors")
    link = Link(
        partitions=partitions,
        busy=busy or partitions,
        records_per_s=records_per_second,
        network=network * 1e9 / 8,
        partition_takes_s=partition_takes / 1000,
        small_batches=small_batches,
        one_machine=one_machine,
        **given,
    )
    click.echo("| " + " | ".join(_COLUMNS) + " |")
    click.echo("|" + "---|" * len(_COLUMNS))
    for count in executors:
        click.echo(row(replace(link, executors=count)))


def row(link: Link) -> str:
    """A line of the table."""
    most, limit = catching_up(link)
    found = steady(link)
    waits = (
        "more than is copied"
        if found.p50_s is None or found.p99_s is None
        else f"{_about(found.p50_s)}, {_about(found.p99_s)}"
    )
    cells = [
        str(link.executors),
        f"{_about(most)}: {limit.name}",
        f"{found.limit.name} {found.limit.used:.0%}",
        waits,
        ", ".join(_about(found.cores[name]) for name in ("replicator", "deduplicator", "target")),
        _about(found.turns.moved),
        f"{found.fold:.0%}",
        _about(start_s(link)),
        _about(boundary_s(link)),
        _about(lost_s(link, found.turns.moved)) if link.executors > 1 else "until another comes",
    ]
    return f"| {' | '.join(cells)} |"


def _about(number: float) -> str:
    """Two digits: more would say what nobody knows."""
    return f"{float(f'{number:.2g}'):,.12g}"


if __name__ == "__main__":
    main()
