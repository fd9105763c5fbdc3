"""The command `replicator`: phase 1 of a link."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from common.application import CALL_S, Application, halted_lines
from common.cli import entry, settings_options
from common.kafka import Deadline
from common.lanes import Plan, Progress
from replicator import lane
from replicator.planner import Planner

if TYPE_CHECKING:
    from common.settings import Settings


class Replicator(Application):
    """Reads source topics and appends frames to the staging topic, at least once and in order."""

    name = "replicator"
    needs_source = True
    run_lane = staticmethod(lane.run)
    planner: Planner

    def took_over(self) -> None:
        group = f"{self.settings.application_name}.replicator"
        self.planner = Planner(self.settings, self.control, group, self.bounded)

    def plan(self) -> list[Plan]:
        return self.planner.plan(self.lanes_wanted)

    def must_replan(self) -> bool:
        return self.planner.changed()

    def stepped_down(self) -> None:
        if hasattr(self, "planner"):
            self.planner.close()

    def _count(self, rows: list[Progress]) -> None:
        super()._count(rows)
        for row in rows:
            if row.kind == "refused":
                self.planner.leave_out((row.body["topic_id"], row.body["partition"]))

    def caught_up(self, rows: list[Progress]) -> int | None:
        if any(row.kind == "replan" for row in rows):
            return None
        # The lanes' last words, that a partition goes on above all, may have only just been written.
        lines = halted_lines(rows, self.control.refresh(Deadline(CALL_S)), self.name)
        for line in lines:
            click.echo(f"error: {line}", err=True)
        counters = self.totals
        click.echo(
            f"replicator: caught up: {counters.get('records', 0)} records in "
            f"{counters.get('frames', 0)} frames staged, {len(lines)} partitions halted"
        )
        return 3 if lines else 0


@click.command()
@settings_options
@click.option(
    "--until-caught-up", is_flag=True, help="Copy up to the end offsets found at the start, then exit."
)
def command(settings: Settings, until_caught_up: bool) -> None:
    """Phase 1: read the source topics and append their records, in frames, to the staging topic on the target."""
    raise SystemExit(Replicator(settings, until_caught_up).run())


def cli() -> None:
    """Console script."""
    entry(command)
