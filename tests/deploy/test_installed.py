"""The wheel as users install it: with tools of their own, from an empty folder, beside distributions that use
the same names."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from tests.deploy.deployed import ROOT, passes, run, tool

NAMES = ("common", "replicator", "deduplicator", "offsets", "schemas", "verbatim")
QUICK_START_S = 280


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Ours, and another distribution's that has packages of the same names."""
    folder = tmp_path_factory.mktemp("wheels")
    passes(tool("uv"), "build", "--wheel", "--quiet", "--out-dir", folder, ROOT)
    (ours,) = folder.glob("*.whl")
    theirs = folder / "somebody_elses-1.0-py3-none-any.whl"
    about = "somebody_elses-1.0.dist-info"
    files = {f"{name}/__init__.py": "THEIRS = True\n" for name in NAMES} | {
        "common/errors.py": "",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: somebody-elses\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(theirs, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return ours, theirs


def test_nothing_of_the_wheel_has_a_name_that_another_distribution_may_have(
    wheels: tuple[Path, Path],
) -> None:
    with zipfile.ZipFile(wheels[0]) as wheel:
        tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"verbatim_kafka"}


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_another_distribution_with_the_same_packages_comes_and_goes_and_both_work(
    wheels: tuple[Path, Path], tmp_path: Path, first: str
) -> None:
    """Promise: neither overwrites, shadows or removes files of the other. Installing and removing another
    `common` broke ours."""
    site = tmp_path / "site"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(site)}

    def pip(*arguments: str | Path) -> None:
        passes(tool("uv"), "pip", *arguments, "--quiet", "--target", site, "--python", sys.executable)

    def works(code: str) -> bool:
        done = run(sys.executable, "-c", code, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return True

    def ours_works() -> bool:
        heres = f"import sys; assert all(sys.modules[n].__file__.startswith({str(site)!r}) for n in {NAMES})"
        return works(
            f"import verbatim_kafka, {', '.join(NAMES)}; from deduplicator.lane import lane; {heres}"
        ) and works(
            "import sys; sys.argv[1:] = ['--help']; from verbatim_kafka import scripts; scripts.verbatim()"
        )

    for wheel in wheels if first == "ours" else reversed(wheels):
        pip("install", "--no-deps", wheel)
    assert ours_works()
    assert works("import common, verbatim; assert common.THEIRS and verbatim.THEIRS; import common.errors")
    pip("uninstall", "somebody-elses")
    assert ours_works()
    pip("install", "--no-deps", wheels[1])
    pip("uninstall", "verbatim-kafka")
    assert works("import common, verbatim; assert common.THEIRS and verbatim.THEIRS; import common.errors")


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_the_installed_tool_runs_the_quick_start_from_an_empty_folder(
    wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    """Promise: `uv tool install` is all; Spark's workers and lanes find our packages too, also where others
    have theirs."""
    ours, theirs = wheels
    locked, empty = tmp_path / "locked.txt", tmp_path / "empty"
    empty.mkdir()
    # What is tested elsewhere, and is in uv's cache by now: not the newest that there is today.
    exported = ("export", "--locked", "--extra", "quickstart", "--no-emit-project", "--no-hashes", "--quiet")
    passes(tool("uv"), *exported, "--project", ROOT, "--output-file", locked)
    environment = {
        **os.environ,
        "UV_TOOL_DIR": str(tmp_path / "tools"),
        "UV_TOOL_BIN_DIR": str(tmp_path / "bin"),
        "TMPDIR": str(tmp_path),
    }
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "UV"):
        environment.pop(name, None)
    install = ("tool", "install", "--quiet", "--python", sys.executable, "--constraints", locked)
    done = run(tool("uv"), *install, "--with", theirs, f"{ours}[quickstart]", env=environment, cwd=empty)
    assert done.returncode == 0, done.stderr
    verbatim = tmp_path / "bin/verbatim"
    assert sorted(file.name for file in verbatim.parent.iterdir()) == [
        *("deduplicator", "offsets", "replicator", "schemas", "verbatim", "verbatim-python")
    ]
    done = run(verbatim, "quickstart", "--help", env=environment, cwd=empty)
    assert done.returncode == 0 and done.stdout.startswith("Usage: verbatim quickstart "), done.stderr
    # --keep, and ended: else this run, whose jars lie in a folder of their own, would lay by their classes
    # for later ones.
    quick = subprocess.Popen(
        [verbatim, "quickstart", "--records", "2000", "--keep"],
        env=environment,
        cwd=empty,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    stop = threading.Timer(QUICK_START_S, quick.terminate)
    stop.start()
    assert quick.stdout is not None
    said = ""
    for line in quick.stdout:
        said += line
        if line.startswith("logs: "):
            quick.terminate()
    stop.cancel()
    quick.stdout.close()
    assert quick.wait(60) == 0, said
    assert "ok: 2,000 records: 0 lost, 0 twice, order kept" in said
    assert "kill survived" in said
    assert list(empty.iterdir()) == []
