"""Paths of a pipeline's file: where in a record something is. Pure.

    value.address.street   key.id   cards[*].iban   header.tenant   key   value   timestamp   size

A path that begins with none of these words is one in the value, or in the key where `side: key` says so.
`[*]` stands for each element of an array. A name with a dot or a bracket in it is written in double quotes;
behind `header.` all is the header's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Side = Literal["value", "key"]
SIDES: tuple[Side, Side] = ("value", "key")
Kind = Literal["json", "text", "number"]
"""What is found at a path: JSON, text that is compared as text, or a number that is always there."""

EACH = None
Step = str | None
"""The name of an object's member, or EACH."""

_STEP = re.compile(r'(?:"([^"\\\x00-\x1f]+)"|([^."\[\]\\\x00-\x1f]+))((?:\[\*\])*)')
_ROOT = re.compile(r"(value|key)((?:\[\*\])*)(?:\.(?=.)|$)")


@dataclass(frozen=True, slots=True)
class Path:
    """`root`: value, key, header, timestamp or size. A header's name is its only step."""

    root: str
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        if self.root == "header":
            return f"header.{self.steps[0]}"
        text = self.root
        for step in self.steps:
            text += "[*]" if step is EACH else f'."{step}"' if re.search(r"[.\[\]]", step) else f".{step}"
        return text

    @property
    def each(self) -> bool:
        return EACH in self.steps

    def covers(self, other: Path) -> bool:
        """Whether all that is at the other path lies at this one, or is it."""
        return self.root == other.root and other.steps[: len(self.steps)] == self.steps


def parse(text: str, side: Side = "value") -> Path:
    """Raises ValueError, which says what is wrong."""
    if text in ("timestamp", "size"):
        return Path(text, ())
    first = text.partition(".")[0]
    if first in ("timestamp", "size"):
        raise ValueError(f"{first} has no fields; a field of the value is value.{text}")
    if first == "header":
        name = text.partition(".")[2]
        if not name:
            raise ValueError("which header? write header.NAME")
        return Path("header", (name,))
    steps: list[Step] = []
    root: str = side
    at = 0
    if match := _ROOT.match(text):
        root = match[1]
        steps += [EACH] * (len(match[2]) // 3)
        at = match.end()
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            raise ValueError(f"{text!r} is no path: write value.a.b, cards[*].iban, header.x, key or value")
        steps += [step[1] or step[2], *[EACH] * (len(step[3]) // 3)]
        at = step.end()
        if at < len(text):
            if text[at] != "." or at + 1 == len(text):
                raise ValueError(f"{text!r} is no path: behind {text[:at]!r} comes a dot and a name, or [*]")
            at += 1
    if not text:
        raise ValueError("an empty path")
    return Path(root, tuple(steps))
