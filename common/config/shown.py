"""Settings as an instance shows them to whoever may reach its page: nothing that is a secret, or that could
hold one. Pure."""

from __future__ import annotations

import re
from typing import Any

from common.config.client_properties import HIDDEN, KNOWN, LOGIN, is_secret
from common.config.fields import FIELDS
from common.config.settings import Settings

_PLAIN = re.compile(
    r"bootstrap\.servers|client\.(id|rack)|sasl\.mechanisms?|sasl\.kerberos\.service\.name"
    r"|ssl\.(ca|certificate|key|keystore|crl)\.location|ssl\.(cipher\.suites|curves\.list|sigalgs\.list)"
)
"""Properties of free text whose value is shown: of any other it is only told that there is one."""


def shown(settings: Settings) -> list[dict[str, str]]:
    """Each setting by its variable, then client properties and Spark's properties: `name` and `value`."""
    plain = settings.redacted()
    lines = [
        (variable, _timed(plain[field]) if field.endswith("_s") else plain[field])
        for variable, field in FIELDS.items()
        if Settings.model_fields[field].description
    ]
    lines += [
        (f"{client}: {name}", _property(name, value))
        for client, properties in sorted(settings.client_properties.items())
        for name, value in sorted(properties.items())
    ]
    lines += [(f"--conf {name}", value) for name, value in sorted(plain["spark_conf"].items())]
    return [{"name": name, "value": _text(value)} for name, value in lines]


def _property(name: str, value: str | int) -> str | int:
    known = KNOWN.get(name)
    free = known is None or known.type == "str"
    return HIDDEN if is_secret(name) or (free and not _PLAIN.fullmatch(name)) else value


def _timed(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:g} s"


def _text(value: Any) -> str:
    if value is None or value == "":
        return "-"
    return LOGIN.sub(f"//{HIDDEN}@", str(value).lower() if isinstance(value, bool) else str(value))
