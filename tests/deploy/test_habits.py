"""What people run is what CI runs: the Makefile's targets, and the hooks that git runs before a commit."""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib

import pytest
import yaml

from tests.deploy.deployed import ROOT, run

GATES = ["ruff check", "ruff format", "mypy", "lint-imports"]


def commands(text: str) -> list[list[str]]:
    """The commands that uv is told to run, without its own options."""
    lines = re.findall(r"\buv run (?:--no-sync )?((?:ruff|mypy|lint-imports)\b.*)$", text, re.MULTILINE)
    return [shlex.split(line) for line in lines]


def what(command: list[str]) -> str:
    """The tool, and what of it: options and files left out."""
    return " ".join(word for word in command if not word.startswith("-") and word != ".")


def test_git_and_make_and_ci_run_the_same_gates() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    of_git = [command for hook in hooks for command in commands(hook["entry"])]
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make here")
    of_make = commands(run(make, "-n", "lint", cwd=ROOT).stdout)
    of_ci = commands((ROOT / ".ci/run").read_text())
    assert [what(command) for command in of_git] == GATES
    assert of_make == of_ci and [what(command) for command in of_make] == GATES


def test_every_target_of_the_makefile_is_listed_told_and_can_be_made() -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make here")
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):", text, re.MULTILINE))
    listed = re.findall(r"^make (\w+) +\S", run(make, cwd=ROOT).stdout, re.MULTILINE)
    assert set(listed) == targets == set(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split())
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    for target in targets - {"help"}:
        assert f"make {target}" in contributing, target
        done = run(make, "-n", target, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        for path in re.findall(r"(?:tests|\.ci)/[\w/.]+", done.stdout):
            assert (ROOT / path).exists(), path


def test_the_changelog_keeps_to_its_conventions() -> None:
    """Keep a Changelog 1.1.0: the newest first, each release with its date, what changed by kind. The version
    here is released, or to be."""
    text = (ROOT / "CHANGELOG.md").read_text()
    releases = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert releases[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", release) for release in releases[1:])
    kinds = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        found = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert found == [kind for kind in kinds if kind in found]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"## [{version}] - " in text or version in text.split("\n## ")[1]
