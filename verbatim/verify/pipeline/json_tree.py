"""JSON for the second implementation of pipelines: a tree that keeps the digits of numbers, the order of
members and names that are there twice. Pure, and shares nothing with what it verifies."""

from __future__ import annotations

import json
import re
from typing import Any

_LONE = re.compile("[\ud800-\udfff]")


class Bad(Exception):
    """A record that a stage fails on."""


class Number(str):
    """As it is written."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """An object."""


def tree(text: bytes) -> Any:
    """Members, a list, a str, a Number, a bool or None. Raises Bad."""
    try:
        found = json.loads(
            text.decode(),
            parse_float=Number,
            parse_int=Number,
            parse_constant=_no_constant,
            object_pairs_hook=Members,
        )
    except (ValueError, RecursionError):
        raise Bad("no JSON") from None
    if b"\\u" in text:
        _must_be_text(found)
    return found


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _must_be_text(node: Any) -> None:
    """Half a surrogate pair is no character. Raises Bad."""
    if isinstance(node, Members):
        for name, value in node:
            _must_be_text(name)
            _must_be_text(value)
    elif isinstance(node, list):
        for value in node:
            _must_be_text(value)
    elif isinstance(node, str) and _LONE.search(node):
        raise Bad("no JSON")


def same(one: Any, other: Any) -> bool:
    """Whether two trees are the same, to the digits of their numbers."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Members):
        return len(one) == len(other) and all(
            a[0] == b[0] and same(a[1], b[1]) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def copied(node: Any) -> Any:
    """The same tree, to be changed by itself."""
    if isinstance(node, Members):
        return Members([(name, copied(value)) for name, value in node])
    return [copied(value) for value in node] if isinstance(node, list) else node


def planted(value: Any) -> Any:
    """A tree of what a definition says."""
    return tree(json.dumps(value).encode())


def plain(node: Any) -> Any:
    """As json.loads has it. Raises ValueError for a number of too many digits."""
    if isinstance(node, Members):
        return {name: plain(value) for name, value in node}
    if isinstance(node, list):
        return [plain(value) for value in node]
    return json.loads(node) if isinstance(node, Number) else node


def written(node: Any) -> str:
    """A tree as text, in one way: the same text for the same trees, to the digits of their numbers."""
    if isinstance(node, Members):
        return "{" + ",".join(f"{json.dumps(name)}:{written(value)}" for name, value in node) + "}"
    if isinstance(node, list):
        return "[" + ",".join(map(written, node)) + "]"
    return str(node) if isinstance(node, Number) else json.dumps(node)
