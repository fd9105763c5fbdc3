"""Which secrets this machine knows: of a link, of its folder's other links, of the environment. Reads files,
and shows nothing of them; taking secrets out of text is verbatim/bundle/scrubbing.py's part.

Variables are read as they are written, whether a link can be made of them or not: what a broken file says may
stand in a log all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from common.app.links.folder import ENDINGS
from common.config import telemetry
from common.config.client_properties import Given, is_secret, java_properties, without_jaas
from common.config.fields import PREFIX
from common.config.settings import Settings, names_secret
from common.config.sources import read_text, read_yaml
from common.errors import SettingsError
from common.pipeline import loading
from common.pipeline.definition import read_secret
from verbatim.bundle.scrubbing import in_path, secrets_of

T = TypeVar("T")
LEAST_OF_ENVIRONMENT = 8
"""Characters: what is shorter there, whatever it is called, is rather a word than a secret."""
_LINE = re.compile(r"^\s*([A-Z][A-Z0-9_]*)\s*:\s*(.+?)\s*$", re.MULTILINE)


def known(settings: Settings, folder: Path | None, environ: Mapping[str, str]) -> tuple[set[str], list[str]]:
    """The secrets; and what was not there to be read, so that its secrets are not among them. `folder`: of
    links' files."""
    read = _Reader(environ)
    found = secrets_of(settings)
    found.update(read.variables({"PIPELINE": settings.pipeline or ""}))
    found.update(read.variables(environ), read.others())
    for file in read.files(folder):
        found.update(read.variables(read.settings(file)))
    return found, list(dict.fromkeys(read.missed))


class _Reader:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self.missed: list[str] = []
        self._environ = environ

    def files(self, folder: Path | None) -> list[Path]:
        listed = self._or_missed(lambda: list(folder.iterdir()), str(folder)) if folder else None
        return sorted(file for file in listed or [] if file.suffix in ENDINGS)

    def settings(self, file: Path) -> Mapping[str, str]:
        try:
            return read_yaml(file)
        except SettingsError:
            text = self._text(str(file), "--links")
            return {name: value.strip("'\"") for name, value in _LINE.findall(text)}

    def variables(self, values: Mapping[str, str]) -> Iterator[str]:
        for name, value in values.items():
            if not name.startswith(PREFIX) or not value.strip():
                continue
            if name.endswith("_CLIENT_CONFIG"):
                yield from self._client_config(Path(value.strip()), name)
            elif is_secret(name.removesuffix("_FILE").lower().replace("_", ".")):
                yield from _of_property(name, self._value(name, value))
        yield from telemetry.secrets(values)
        yield from in_path(values.get("STATE_PATH", ""))
        if file := values.get("PIPELINE", "").strip():
            yield from self._pipeline(Path(file))

    def others(self) -> Iterator[str]:
        """Of the environment, what other software reads: AWS_SECRET_ACCESS_KEY, say."""
        for name, value in self._environ.items():
            if names_secret(name) and not name.startswith(PREFIX) and len(value) >= LEAST_OF_ENVIRONMENT:
                yield self._value(name, value).strip()

    def _client_config(self, file: Path, label: str) -> Iterator[str]:
        for name, value, _ in java_properties(self._text(str(file), label)):
            if is_secret(name):
                yield from _of_property(name, value)

    def _pipeline(self, file: Path) -> Iterator[str]:
        made = self._or_missed(partial(loading.load, file), str(file))
        if made is None:
            return
        ends = [made.registries.source, made.registries.target] if made.registries else []
        logins = [where for end in ends if end.auth for where in (end.auth.basic, end.auth.bearer) if where]
        for where in (*made.keys.values(), *logins):
            secret = self._or_missed(partial(read_secret, where, where, self._environ), where)
            yield from (secret, secret.partition(":")[2]) if secret else ()

    def _value(self, name: str, value: str) -> str:
        return self._text(value, name) if name.endswith("_FILE") else value

    def _text(self, file: str, label: str) -> str:
        return self._or_missed(lambda: read_text(Path(file.strip()), label), label) or ""

    def _or_missed(self, read: Callable[[], T], what: str) -> T | None:
        try:
            return read()
        except OSError as error:
            self.missed.append(f"can't read {what}: {error.strerror}")
        except SettingsError as error:
            self.missed.append(str(error))
        return None


def _of_property(name: str, value: str) -> Iterator[str]:
    yield value.strip()
    if name.lower().replace("_", ".").removesuffix(".file").endswith("sasl.jaas.config"):
        with suppress(SettingsError):
            found = without_jaas([Given("sasl.jaas.config", value, name)])
            yield from (given.value for given in found if is_secret(given.name))
