"""Control records as JSON, also such as no writer writes: with fields missing, of other types, and of kinds
that are not known."""

from __future__ import annotations

from typing import Any

import orjson


def encode(kind: str, **fields: Any) -> bytes:
    return orjson.dumps({"kind": kind, **fields})
