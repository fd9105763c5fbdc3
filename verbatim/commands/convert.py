"""The command `verbatim convert`: settings of MirrorMaker 2 as settings of Verbatim."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from common.errors import SettingsError
from verbatim.convert import mirror_maker, settings

INCOMPLETE = 3
"""Exit code."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option("--mirror", metavar="A->B", help="Of several, only this one.")
@click.pass_context
def convert(context: click.Context, file: Path, mirror: str | None) -> None:
    """Write the settings that are those of MirrorMaker 2 in FILE.

    FILE (`-`: stdin) has its properties, a connector's JSON or several in a list, or Strimzi's
    KafkaMirrorMaker2. What is written is a file of variables for each flow. A link with these goes on where
    MirrorMaker 2 has stopped (docs: guides/migration). What is not needed, and what has no equivalent, stands
    there as comments; in the latter case the exit code is 3. Secrets are written as they were found.
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: {error}") from None
    mirrors = mirror_maker.read(text, str(file))
    names = [one.name for one in mirrors]
    if mirror is not None and mirror not in names:
        raise SettingsError(f"--mirror: {mirror} is none of {', '.join(names)}")
    found = [settings.converted(one) for one in mirrors if mirror in (None, one.name)]
    click.echo(settings.text(found))
    context.exit(INCOMPLETE if any(one.missing for one in found) else 0)
