"""The command `verbatim convert`: settings of other replicators as settings of Verbatim."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from common.errors import SettingsError
from verbatim.convert import formats, settings

INCOMPLETE = 3
"""Exit code."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option("--mirror", metavar="NAME", help="Of several, only this one (A->B of MirrorMaker 2).")
@click.pass_context
def convert(context: click.Context, file: Path, mirror: str | None) -> None:
    """Write the settings that are those of MirrorMaker 2, K2K or kafka-reo in FILE.

    FILE (`-`: stdin) has MirrorMaker 2's properties, a connector's JSON or several in a list, or Strimzi's
    KafkaMirrorMaker2; a pipeline of K2K, or values of its Helm chart; or kafka-reo's variables, as a file, in
    a compose file or a Deployment, or its config.yaml. What is written is a file of variables for each link.
    One with MirrorMaker 2's goes on where that has stopped, the others begin anew (docs: guides/migration).
    What is not needed, and what has no equivalent, stands there as comments; in the latter case the exit code
    is 3. Secrets are written as they were found.
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: {error}") from None
    found = formats.converted(text, str(file))
    names = [one.name for one in found]
    if mirror is not None and mirror not in names:
        raise SettingsError(f"--mirror: {mirror} is none of {', '.join(names)}")
    found = [one for one in found if mirror in (None, one.name)]
    click.echo(settings.text(found))
    context.exit(INCOMPLETE if any(one.missing for one in found) else 0)
