"""The command `verbatim init`: a folder of a link's files, from a scan."""

from __future__ import annotations

from pathlib import Path

import click

from common.config import loading
from common.errors import SettingsError
from verbatim.init import files
from verbatim.init.choices import choose
from verbatim.init.reading import bare, read


@click.command()
@click.argument("scan", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--link", required=True, metavar="NAME", help="The link's name (APPLICATION_NAME).")
@click.option("--target", required=True, metavar="BOOTSTRAP", help="Brokers of the target: host:port,...")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="[default: ./NAME]")
@click.option(
    "--topics",
    multiple=True,
    metavar="PATTERN",
    help="Topics to copy: names or regular expressions, as for KAFKA_CLUSTERS_SOURCE_TOPIC. [default: what the scan looked at]",
)
def init(scan: Path, link: str, target: str, out: Path | None, topics: tuple[str, ...]) -> None:
    """Write the files of a link, into an empty folder, from what `verbatim scan --output json` wrote to SCAN.

    Settings, a compose file, and a kustomization with all that it needs; comments say why each thing was
    chosen. No secret is in them: settings name the files that hold some. Connects nowhere, and never writes
    over a file.
    """
    try:
        text = scan.read_bytes()
    except OSError as error:
        raise SettingsError(f"{scan}: {error.strerror}") from None
    try:
        chosen = choose(read(text, str(scan)), link, bare(target), topics)
    except ValueError as error:
        raise SettingsError(f"--target: {error}") from None
    written = files.files(chosen)
    lines = (
        line.partition("=") for line in written[files.SETTINGS].splitlines() if line[:1] not in ("", "#")
    )
    # Files of secrets are not there yet.
    loading.load({name: value for name, _, value in lines if not name.endswith("_FILE")})
    folder = out or Path(link)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise SettingsError(f"--out: {folder} is not empty; nothing was written")
        (folder / files.SECRETS).mkdir()
        for path, content in written.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, "utf-8")
    except OSError as error:
        raise SettingsError(f"--out: {error.filename}: {error.strerror}") from None
    for warning in files.warnings(chosen):
        click.echo(f"note: {warning}", err=True)
    click.echo(f"{folder}: {', '.join(path for path in written if '/' not in path)}")
    click.echo(f"next: docker compose --project-directory {folder} run --rm replicator verbatim plan")
