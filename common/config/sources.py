"""Where settings come from: flags, the environment, a YAML file; which of them counts, and what it is called
in errors."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml

from common.config import client_properties
from common.config.client_properties import Given
from common.config.fields import FIELDS, PREFIX, Cluster, flag_of
from common.config.legacy import OLD_VARIABLES
from common.errors import SettingsError

_FAMILY = re.compile(PREFIX + r"(SOURCE|DESTINATION)_(PROPERTIES|CONSUMER|PRODUCER|ADMIN)_([A-Z0-9_]+)")
_FILE = "_FILE"


class Sources:
    """What was given, first of flags, environment, file; each value with a label that begins with the
    variable's name."""

    def __init__(self, layers: list[tuple[str, Mapping[str, str]]]) -> None:
        self._layers = layers

    @classmethod
    def read(
        cls,
        environ: Mapping[str, str],
        config_file: str | os.PathLike[str] | None,
        flags: Mapping[str, str | None],
    ) -> Sources:
        file = read_yaml(Path(config_file)) if config_file else {}
        for name in file:
            _refuse_unknown(name, f"{name} (in {config_file})")
        for name in environ:
            if name.startswith(PREFIX):
                _refuse_unknown(name, name)
        given = {name: value for name, value in flags.items() if value is not None}
        for name in given:
            _refuse_unknown(name, f"{name} (flag)")
        return cls([("flag", given), ("", environ), (f"in {config_file}", file)])

    def get(self, variable: str) -> Given | None:
        """The value that counts; an empty one counts as not given."""
        for origin, values in self._layers:
            if values.get(variable, "").strip():
                where = flag_of(variable) if origin == "flag" else origin
                return Given(variable, values[variable], f"{variable} ({where})" if where else variable)
        return None

    def mentions(self, variable: str) -> bool:
        return any(variable in values for _, values in self._layers)

    def family(self, cluster: Cluster, group: str) -> list[Given]:
        """Properties of `KAFKA_CLUSTERS_<cluster>_<group>_<KEY>`; an empty one is a value, for some have a
        meaning. Raises SettingsError."""
        found: dict[str, Given] = {}
        for origin, values in reversed(self._layers):
            of_layer: dict[str, Given] = {}
            for variable in sorted(values):
                match = _FAMILY.fullmatch(variable)
                if match and match[1] == cluster.upper() and match[2] == group:
                    label = f"{variable} ({origin})" if origin else variable
                    given = _property(match[3], values[variable], label)
                    if given.name in of_layer:
                        raise SettingsError(
                            f"{label}: {given.name} is also given by {of_layer[given.name].label}; keep one"
                        )
                    of_layer[given.name] = given
            # An alias in the file gives way to the property's other spelling in the environment.
            spelled = {client_properties.ALIASES.get(name, name) for name in of_layer}
            found = {
                n: g for n, g in found.items() if client_properties.ALIASES.get(n, n) not in spelled
            } | of_layer
        return list(found.values())


def _property(key: str, value: str, label: str) -> Given:
    """Of the last part of a variable's name; with `_FILE` behind it the value is what the file holds."""
    name = client_properties.from_key(key)
    if not key.endswith(_FILE) or name in client_properties.KNOWN:
        return Given(name, value, label)
    name = client_properties.from_key(key.removesuffix(_FILE))
    return Given(name, read_text(Path(value), label).rstrip("\r\n"), label)


def is_setting(name: str) -> bool:
    return name in FIELDS or name in OLD_VARIABLES or _FAMILY.fullmatch(name) is not None


def _refuse_unknown(name: str, label: str) -> None:
    if is_setting(name):
        return
    near = difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.8)
    raise SettingsError(f"{label}: there is no such setting" + (f"; did you mean {near[0]}?" if near else ""))


def read_text(path: Path, label: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{label}: can't read {path}: {error.strerror}") from None
    except ValueError:
        raise SettingsError(f"{label}: {path} is not UTF-8 text") from None


class _Loader(yaml.SafeLoader):
    """Leaves scalars as they are written: a date, an octal number or `no` means what it would in the
    environment."""

    # It is the class's; the stubs say an instance's.
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        first: [(tag, pattern) for tag, pattern in resolvers if tag == "tag:yaml.org,2002:null"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_yaml(path: Path) -> dict[str, str]:
    """A mapping of variables to scalars, as text. Errors name file and line, and show nothing of the
    content."""
    try:
        data = yaml.load(read_text(path, "--config"), _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise SettingsError(f"--config: {path} is no YAML{where}") from None
    if data is not None and not isinstance(data, dict):
        raise SettingsError(f"--config: {path} must map variables to values")
    for name, value in (data or {}).items():
        if not isinstance(value, str | None):
            raise SettingsError(f"{name} (in {path}): expected one value, not a {type(value).__name__}")
    return {str(name): value or "" for name, value in (data or {}).items()}
