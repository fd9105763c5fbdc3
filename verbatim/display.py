"""How the quick start is shown: rich on a terminal, plain lines elsewhere; measures nothing."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from verbatim.progress import Progress

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
    """On a terminal: a table that rich keeps up to date, below what happened."""

    def __init__(self, total: int, since: Display | None = None, console: Console | None = None) -> None:
        super().__init__(since.began if since is not None else None)
        self._total = total
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, refresh_per_second=8, transient=True)
        self._shown = False

    def say(self, text: str = "") -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def show(self, progress: Progress) -> None:
        if not self._shown:
            self._shown = True
            self._live.start()
        self._live.update(self._table(progress))

    def close(self) -> None:
        if self._shown:
            self._shown = False
            self._live.stop()

    def _table(self, progress: Progress) -> RenderableType:
        bars = Table.grid(padding=(0, 2))
        bars.add_column(justify="right")
        bars.add_column(justify="right", min_width=9)
        bars.add_column()
        for name, count in (
            ("source end", progress.source_end),
            ("staged", progress.staged),
            ("delivered", progress.delivered),
        ):
            bars.add_row(name, f"{count:,}", ProgressBar(max(self._total, count, 1), count, width=40))
        figures = Text.assemble(
            ("  duplicates dropped ", "dim"), f"{progress.duplicates:,}",
            ("   lag ", "dim"), f"{progress.lag:,}",
            ("   records/s ", "dim"), f"{progress.rate:,.0f}",
            ("   delay ", "dim"), seconds(progress.delay_s),
        )  # fmt: skip
        return Group("", bars, figures)


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
