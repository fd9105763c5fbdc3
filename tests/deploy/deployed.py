"""What is deployed, as tests read it: the compose file's services, and manifests as kubectl would send them.
Tests nothing itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
K8S = ROOT / "k8s"
FOLDERS = (".", "overlays/executors", "overlays/autoscaling", "overlays/offsets", "overlays/schemas")


def tool(name: str) -> str:
    """A program of the dev group, or of the machine."""
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert found, f"{name} is missing: uv sync"
    return found


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=100, check=False, **options
    )


def passes(*command: str | Path) -> None:
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load(COMPOSE.read_text()))


def our_services() -> dict[str, dict[str, Any]]:
    return {n: s for n, s in compose()["services"].items() if s["image"].startswith("verbatim:")}


def applications() -> dict[str, dict[str, Any]]:
    return {n: s for n, s in our_services().items() if n in ("replicator", "deduplicator", "offsets")}


def renderer() -> list[str] | None:
    if found := shutil.which("kustomize"):
        return [found, "build"]
    if found := shutil.which("kubectl"):
        return [found, "kustomize"]
    return None


@cache
def rendered(folder: str) -> list[dict[str, Any]]:
    """What `kubectl apply -k` would send."""
    command = renderer()
    if command is None:
        pytest.skip("neither kustomize nor kubectl is on the PATH")
    done = run(*command, K8S / folder)
    assert done.returncode == 0, done.stderr
    return [dict(document) for document in yaml.safe_load_all(done.stdout)]


def of_kind(documents: Sequence[Mapping[str, Any]], kind: str) -> Iterator[Mapping[str, Any]]:
    found = [document for document in documents if document["kind"] == kind]
    assert found, f"no {kind}"
    yield from found
