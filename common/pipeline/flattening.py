"""Two options of the stage `fields` that go through whole objects: `keep`, and `flatten`. Pure.

Members are copied as they are written; only braces and commas between them, and the names of `flatten`, are
new.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pyarrow as pa
from msgspec import Raw

from common.pipeline.json_fields import Node, forth, name_begin, name_end

_raws = msgspec.json.Decoder(dict[str, Raw]).decode
_elements = msgspec.json.Decoder(list[Raw]).decode
_text = msgspec.json.Decoder(str).decode


class Doubled(ValueError):
    """A name is there twice."""


class NoObject(ValueError):
    """There is something else."""


class _Member(NamedTuple):
    """`name`: as it is decoded; `written`: as it is written, without quotes; `between`: a colon, and what is
    white."""

    name: str
    written: bytes
    between: bytes
    value: bytes


def _members(text: bytes, strict: bool) -> Iterator[_Member]:
    """Of an object, in order. Of a name that is there twice the last one; `strict`: raises Doubled."""
    base = pa.py_buffer(text).address
    spans = []
    for name, raw in _raws(text).items():
        buffer = pa.py_buffer(raw)
        spans.append((buffer.address - base, buffer.size, name))
    at = forth(text, 1)
    for begin, size, name in sorted(spans):
        last = name_end(text, begin)
        first = name_begin(text, last)
        if strict and first != at:
            raise Doubled
        yield _Member(name, text[first + 1 : last], text[last + 1 : begin], text[begin : begin + size])
        at = forth(text, begin + size)
        if text[at] == ord(","):
            at = forth(text, at + 1)


def kept(text: bytes, node: Node) -> bytes:
    """JSON with only what the node asks for."""
    if node.at is not None:
        return text
    if text[:1] == b"{" and node.members:
        return b"{%b}" % b",".join(
            b'"%b"%b%b' % (m.written, m.between, kept(m.value, node.members[m.name]))
            for m in _members(text, strict=False)
            if m.name in node.members
        )
    if text[:1] == b"[" and node.each is not None:
        return b"[%b]" % b",".join(kept(bytes(element), node.each) for element in _elements(text))
    return text


def flattened(text: bytes, delimiter: str) -> bytes:
    """An object whose members are no objects, unless empty ones. Raises Doubled and NoObject."""
    if text[:1] != b"{":
        raise NoObject
    found: list[tuple[bytes, bytes]] = []
    joined = json.dumps(delimiter, ensure_ascii=False)[1:-1].encode()
    if not _flatten(text, b"", joined, found):
        return text
    if len({_text(b'"%b"' % name) for name, _ in found}) < len(found):
        raise Doubled
    return b"{%b}" % b",".join(b'"%b":%b' % member for member in found)


def _flatten(text: bytes, prefix: bytes, joined: bytes, found: list[tuple[bytes, bytes]]) -> bool:
    """Whether there was an object in it."""
    deep = False
    for member in _members(text, strict=True):
        name = prefix + member.written
        if member.value[:1] == b"{" and member.value[forth(member.value, 1)] != ord("}"):
            _flatten(member.value, name + joined, joined, found)
            deep = True
        else:
            found.append((name, member.value))
    return deep
