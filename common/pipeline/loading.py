"""A pipeline's file: read, checked, and every error in one line with file, line, stage and option. Nothing of
a secret is read here."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, cast

import yaml
from pydantic import ValidationError

from common.config.sources import read_text
from common.errors import SettingsError
from common.pipeline.models import Pipeline

Location = tuple[str | int, ...]

_SAID = {
    "missing": "is missing",
    "model_type": "expected options, each with a name",
    "dict_type": "expected a mapping",
    "list_type": "expected a list",
    "string_type": "expected text: put it in quotes",
    "too_short": "nothing is in it",
}
"""Instead of pydantic's words, where these are about Python."""
_ALTERNATIVES = {"bool", "int", "float", "str", "none"}
"""What pydantic calls the types of a value that may be of several."""


def load(file: Path) -> Pipeline:
    """Raises SettingsError."""
    return parse(read_text(file, "pipeline"), file)


def parse(text: str, file: Path) -> Pipeline:
    """The text of a file; what it names is looked for beside it. Raises SettingsError."""
    try:
        root = yaml.compose(text, _Loader)
        data = _data(root, file) if root is not None else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or "it is no YAML"
        raise SettingsError(f"{file}{f':{mark.line + 1}' if mark else ''}: {why}") from None
    except RecursionError:
        raise SettingsError(f"{file}: nested too deeply") from None
    if root is None or not isinstance(data, dict):
        raise SettingsError(f"{file}: a pipeline has version and flows")
    try:
        return Pipeline.model_validate(data)
    except ValidationError as error:
        found = [(*_where(root, _location(one)), _message(one)) for one in error.errors(include_url=False)]
        line, place, message = min(found, key=lambda one: one[0])
        raise SettingsError(f"{file}:{line}: {place}{': ' if place else ''}{message}") from None


def _location(error: Any) -> Location:
    return (*error["loc"], *error.get("ctx", {}).get("at", ()))


def _message(error: Any) -> str:
    if _ALTERNATIVES.intersection(error["loc"][-1:]):
        return "expected one value, which is compared as it is"
    return _SAID.get(error["type"]) or error["msg"][:1].lower() + error["msg"][1:]


def _where(root: yaml.Node, location: Location) -> tuple[int, str]:
    """The line, and the place in words. Parts that the file does not have are pydantic's own, but for a last
    one that is missing."""
    node, line = root, root.start_mark.line + 1
    parts: list[str] = []
    for step in location:
        inner, at = _inner(node, step)
        if inner is not None:
            node, line = inner, at
        elif step != location[-1] or step in _OWN_WORDS:
            continue
        parts.append(f"{_NUMBERED.get(parts[-1], '')}{step + 1}" if isinstance(step, int) else step)
        if isinstance(step, int) and len(parts) > 1 and parts[-2] in _NUMBERED:
            del parts[-2]
    return line, ", ".join(_joined(parts))


_OWN_WORDS = {"map", "other", "[key]", *_ALTERNATIVES}
_NUMBERED = {"flows": "flow ", "stages": "stage ", "tests": "test "}


def _joined(parts: list[str]) -> list[str]:
    """What is counted stands by itself, the rest with dots between."""
    words: list[str] = []
    fresh = True
    for part in parts:
        counted = part.startswith(tuple(_NUMBERED.values()))
        if counted or fresh:
            words.append(part)
        else:
            words[-1] += f".{part}"
        fresh = counted
    return words


def _inner(node: yaml.Node, step: str | int) -> tuple[yaml.Node | None, int]:
    """What a mapping or a list has at a step, and the line where that is written."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.value == str(step):
                return value, name.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step].start_mark.line + 1
    return None, 0


class _Loader(yaml.SafeLoader):
    """Scalars as YAML 1.2 has them, which is JSON's way: `no`, `2024-01-01` and `0x10` are text."""

    # It is the class's; the stubs say an instance's.
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]


for _tag, _pattern, _first in (
    ("null", r"(?:~|null|)$", ["~", "n", ""]),
    ("bool", r"(?:true|false)$", ["t", "f"]),
    ("int", r"-?(?:0|[1-9][0-9]*)$", list("-0123456789")),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?$", list("-0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


def _data(node: yaml.Node, file: Path, at: str = "") -> Any:
    """What a node stands for. Raises SettingsError, and yaml's errors."""
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for name, value in node.value:
            where = f"{file}:{name.start_mark.line + 1}"
            if not isinstance(name, yaml.ScalarNode):
                raise SettingsError(f"{where}: a name is expected")
            if name.value in found:
                raise SettingsError(f"{where}: {name.value} is given twice")
            found[name.value] = _data(value, file, name.value)
            if at == "validate" and name.value == "schema" and isinstance(found["schema"], str):
                found["schema"] = _schema(file.parent / found["schema"], where)
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_data(value, file) for value in node.value]
    return _scalar(cast("yaml.ScalarNode", node), file)


def _scalar(node: yaml.ScalarNode, file: Path) -> Any:
    text = node.value
    match node.tag.rpartition(":")[2]:
        case "null":
            return None
        case "bool":
            return text == "true"
        case "int" if len(text) < 1000:
            return int(text)
        case "float":
            number = float(text)
            if Decimal(text) != Decimal(repr(number)):
                raise SettingsError(
                    f"{file}:{node.start_mark.line + 1}: {text} has more digits than a number of this file"
                    " may have"
                )
            return number
        case "str":
            return text
    raise SettingsError(f"{file}:{node.start_mark.line + 1}: {node.tag} is not known here")


def _schema(file: Path, where: str) -> Any:
    try:
        return json.loads(read_text(file, where))
    except ValueError as error:
        raise SettingsError(f"{where}: {file} is no JSON: {error}") from None
