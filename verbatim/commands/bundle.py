"""The command `verbatim bundle`: what somebody who helps has to see of a link, in one file. What goes into it
is verbatim/bundle/parts.py's part, what must not verbatim/bundle/scrubbing.py's."""

from __future__ import annotations

import io
import os
import tarfile
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson
from confluent_kafka import KafkaException

from common.app.cli import settings_options
from common.errors import SettingsError, VerbatimError
from verbatim.bundle import parts
from verbatim.bundle.known import known
from verbatim.bundle.parts import Part
from verbatim.bundle.scrubbing import Scrubber
from verbatim.plan.sampling import unread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from common.config.settings import Settings

CONTENTS = "contents.json"


@click.command("bundle")
@settings_options
@click.option(
    "--to",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where it is written (verbatim-bundle-LINK-TIME.tar.gz); a file that is there is left alone.",
)
@click.option(
    "--instance",
    "instances",
    multiple=True,
    metavar="HOST:PORT",
    help="Ask the instance with this health port too; may be given again.",
)
@click.option(
    "--every-link",
    is_flag=True,
    help="Of an instance that runs many links, what it says of each, not of this one alone.",
)
@click.option(
    "--links",
    "folder",
    envvar="LINKS",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="The folder of the instances' links, whose secrets are taken out too (the folder of --config).",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Put the end of this log in too; may be given again.",
)
def bundle(
    settings: Settings,
    file: Path | None,
    instances: tuple[str, ...],
    every_link: bool,
    folder: Path | None,
    logs: tuple[Path, ...],
) -> None:
    """Put into one file what somebody who helps has to see: no records, no secrets. Changes nothing.

    In it are versions, settings, both clusters, the link's state and what its topics say, and of instances
    and logs what is given. What can't be had is named, and the rest is written all the same.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name = f"verbatim-bundle-{settings.application_name}-{stamp}"
    file = file or Path(f"{name}.tar.gz")
    link = None if every_link else settings.application_name
    if folder is None and settings.config_file:
        folder = Path(settings.config_file).parent
    secrets, unknown = known(settings, folder, os.environ)
    wanted = chain(
        parts.of_link(settings),
        *(parts.of_instance(at, link) for at in instances),
        *(parts.of_log(log, number) for number, log in enumerate(logs, 1)),
    )
    try:
        # Nobody else's business, whatever is left in it.
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise SettingsError(f"--to: can't write {file}: {error.strerror}") from None
    with os.fdopen(handle, "wb") as out:
        missing = write(out, name, wanted, Scrubber(secrets))
    click.echo(f"{file}: {file.stat().st_size:,} bytes; look through it before you give it away")
    for part, why in missing.items():
        click.echo(f"  not in it: {part}: {why}")
    for why in unknown:
        click.echo(f"  a secret that is not known here, and may be in it: {why}")


def write(out: io.BufferedIOBase, folder: str, wanted: Iterable[Part], scrubber: Scrubber) -> dict[str, str]:
    """A compressed archive of what can be had, each part a file in the folder; and why the others could
    not."""
    missing: dict[str, str] = {}
    there: list[str] = []
    with tarfile.open(fileobj=out, mode="w:gz") as archive:

        def add(name: str, content: bytes) -> None:
            info = tarfile.TarInfo(f"{folder}/{name}")
            clean = scrubber.text(content.decode(errors="backslashreplace")).encode()
            info.size, info.mtime, info.mode = len(clean), int(time.time()), 0o600
            archive.addfile(info, io.BytesIO(clean))

        for name, make in wanted:
            try:
                add(name, make())
                there.append(name)
            except (KafkaException, VerbatimError, OSError) as error:
                missing[name] = scrubber.text(unread(error))
        add(CONTENTS, orjson.dumps({"there": there, "missing": missing}, option=orjson.OPT_INDENT_2))
    return missing
