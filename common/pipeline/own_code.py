"""The stage `python`: a function of the operator's, from batch to batch. Its module's text is read, hashed
and run here, so that what runs is what the pipeline's definition names.

What it gets and gives back is common/pipeline/given_back.py's. What it raises is known by its type, never by
its words, which may be a record's. A batch on which it raises is cut in halves, down to the records that it
fails on.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from types import CodeType, ModuleType
from typing import Any

import pyarrow as pa

from common.errors import SettingsError
from common.pipeline.batch import Batch, Done, Run
from common.pipeline.given_back import done, fitting, shown

Function = Callable[[pa.RecordBatch], Any]


@dataclass(frozen=True)
class Module:
    """A module as it is here. `identity`: of its text, and of the package that it is of."""

    identity: str
    loaded: ModuleType


@lru_cache(maxsize=64)
def _loaded(name: str, path: str, text: bytes) -> ModuleType:
    """Not by an import, which would take what it has compiled before, or imported, for the text."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    code: CodeType = compile(text, path, "exec", dont_inherit=True)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)  # noqa: S102  what the pipeline's file asks for
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _text(name: str) -> tuple[str, bytes]:
    """Where it lies, and its text. Raises ImportError, OSError, ValueError."""
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise ImportError("there is no such module with a text in Python")
    return spec.origin, spec.loader.get_data(spec.origin)  # type: ignore[union-attr]


def source_of(name: str) -> str | None:
    """The file that its text is in, if there is one."""
    try:
        return _text(name)[0]
    except (ImportError, OSError, ValueError, AttributeError):
        return None


def module(name: str, stage: str) -> Module:
    """Raises SettingsError, which names the stage."""
    try:
        path, text = _text(name)
        loaded = _loaded(name, path, text)
    except Exception as error:  # noqa: BLE001 - whatever its import raises
        what = str(error) if isinstance(error, ImportError) else type(error).__name__
        raise SettingsError(f"{stage}: module {name} can't be imported here: {what}") from None
    return Module(f"{_package(name)}sha256 {sha256(text).hexdigest()}", loaded)


@lru_cache(maxsize=64)
def _package(name: str) -> str:
    top = name.partition(".")[0]
    try:
        found = sorted(packages_distributions().get(top, ()))
        return "".join(f"{one} {version(one)}, " for one in found)
    except PackageNotFoundError:
        return ""


def running(code: Module, function: str, stage: str) -> Run:
    """Raises SettingsError where the module has no such function."""
    called = getattr(code.loaded, function, None)
    if not callable(called):
        raise SettingsError(f"{stage}: module {code.loaded.__name__} has no function {function}")

    def run(batch: Batch) -> Done:
        given, failed = shown(batch.rows), dict[int, str]()
        return done(batch, given, list(_made(called, given, 0, failed)), failed)

    return run


def _made(
    called: Function, given: pa.RecordBatch, first: int, failed: dict[int, str]
) -> Iterable[pa.RecordBatch]:
    """What comes of these rows, the first of which is the batch's row `first`."""
    try:
        made = called(given)
    except MemoryError:
        raise  # of the whole process
    except Exception as error:  # noqa: BLE001 - the operator's
        if len(given) == 1:
            failed[first] = f"raises {type(error).__name__}"
            return
        half = len(given) // 2
        yield from _made(called, given.slice(0, half), first, failed)
        yield from _made(called, given.slice(half), first + half, failed)
        return
    yield fitting(given, made)
