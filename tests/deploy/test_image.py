"""The image's Dockerfile: that each file which a build step runs has been copied by then, and what it needs
too; its labels, its health check, and that it can be had for both architectures.

`container/try` builds the image and runs it, where an engine can be had.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from packaging import tags
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from common.app.health import STALE_S, Health
from common.app.health_server import HealthServer
from common.app.link_pages import LinkPages
from tests.deploy.deployed import ROOT, our_services, run, tool

DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

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


RUN_FILES = list(run_files(DOCKERFILE))


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
    found = list(steps(DOCKERFILE))
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
    assert not re.search(r"^(COPY|ADD) .*--(chmod|link)|^RUN --mount", DOCKERFILE, re.MULTILINE)
    (program,) = re.findall(r"^COPY (\S+) /usr/local/bin/", DOCKERFILE, re.MULTILINE)
    assert os.access(ROOT / program, os.X_OK)


# --- labels, health, architectures, and what is in it


def test_labels_say_what_the_project_and_the_build_say() -> None:
    found = list(steps(DOCKERFILE))
    labels = dict(
        re.findall(
            r'org\.opencontainers\.image\.([\w.]+)="([^"]*)"', next(a for _, i, a in found if i == "LABEL")
        )
    )
    assert labels["version"] == PROJECT["version"] and labels["licenses"] == PROJECT["license"]
    assert labels["base.name"] == "docker.io/library/" + found[0][2].split()[0]
    assert {"title", "description"} <= labels.keys()


def healthy(**variables: str) -> tuple[int, str]:
    """Exit code and last line of the image's health check, in an environment as bare as a container's."""
    (arguments,) = (a for stage, i, a in steps(DOCKERFILE) if i == "HEALTHCHECK")
    command = json.loads(arguments[arguments.index("[") :])
    assert command[0] == "python"
    done = run(sys.executable, *command[1:], env={"PATH": os.environ["PATH"], **variables})
    return done.returncode, (done.stderr.splitlines() or [""])[-1]


def test_a_container_is_healthy_while_its_main_loop_turns() -> None:
    health = Health("replicator")
    server = HealthServer(LinkPages(health), "127.0.0.1", 0)
    # A container's proxy is not asked for its own port.
    here = {"HEALTH_PORT": str(server.port), "http_proxy": "http://127.0.0.1:9"}
    try:
        assert health.ready() is False and healthy(**here) == (0, "")
        health.turned = time.monotonic() - STALE_S - 1
        assert healthy(**here) == (1, "")
    finally:
        server.close()
    code, line = healthy(**here)
    assert code == 1 and line.startswith("ConnectionRefusedError")
    assert healthy(HEALTH_PORT="0") == (0, "")


def exported(*options: str) -> str:
    """What the guide's `uv export` prints, with other options instead of its format and file."""
    (line,) = re.findall(r"^uv export (.*)$", (ROOT / "docs/guides/kubernetes.md").read_text(), re.MULTILINE)
    (sync,) = {a[1] for a in re.findall(r"(uv sync --locked) (.*?) --no-(?:install|edit)", DOCKERFILE)}
    assert f"--frozen {sync} " in line
    kept = line[: line.index("--format")].split()
    done = run(tool("uv"), "export", *kept, "--offline", *options, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed(machine: str) -> set[tuple[str, str]]:
    """(name, version) of what the image has on such a machine."""
    image = {"python_version": "3.11", "python_full_version": "3.11.9", "sys_platform": "linux"}
    image |= {"platform_machine": machine, "platform_system": "Linux", "implementation_name": "cpython"}
    lines = exported("--no-hashes", "--no-annotate", "--no-header", "--no-emit-project").splitlines()
    wanted = [r for r in map(Requirement, lines) if r.marker is None or r.marker.evaluate(image)]
    return {(r.name, str(r.specifier).removeprefix("==")) for r in wanted}


def test_the_bill_of_materials_has_every_package() -> None:
    bill = json.loads(exported("--format", "cyclonedx1.5"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    found = {(c["name"], c["version"]) for c in bill["components"]}
    assert len(installed("x86_64")) > 40 and installed("x86_64") <= found


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_package_has_a_wheel_for_both_architectures(machine: str) -> None:
    """Nothing is compiled where the image is built: there is no compiler."""
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(36, 16, -1)]
    fits = {
        *tags.cpython_tags((3, 11), platforms=platforms),
        *tags.compatible_tags((3, 11), "cp311", platforms),
    }
    locked = {
        (package["name"], package["version"]): [w["url"].rsplit("/", 1)[1] for w in package.get("wheels", [])]
        for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    }
    without = {
        name
        for name, version in installed(machine)
        if not any(fits & parse_wheel_filename(unquote(wheel))[3] for wheel in locked[name, version])
    }
    # Python alone, in an archive of sources.
    assert without == {"pyspark"}


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
