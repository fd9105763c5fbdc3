"""Takes secrets out of text that somebody else will read. Pure.

The link's own secrets are known, and go wherever they stand, in the forms in which lines have them. Of
others, in a line of a log say, only the look tells.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from urllib.parse import quote

from common.config import state_path, telemetry
from common.config.client_properties import HIDDEN, is_secret
from common.config.settings import Settings

LEAST = 4
"""Characters: a shorter secret would take half of the text along."""
_NAME = r"((?:password|passwd|passphrase|secret|token|credentials?|(?:api|access|account|private|shared)[._-]?key)"
_QUOTED = re.compile(_NAME + r"""\\?["']?\s*[=:]\s*)(\\?["'])(.*?)\2""", re.IGNORECASE)
"""Also in a line that is itself within JSON."""
_BARE = re.compile(_NAME + r"""\s*[=:]\s*)(?![\\"'{\[*])[^\s"'\\,;&}\]]+""", re.IGNORECASE)
_SENT = re.compile(r"\b((?i:basic|bearer))\s+(?=\S*[A-Z0-9=])[\w+/=.~-]{8,}")
_LOGIN = re.compile(r"//[^/@\s\"']*@")
_KEY = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)


class Scrubber:
    """`text` gives what it gets without secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets if len(secret) >= LEAST for form in _forms(secret)}
        # The longest first: one may be a part of another.
        known = "|".join(map(re.escape, sorted(forms, key=lambda form: (-len(form), form))))
        self._known = re.compile(known) if known else None

    def text(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        text = _KEY.sub(HIDDEN, text)
        text = _SENT.sub(rf"\1 {HIDDEN}", text)
        text = _LOGIN.sub(f"//{HIDDEN}@", text)
        text = _QUOTED.sub(rf"\1\2{HIDDEN}\2", text)
        return _BARE.sub(rf"\1{HIDDEN}", text)


def secrets_of(settings: Settings) -> set[str]:
    """All that a link's settings hide."""
    found = {
        str(value)
        for properties in settings.client_properties.values()
        for name, value in properties.items()
        if is_secret(name)
    }
    found |= set(telemetry.secrets(settings.otel_variables))
    shown = settings.redacted()["spark_conf"]
    found |= {value for name, value in settings.spark_conf.items() if shown[name] != value}
    return found | in_path(settings.state_path)


def in_path(path: str) -> set[str]:
    """What STATE_PATH has of a secret."""
    seen = set(_words(state_path.redacted(path)))
    return {word for word in _words(path) if word not in seen}


def _words(url: str) -> list[str]:
    return re.split(r"[/@:?&=;]", url)


def _forms(secret: str) -> set[str]:
    """As it is, as HTTP sends it, for a URL, and in JSON, also in JSON that is within JSON."""
    forms = {secret, quote(secret), quote(secret, safe=""), base64.b64encode(secret.encode()).decode()}
    for escaped in (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
        forms |= {escaped, json.dumps(escaped)[1:-1], json.dumps(escaped, ensure_ascii=False)[1:-1]}
    return forms
