"""A pipeline's definition: the same bytes for the same pipeline, whatever its file looks like, and no
secrets. And the schema of the file, and its keys. Pure, but for reading keys."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from common.config.sources import read_text
from common.errors import SettingsError
from common.pipeline.models import DEFINED, Pipeline

LEAST_KEY_BYTES = 16
"""A shorter key could be guessed."""


def key_id(key: bytes) -> str:
    """What tells a key from another one, and tells nobody the key: 8 bytes in hex."""
    return hmac.digest(key, b"verbatim pipeline key", "sha256")[:8].hex()


def definition(
    pipeline: Pipeline, keys: Mapping[str, bytes], code: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """All that decides what becomes of records, as JSON: of keys the names and ids, no tests, no
    registries. A key that is not in `keys` has no id. `code`: the engine's."""
    told = {"flows": []} | pipeline.model_dump(by_alias=True, exclude_defaults=True, include={"flows"})
    ids = {name: key_id(keys[name]) if name in keys else "" for name in pipeline.keys}
    told |= {"version": pipeline.version, "keys": ids} | ({"code": dict(code)} if code else {})
    return json.dumps(told, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def defined(definition: str, keys: Mapping[str, str]) -> Pipeline:
    """The pipeline of a definition. `keys`: name -> where, as the file says it. Raises SettingsError."""
    try:
        told = {name: what for name, what in json.loads(definition).items() if name != "code"}
        return Pipeline.model_validate({**told, "keys": dict(keys)}, context=DEFINED)
    except (ValueError, TypeError) as error:
        why = str(error).splitlines()[0]
        raise SettingsError(f"a pipeline's definition is not understood: {why}") from None


def sha256(definition: bytes) -> str:
    """Of a definition, in hex."""
    return hashlib.sha256(definition).hexdigest()


def must_be_its_keys(definition: str, keys: Mapping[str, bytes]) -> None:
    """Raises SettingsError where a key is another one than the definition says."""
    for name, its_id in json.loads(definition)["keys"].items():
        if its_id != key_id(keys[name]):
            raise SettingsError(f"key {name} has another id here than in the newest version of the pipeline")


def must_be_its_code(definition: str, code: Mapping[str, str]) -> None:
    """Raises SettingsError where what an engine runs is not what the definition names."""
    its = json.loads(definition).get("code", {})
    for name in sorted(its.keys() | code.keys()):
        if its.get(name) != code.get(name):
            raise SettingsError(
                f"{name} is another one here than in the pipeline's version: {code.get(name, 'none')} here,"
                f" {its.get(name, 'none')} there"
            )


def schema() -> dict[str, Any]:
    """The JSON Schema of the file, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Pipeline.model_json_schema(by_alias=True),
    }


def read_keys(pipeline: Pipeline, environ: Mapping[str, str]) -> dict[str, bytes]:
    """Name -> key. Raises SettingsError, which never shows a key."""
    return {name: _read_key(name, where, environ) for name, where in pipeline.keys.items()}


def read_secret(label: str, where: str, environ: Mapping[str, str]) -> str:
    """What is at `file:PATH` or `env:NAME`. Raises SettingsError, which never shows it."""
    kind, _, place = where.partition(":")
    if kind != "env":
        return read_text(Path(place), label).rstrip("\r\n")
    if place not in environ:
        raise SettingsError(f"{label}: the environment has no {place}")
    return environ[place]


def _read_key(name: str, where: str, environ: Mapping[str, str]) -> bytes:
    if len(key := read_secret(f"key {name}", where, environ).encode()) < LEAST_KEY_BYTES:
        raise SettingsError(f"key {name}: {where} has {len(key)} bytes; {LEAST_KEY_BYTES} are the least")
    return key
