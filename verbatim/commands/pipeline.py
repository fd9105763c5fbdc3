"""The commands `verbatim pipeline ...`: options and output."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import click

from common.app.cli import echo_json
from common.errors import SettingsError
from common.pipeline import definition, loading
from common.pipeline.models import Pipeline
from verbatim.pipeline import examples

FAILED = 1
"""Exit code."""


@click.group()
def pipeline() -> None:
    """Try a pipeline's file: what is done with records on their way (docs: guides/pipelines)."""


@pipeline.command()
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The pipeline's file.",
)
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def test(context: click.Context, file: Path, output: str) -> None:
    """Check a file, and run the tests in it. Connects to nothing.

    Exit code: 0 all is as expected, 1 something is not, 2 the file is wrong.
    """
    made = loading.load(file)
    keys = _keys(made)
    verdicts = examples.run(made, keys)
    failed = [verdict for verdict in verdicts if verdict.differences]
    if output == "json":
        tests = [{"name": one.name, "differences": one.differences} for one in verdicts]
        echo_json({"sha256": definition.sha256(made), "tests": tests})
    else:
        for verdict in verdicts:
            click.echo(f"{'FAILED' if verdict.differences else 'ok'}  {verdict.name}")
            for difference in verdict.differences:
                click.echo(f"        {difference}")
        click.echo(f"{file}: sound; {len(verdicts) - len(failed)} of {len(verdicts)} tests passed")
    context.exit(FAILED if failed else 0)


def _keys(made: Pipeline) -> dict[str, bytes]:
    """Where a file is tested its keys may not be: made-up ones stand in, which are the same each time."""
    try:
        return definition.read_keys(made, os.environ)
    except SettingsError as error:
        click.echo(f"{error}; made-up keys stand in for all", err=True)
        return {name: hashlib.sha256(name.encode()).digest() for name in made.keys}


@pipeline.command()
def schema() -> None:
    """Print the JSON Schema of the file, for editors."""
    click.echo(json.dumps(definition.schema(), indent=2))
