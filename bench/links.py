"""What many links in one pair of processes cost while nothing comes. Run: uv run python -m bench.links

How fast they are with traffic: `python -m bench --only throughput --shape 200B-50x1p --copier verbatim-links
--copier verbatim`.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click

from bench.clusters import two_brokers
from bench.copiers import Copier, destination, links_of
from bench.usage import Watch
from common.errors import VerbatimError

_START_S = 300.0
_LINK = "links"


@click.command()
@click.option("--links", "count", default=50, show_default=True)
@click.option("--minutes", default=2.0, show_default=True, help="How long nothing comes.")
def main(count: int, minutes: float) -> None:
    """Start them, wait until each has made its copy's topic, and say what they take from then on."""
    topics = [f"idle-{i:03}" for i in range(count)]
    with tempfile.TemporaryDirectory(prefix="verbatim-bench-") as folder, two_brokers(Path(folder)) as pair:
        pair.source.create(topics, 1)
        wanted = {destination(_LINK, topic) for topic in topics}
        with Copier(_LINK, "", links_of(pair, _LINK, "idle-.*", Path(folder))) as copier:
            began = time.monotonic()
            copier.start()
            while not wanted.issubset(pair.target.topics()):
                copier.check()
                if time.monotonic() - began > _START_S:
                    raise VerbatimError(f"{count} links are not up within {_START_S:.0f} s")
                time.sleep(1.0)
            click.echo(f"{count} links up in {time.monotonic() - began:.0f} s")
            time.sleep(30.0)
            eldest = copier.pids()
            with Watch({**eldest, "target broker": pair.target.pid}, pair.target.log_folder) as watch:
                idle = time.monotonic()
                time.sleep(60.0 * minutes)
            for line in watch.lines(idle, time.monotonic()):
                click.echo(line)
            click.echo(f"both together {sum(watch.peak_bytes[name] for name in eldest) >> 20:,} MiB at most")


if __name__ == "__main__":
    main()
