"""What the quick start says and shows: rich on a terminal, plain lines elsewhere; measures and decides
nothing."""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from verbatim.local.processes import HOST
from verbatim.verify.comparison import Kind

if TYPE_CHECKING:
    from verbatim.quickstart.progress import Progress
    from verbatim.verify.link import LinkReport

LINE_EVERY_S = 2.0


class Display(ABC):
    """What the user sees: things that happened, with the time since the start, and how far the link is."""

    def __init__(self, began: float | None = None) -> None:
        self.began = time.monotonic() if began is None else began

    def event(self, text: str) -> None:
        """Something happened."""
        self.say(f"{time.monotonic() - self.began:6.1f} s  {text}")

    @abstractmethod
    def say(self, text: str = "") -> None:
        """Lines that stand for themselves."""

    @abstractmethod
    def show(self, progress: Progress) -> None:
        """The present moment; to be called as often as one likes."""

    def close(self) -> None:
        """Show nothing more by itself."""
        return


class Lines(Display):
    """Without a terminal: a line now and then, when something has changed."""

    def __init__(self, every_s: float = LINE_EVERY_S) -> None:
        super().__init__()
        self._every_s = every_s
        self._next = 0.0
        self._last: tuple[int, ...] = ()

    def say(self, text: str = "") -> None:
        click.echo(text)

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        state = (progress.source_end, progress.staged, progress.delivered, progress.duplicates)
        if now < self._next or state == self._last:
            return
        self._next, self._last = now + self._every_s, state
        self.event(
            f"source {progress.source_end:,}, staged {progress.staged:,}, delivered {progress.delivered:,},"
            f" duplicates dropped {progress.duplicates:,}, lag {progress.lag:,}, {progress.rate:,.0f} records/s,"
            f" delay {seconds(progress.delay_s)}"
        )


class Screen(Display):
    """On a terminal: figures that rich keeps up to date, below what happened. `since`: the display that it
    goes on from."""

    def __init__(self, total: int, since: Display | None = None, console: Console | None = None) -> None:
        super().__init__(since.began if since is not None else None)
        self._total = total
        self._console = console or Console(highlight=False)
        self._live: Live | None = None

    def say(self, text: str = "") -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def show(self, progress: Progress) -> None:
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        self._live.update(self._figures(progress))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _figures(self, progress: Progress) -> RenderableType:
        bars = Table.grid(padding=(0, 2))
        bars.add_column(justify="right")
        bars.add_column(justify="right", min_width=9)
        bars.add_column()
        counts = {
            "source end": progress.source_end,
            "staged": progress.staged,
            "delivered": progress.delivered,
        }
        for name, count in counts.items():
            bars.add_row(name, f"{count:,}", ProgressBar(max(self._total, count, 1), count, width=40))
        figures = Text.assemble(
            ("  duplicates dropped ", "dim"), f"{progress.duplicates:,}",
            ("   lag ", "dim"), f"{progress.lag:,}",
            ("   records/s ", "dim"), f"{progress.rate:,.0f}",
            ("   delay ", "dim"), seconds(progress.delay_s),
        )  # fmt: skip
        return Group("", bars, figures)


def seconds(value: float | None) -> str:
    """A duration as people read it; a dash for None."""
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def verdict(report: LinkReport, records: int, kills: int) -> tuple[str, bool]:
    """The outcome in one line, and whether it is good: all `records` that were written are at the
    destination, once and in order."""
    count = {
        kind: sum(p.findings[kind].count for p in report.partitions if kind in p.findings) for kind in Kind
    }
    lost = count.pop(Kind.LOST) + sum(p.behind for p in report.partitions)
    twice, moved = count.pop(Kind.DUPLICATED), count.pop(Kind.REORDERED)
    equal = sum(p.equal for p in report.partitions)
    good = not report.failed() and equal == records
    parts = [f"{lost:,} lost", f"{twice:,} twice", f"{moved:,} out of order" if moved else "order kept"]
    parts += [f"{number:,} {kind}" for kind, number in count.items() if number]
    if equal != records:
        parts.append(f"{equal:,} found equal")
    if kills:
        parts.append("one kill survived" if good else "one kill")
    return f"{'ok' if good else 'FAILED'}: {records:,} records: {', '.join(parts)}", good


def command_prefix() -> str:
    """How the user starts commands: uv tells those that it runs that it is there."""
    return "uv run " if "UV" in os.environ else ""


def next_steps(
    variables: Mapping[str, str],
    pids: Mapping[str, int | None],
    ports: Mapping[str, int],
    logs: Iterable[Path],
) -> list[str]:
    """Commands to try while everything runs. `variables`: of the link; `pids` and health `ports` by
    application."""
    source = variables["KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS"]
    target = variables["KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS"]
    topic, prefix = variables["KAFKA_CLUSTERS_SOURCE_TOPIC"], command_prefix()
    # An installed tool has a Python of its own, which is not on the PATH.
    python = f"{prefix}python" if prefix else sys.executable
    write = (
        f"from confluent_kafka import Producer; p = Producer({{'bootstrap.servers': '{source}'}});"
        f" p.produce('{topic}', b'hello', b'me', partition=0); p.flush()"
    )
    read = (
        "from confluent_kafka import Consumer, TopicPartition;"
        f" c = Consumer({{'bootstrap.servers': '{target}', 'group.id': 'me'}}); p = TopicPartition('{topic}', 0);"
        " p.offset = max(0, c.get_watermark_offsets(p)[1] - 5); c.assign([p]);"
        " print(*[(m.offset(), m.key(), m.value()) for m in c.consume(5, 3)], sep='\\n')"
    )
    return [
        "",
        "Everything keeps running until Ctrl-C. To try in another terminal, in the same folder:",
        "",
        *(f"export {name}={value}" for name, value in {**variables, "HEALTH_PORT": "0"}.items()),
        "",
        "# write a record to the source; read the last ones of its partition at the target",
        f'{python} -c "{write}"',
        f'{python} -c "{read}"',
        "# compare both sides again",
        f"{prefix}verbatim verify",
        "# how the link is, in the terminal; and in a browser: "
        + " ".join(f"http://{HOST}:{port}/" for port in ports.values()),
        f"{prefix}verbatim top",
        "# how the applications are",
        *(f"curl -s {HOST}:{port}/readyz {HOST}:{port}/metrics   # {name}" for name, port in ports.items()),
        "# kill one, look, and start it again",
        *(f"kill -9 {pid}; {prefix}{name}" for name, pid in pids.items()),
        "",
        f"logs: {', '.join(map(str, logs))}",
        "",
    ]
