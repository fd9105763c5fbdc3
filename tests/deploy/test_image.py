"""The image's Dockerfile: that each file which a build step runs has been copied by then, and what it needs
too.

`container/try` builds the image and runs it, where an engine can be had.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.deployed import ROOT, our_services, run

# Runs a file without its main(), and prints what of the work tree was imported with it.
IMPORTED = """
import runpy, sys
runpy.run_path(sys.argv[1], run_name="imported")
print(*{m.__file__ for m in sys.modules.values() if getattr(m, "__file__", None)}, sep="\\n")
"""


def steps(dockerfile: str) -> Iterator[tuple[str, str, str]]:
    """(stage, instruction, arguments) of each step, continued lines joined, comments left out."""
    lines = "\n".join(line for line in dockerfile.splitlines() if not line.lstrip().startswith("#"))
    stage = ""
    for line in re.sub(r"\\\n\s*", " ", lines).splitlines():
        instruction, _, arguments = line.partition(" ")
        if instruction == "FROM":
            stage = arguments.split(" AS ")[1]
        if instruction:
            yield stage, instruction, arguments


def run_files(dockerfile: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each Python file that a RUN step runs, and the (source, target) copied from the work tree before it,
    stages below included."""
    copied: dict[str, list[tuple[str, str]]] = {}
    for stage, instruction, arguments in steps(dockerfile):
        if instruction == "FROM":
            copied[stage] = list(copied.get(arguments.split()[0], []))
        if instruction == "COPY" and not arguments.startswith("--from"):
            *sources, target = arguments.split()
            copied[stage] += [(source, target) for source in sources]
        if instruction == "RUN":
            for file in re.findall(r"(?<!\S)(?!/)[\w./-]+\.py\b", arguments):
                yield file, list(copied[stage])


RUN_FILES = list(run_files((ROOT / "Dockerfile").read_text()))


def laid_out(copied: list[tuple[str, str]], folder: Path) -> None:
    for source, target in copied:
        found = ROOT / source
        if found.is_dir():
            shutil.copytree(found, folder / target, dirs_exist_ok=True)
        else:
            (folder / target).mkdir(parents=True, exist_ok=True)
            shutil.copy(found, folder / target)


def test_the_build_runs_what_it_is_thought_to_run() -> None:
    assert {file for file, _ in RUN_FILES} == {"container/fetch_jars.py", "container/lay_by_classes.py"}


@pytest.mark.parametrize(("file", "copied"), RUN_FILES, ids=[file for file, _ in RUN_FILES])
def test_what_a_build_step_runs_has_been_copied_by_then(
    file: str, copied: list[tuple[str, str]], tmp_path: Path
) -> None:
    laid_out(copied, tmp_path)
    assert (tmp_path / file).is_file(), f"{file} is run but not copied"
    done = run(
        *(sys.executable, "-c", IMPORTED, file),
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    elsewhere = [
        path
        for path in done.stdout.split()
        if Path(path).is_relative_to(ROOT) and not Path(path).is_relative_to(Path(sys.prefix))
    ]
    assert elsewhere == [], "imported, but not copied"


def test_an_argument_of_the_build_stands_after_what_does_not_need_it() -> None:
    """Another file system for the state must not install the dependencies anew, nor record the classes
    again."""
    found = list(steps((ROOT / "Dockerfile").read_text()))
    before_sync = [step for step in found if step[0] in ("base", "dependencies")]
    assert any("uv sync" in arguments for _, _, arguments in before_sync)
    assert [a.split("=")[0] for _, instruction, a in before_sync if instruction == "ARG"] == [
        "UV_DEFAULT_INDEX"
    ]
    assert [stage for stage, instruction, a in found if instruction == "ARG" and "EXTRA_JARS" in a] == [
        "extra"
    ]
    assert ("runtime", "COPY", "--from=extra /opt/verbatim/extra-jars /opt/verbatim/extra-jars") in found


def test_the_dockerfile_needs_no_buildkit_and_its_programs_may_be_run() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"^(COPY|ADD) .*--(chmod|link)|^RUN --mount", dockerfile, re.MULTILINE)
    (program,) = re.findall(r"^COPY (\S+) /usr/local/bin/", dockerfile, re.MULTILINE)
    assert os.access(ROOT / program, os.X_OK)


# --- the compose file's check


def checked(tmp_path: Path, codes: str) -> tuple[int, str, int]:
    """Exit code and output of compose's `verify` where the command ends with these codes in turn, and how
    often it was asked."""
    for name, text in {
        "verbatim": "tries=$(cat tries 2>/dev/null || echo 0); echo $((tries + 1)) >tries\n"
        'set -- $CODES; shift "$tries" 2>/dev/null || set -- 1; echo "try $((tries + 1))"; exit "${1:-1}"',
        "sleep": "exit 0",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    shell, option, script = our_services()["verify"]["command"]
    script = re.sub(r"/\w+/found", "found", script.replace("$$", "$"))
    path = os.pathsep.join([str(tmp_path), "/usr/bin", "/bin"])
    done = run(shell, option, script, cwd=tmp_path, env={"PATH": path, "CODES": codes})
    assert done.stderr == ""
    return done.returncode, done.stdout, int((tmp_path / "tries").read_text())


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ("0", (0, "try 1\n", 1)),
        ("1 1 0", (0, "try 3\n", 3)),
        ("2", (2, "try 1\n", 1)),
        ("1 " * 20, (1, "try 12\n", 12)),
    ],
    ids=["at once", "once nothing is behind", "not with bad settings", "never"],
)
def test_compose_verifies_only_when_nothing_is_behind(
    tmp_path: Path, codes: str, expected: tuple[int, str, int]
) -> None:
    assert checked(tmp_path, codes) == expected
    assert "verbatim verify --complete" in our_services()["verify"]["command"][-1]


def test_compose_takes_down_all_that_it_starts() -> None:
    """`down` leaves the services of profiles, and their network: only one that is run by hand and removes
    itself has one."""
    assert {name for name, service in our_services().items() if "profiles" in service} == {"verify"}
    assert our_services()["verify"].get("restart", "no") == "no"
