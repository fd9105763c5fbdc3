"""Coverage-guided fuzzing, target by target: python -m tests.fuzz [TARGET ...] --seconds 3600

What breaks a promise, takes too long or too much memory is written to tests/fuzz/found/TARGET, where the
tests run it from then on; the command ends with 1.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from tests.fuzz.targets import TARGETS

FOUND = Path(__file__).parent / "found"
INPUT_S, MEMORY_MB = 10, 2048
"""What one input may take."""
_ONE = """
import sys, atheris
with atheris.instrument_imports(include=["common", "offsets"]):
    from tests.fuzz.targets import TARGETS
run = TARGETS[sys.argv.pop(1)].run
atheris.Setup(sys.argv, run)
atheris.Fuzz()
"""


@click.command(help=__doc__)
@click.argument("targets", nargs=-1, type=click.Choice([*TARGETS]))
@click.option("--seconds", default=60, show_default=True, help="In all, shared by the targets.")
@click.option("--seed", default=0, show_default=True, help="0: another one each time.")
@click.option(
    "--corpus", type=click.Path(path_type=Path), help="A folder that keeps inputs that reached something new."
)
def main(targets: tuple[str, ...], seconds: int, seed: int, corpus: Path | None) -> None:
    if importlib.util.find_spec("atheris") is None:
        raise click.ClickException("atheris is not here: uv run --group fuzz python -m tests.fuzz")
    names = targets or tuple(TARGETS)
    with tempfile.TemporaryDirectory(prefix="verbatim-fuzz-") as scratch:
        bad = [
            name
            for name in names
            if not _fuzz(name, (corpus or Path(scratch)) / name, max(1, seconds // len(names)), seed)
        ]
    if bad:
        raise click.ClickException(f"broken: {', '.join(bad)}; the inputs are in {FOUND}")


def _fuzz(name: str, corpus: Path, seconds: int, seed: int) -> bool:
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(TARGETS[name].seeds()):
        (corpus / f"seed-{number}").write_bytes(data)
    found = FOUND / name
    before = _inputs(found)
    command = [sys.executable, "-c", _ONE, name, str(corpus)]
    command += [f"-max_total_time={seconds}", f"-timeout={INPUT_S}", f"-rss_limit_mb={MEMORY_MB}"]
    command += [f"-seed={seed}", "-max_len=4096", "-verbosity=0", "-print_final_stats=1"]
    command += [f"-artifact_prefix={corpus}/bad-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for bad in corpus.glob("bad-*"):
        found.mkdir(parents=True, exist_ok=True)
        bad.rename(found / bad.name.removeprefix("bad-"))
    well = done.returncode == 0 and _inputs(found) == before
    runs = [line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line]
    click.echo(f"{name:14} {'well' if well else 'BROKEN'}, {runs[0] if runs else 'no'} inputs in {seconds} s")
    if not well:
        click.echo(done.stdout[-3000:] + done.stderr[-3000:])
    return well


def _inputs(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*")}


if __name__ == "__main__":
    main()
