"""Durations as people write them, for settings and for options. Pure."""

from __future__ import annotations

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """Seconds of a number with a unit. ValueError for anything else."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s|m|h|d)", text.strip(), re.ASCII)
    if not found:
        raise ValueError(f"expected a duration such as 500ms, 30s, 5m or 7d, not {text[:40]!r}")
    return float(found[1]) / 1000 if found[2] == "ms" else float(found[1]) * _UNITS[found[2]]


def seconds_or_number(text: str) -> float:
    """The same, where a number without a unit has always been one of seconds."""
    plain = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})\s*", text, re.ASCII)
    return float(plain[1]) if plain else seconds(text)
