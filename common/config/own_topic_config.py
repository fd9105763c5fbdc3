"""Configuration of a link's own topics, as an operator may add to it: read and checked. Pure; who makes the
topics is elsewhere."""

from __future__ import annotations

from functools import lru_cache

KINDS = (
    *("staging", "positions", "control", "offset-mappings", "group-offsets"),
    *("dead-letters", "schemas", "metrics"),
)

HOUR_MS = 3600 * 1000
LEAST_MESSAGE_BYTES = 1 << 20


@lru_cache(maxsize=16)
def configured(text: str) -> dict[str, dict[str, str]]:
    """`[kind:]key=value`, comma-separated: what to add for each kind of topic. ValueError names what a link
    can't work with."""
    common: dict[str, str] = {}
    own: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (part.strip() for part in entry.partition("="))
        kind, colon, key = name.rpartition(":")
        if not equals or not key or not value:
            raise ValueError(f"entry {entry!r} is not of the form key=value or kind:key=value")
        if colon and kind not in KINDS:
            raise ValueError(f"entry {entry!r}: there is no {kind!r}; expected one of {', '.join(KINDS)}")
        _check(entry, kind, key, value)
        (own[kind] if colon else common)[key] = value
    return {kind: common | own[kind] for kind in KINDS}


def _check(entry: str, kind: str, key: str, value: str) -> None:
    if key.startswith("retention.") and kind == "dead-letters":
        return  # nothing depends on what is there
    if key == "retention.ms" and kind in ("offset-mappings", "metrics"):
        if value != "-1" and not (value.isdecimal() and int(value) >= HOUR_MS):
            raise ValueError(f"entry {entry!r}: {kind} are kept for an hour at least")
    elif key == "max.message.bytes":
        if not value.isdecimal() or int(value) < LEAST_MESSAGE_BYTES:
            raise ValueError(f"entry {entry!r}: a frame needs {LEAST_MESSAGE_BYTES} bytes at least")
    elif key in ("cleanup.policy", "retention.ms", "retention.bytes") or key.startswith("message.timestamp."):
        raise ValueError(f"entry {entry!r}: {key} is fixed, the link depends on it")
