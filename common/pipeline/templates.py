"""Text with places for where a record came from: `{topic}/{partition}@{offset}`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from string import Formatter

NAMES = ("topic", "partition", "offset", "timestamp", "link")


def check(text: str, names: Sequence[str] = NAMES) -> str:
    """The template itself. Raises ValueError where it has another place than these names, or a brace that is
    none; a brace is written twice."""
    try:
        parts = list(Formatter().parse(text))
    except ValueError:
        raise ValueError(f"{text!r} has a single brace: write it twice") from None
    for _, name, form, conversion in parts:
        if name is not None and (name not in names or form or conversion):
            raise ValueError(f"{text!r}: {{{name}}} is none of {', '.join(f'{{{n}}}' for n in names)}")
    return text


def is_constant(text: str) -> bool:
    """Whether it is the same for all records of a partition."""
    return not {"offset", "timestamp"} & {name for _, name, _, _ in Formatter().parse(text)}
