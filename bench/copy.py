"""A first look at how fast a link catches up: Verbatim alone, no peers. Run: uv run python -m bench.copy

Prints records/s and CPU per record of the steady part, and memory. `python -m bench` measures beside peers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import click

from bench import throughput
from bench.clusters import two_brokers
from bench.copiers import VERBATIM
from bench.load import Shape


@click.command()
@click.option("--records", default=3_000_000, show_default=True)
@click.option("--size", default=200, show_default=True, help="Bytes of a value.")
@click.option("--partitions", default=4, show_default=True)
@click.option("--batch-bytes", default=0, help="How large the source's batches are; 0: about a megabyte.")
@click.option(
    "--rounds",
    default=1,
    show_default=True,
    help="Links one after the other, over the same brokers, which warm up.",
)
@click.option("--output", type=click.Choice(["text", "json"]), default="text")
def main(records: int, size: int, partitions: int, batch_bytes: int, rounds: int, output: str) -> None:
    """Copy a topic through both applications and say how fast it went."""
    shape = Shape(size, records, partitions, batch_bytes=batch_bytes)
    with tempfile.TemporaryDirectory(prefix="verbatim-bench-") as folder, two_brokers(Path(folder)) as pair:
        for number in range(rounds):
            result = throughput.measure(pair, VERBATIM, f"bench{number}", shape)
            click.echo(json.dumps(result) if output == "json" else throughput.line(result))


if __name__ == "__main__":
    main()
