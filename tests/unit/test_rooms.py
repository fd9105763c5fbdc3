"""What the rooms promise beyond who imports whom (pyproject.toml, tool.importlinter): pure files stay pure,
Spark stays in its rooms, files and classes stay short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("common", "replicator", "deduplicator", "offsets", "schemas", "verbatim", "verbatim_kafka")
IMPURE = {"confluent_kafka", "pyspark", "socket", "subprocess", "threading", "requests", "urllib"}
"""Whoever imports one of these reaches the outside."""
SPARK = ("common/spark/", "common/app/", "deduplicator/state/", "deduplicator/main.py", "verbatim/")
MOST_LINES = 450
MOST_CLASS_LINES = 300


def files() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def imported(source: str) -> set[str]:
    """Top-level packages that a file imports when it is imported, as it stands there; but for
    urllib.parse, which is text alone."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module != "urllib.parse":
            found.add(node.module.partition(".")[0])
    return found


def is_pure(source: str) -> bool:
    words = ast.get_docstring(ast.parse(source)) or ""
    return re.search(r"\bPure[.:;]", words.partition("\n\n")[0]) is not None


def test_what_calls_itself_pure_reaches_nothing_outside() -> None:
    pure = [(path, imported(source)) for path, source in files() if is_pure(source)]
    assert len(pure) > 40
    assert [(path, sorted(found & IMPURE)) for path, found in pure if found & IMPURE] == []


def test_spark_is_imported_in_its_rooms_only() -> None:
    found = [path for path, source in files() if "pyspark" in imported(source) and not path.startswith(SPARK)]
    assert found == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_says_first_what_it_is_about(package: str) -> None:
    for path, source in files():
        if path.startswith(package) and source.strip():
            assert ast.get_docstring(ast.parse(source)), path


def test_no_file_is_longer_than_one_reads_at_once() -> None:
    assert [path for path, source in files() if len(source.splitlines()) > MOST_LINES] == []


def test_no_class_is_longer_than_one_keeps_in_mind() -> None:
    classes = [
        (f"{path}: {node.name}", node.end_lineno - node.lineno + 1)
        for path, source in files()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and node.end_lineno is not None
    ]
    assert len(classes) > 200
    assert [found for found in classes if found[1] > MOST_CLASS_LINES] == []
