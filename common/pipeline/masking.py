"""The stage `mask`: what hides a field, and the fields it hides. Pure.

Null stays null. What a method can't hide, such as an object for `hmac`, is a failure of the stage: nothing
slips past it. A field that is not there needs no mask.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import compress, pairwise
from typing import cast

import msgspec
import numpy as np
import pyarrow as pa

from common.kafka.wire.record_by_record import varint
from common.kafka.wire.records import Item
from common.pipeline.avro_fields import Fields
from common.pipeline.avro_values import AvroShape
from common.pipeline.batch import Batch, Done, Run, flags
from common.pipeline.columns import Edit, Flags
from common.pipeline.conditions import Formats
from common.pipeline.encrypting import TEXT, Cipher
from common.pipeline.json_fields import NO_UTF8, Shape
from common.pipeline.judging import text_of
from common.pipeline.paths import SIDES, Path, Side, parse
from common.pipeline.stages import KEYED, Mask, Method, Partial, PartialMethod

NO_SCALAR = "is neither text nor a number nor a boolean"
REDACTED = b"***"
_BLOCK_BYTES = 64

Hide = Callable[[bytes], Item]
"""Of a text in UTF-8, what stands for it."""


class Unmaskable(ValueError):
    """The method can't hide this."""


def hmac(key: bytes) -> Hide:
    """HMAC-SHA256 (RFC 2104), in hex. Both halves of the key are hashed once: hmac.digest does so for each
    text, and takes twice as long."""
    if len(key) > _BLOCK_BYTES:
        key = hashlib.sha256(key).digest()
    key = key.ljust(_BLOCK_BYTES, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key))
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key))

    def hide(text: bytes) -> bytes:
        first, second = inner.copy(), outer.copy()
        first.update(text)
        second.update(first.digest())
        return second.hexdigest().encode()

    return hide


def partial(options: Partial) -> Hide:
    first, last, by = options.first, options.last, options.by

    def hide(item: bytes) -> bytes:
        text = item.decode("utf-8", "surrogateescape")
        rest = len(text) - first - last
        hidden = by * len(text) if rest <= 0 else text[:first] + by * rest + text[len(text) - last :]
        return hidden.encode("utf-8", "surrogateescape")

    return hide


@dataclass(frozen=True)
class Key:
    """Bytes of a key as its file has them, and what an error calls it."""

    bytes: bytes
    label: str


def hiding(method: Method, key: Key | None) -> Hide:
    """Raises SettingsError."""
    if isinstance(method, PartialMethod):
        return partial(method.partial)
    if method in KEYED:
        assert key is not None
        if method == "hmac":
            return hmac(key.bytes)
        encrypt = Cipher(key.bytes, key.label).encrypt
        return lambda text: encrypt(TEXT + text)
    hidden = REDACTED if method == "redact" else None
    return lambda text: hidden


def in_json(method: Method, key: Key | None) -> Callable[[bytes], bytes]:
    """The same of a value's JSON. Raises Unmaskable, and SettingsError at once."""
    if method in ("redact", "null"):
        constant = b"null" if method == "null" else b'"%b"' % REDACTED
        return lambda json: constant
    of_text = of_other = hiding(method, key)
    if method == "encrypt" and key is not None:
        of_other = Cipher(key.bytes, key.label).encrypt

    def hidden(json: bytes) -> bytes:
        first = json[:1]
        if first in (b"{", b"["):
            raise Unmaskable(NO_SCALAR)
        if first == b'"':
            found = of_text(json[1:-1] if b"\\" not in json else text_of(json).encode())
        else:
            found = of_other(json)
        assert found is not None
        return b'"%b"' % found if method in KEYED else msgspec.json.encode(found.decode())

    return hidden


def masking(options: Mask, formats: Formats, keys: Mapping[str, bytes], stage: str) -> Run:
    """`stage`: for messages. Raises SettingsError."""
    key = None if options.key is None else Key(keys[options.key], f"{stage}: key {options.key}")
    methods = {parse(text, options.side): method for text, method in options.fields.items()}
    runs: list[_Part] = []
    for side in SIDES:
        of_side = {path: method for path, method in methods.items() if path.root == side}
        if not of_side:
            continue
        if side in formats.avro:
            runs.append(_avro_mask(side, list(of_side), [in_avro(how, key) for how in of_side.values()]))
        elif formats.kind(next(iter(of_side))) == "json":
            runs.append(_json_mask(side, list(of_side), [in_json(how, key) for how in of_side.values()]))
        else:
            runs.append(_whole_mask(side, hiding(next(iter(of_side.values())), key)))
    for path, method in methods.items():
        if path.root == "header":
            runs.append(_header_mask(cast("str", path.steps[0]), hiding(method, key)))

    def run(batch: Batch) -> Done:
        changed = flags(len(batch))
        failed: dict[int, str] = {}
        for one in runs:
            batch, by_this, failures = one(batch)
            changed |= by_this
            failed |= failures
        return Done(batch, changed, failed=failed)

    return run


_Part = Callable[[Batch], tuple[Batch, Flags, dict[int, str]]]


def in_avro(method: Method, key: Key | None) -> Callable[[bytes, Fields], bytes]:
    """The same of a field in Avro: of its content what comes instead of all of it, with the number of its
    branch of its union. Raises Unmaskable."""
    hide = hiding(method, key)
    kinds = ("string",) if method == "encrypt" else ("string", "bytes")

    def hidden(content: bytes, at: Fields) -> bytes:
        of, branches = at.type, [] if at.union is None else at.union.inner
        if method == "null":
            nothing = [number for number, branch in enumerate(branches) if branch.kind == "null"]
            if not nothing:
                raise Unmaskable("can't be null by its schema")
            return varint(nothing[0])
        if of.kind not in kinds or of.logical:
            raise Unmaskable(f"is of a type that can't hold it: {of.kind}")
        found = hide(content)
        assert found is not None
        return (varint(branches.index(of)) if branches else b"") + varint(len(found)) + found

    return hidden


def _avro_mask(side: Side, paths: list[Path], hides: list[Callable[[bytes, Fields], bytes]]) -> _Part:
    shape = AvroShape([path.steps for path in paths])

    def run(batch: Batch) -> tuple[Batch, Flags, dict[int, str]]:
        column, seen = batch.side(side), shape.look(batch, side)
        failed = {row: f"the {side} {why}" for row, why in seen.failed.items()}
        edits: list[Edit] = []
        changed = flags(len(batch))
        for one in seen.fields:
            if one.type.kind == "null":
                continue
            changed[one.rows] = True
            hide = hides[one.path]
            for (row, begin, end), start in zip(one.places(), one.starts.tolist(), strict=True):
                content = bytes(column.data[begin:end])
                try:
                    if one.type.kind == "string":
                        str(content, "utf-8")
                    edits.append((start, end, hide(content, one)))
                except Unmaskable as error:
                    failed.setdefault(row, f"{paths[one.path]} {error}")
                except UnicodeDecodeError:
                    failed.setdefault(row, f"the {side} {NO_UTF8}")
        return batch.with_side(side, column.spliced(edits)), changed, failed

    return run


def _json_mask(side: Side, paths: list[Path], hides: list[Callable[[bytes], bytes]]) -> _Part:
    shape = Shape(path.steps for path in paths)

    def run(batch: Batch) -> tuple[Batch, Flags, dict[int, str]]:
        column = batch.side(side)
        looked = shape.look(column)
        failed = {row: f"the {side} {why}" for row, why in looked.failed.items()}
        edits: list[Edit] = []
        changed: list[int] = []
        for path, hide, found in zip(paths, hides, looked.found, strict=True):
            jsons = list(map(bytes, found.raws))
            there = [json != b"" and json != b"null" for json in jsons]
            rows = list(compress(found.rows, there))
            changed += rows
            begins = looked.begins(compress(found.raws, there))
            for row, begin, json in zip(rows, begins, compress(jsons, there), strict=True):
                try:
                    edits.append((begin, begin + len(json), hide(json)))
                except Unmaskable as error:
                    failed.setdefault(row, f"{path} {error}")
        return batch.with_side(side, column.spliced(edits)), flags(len(batch), changed), failed

    return run


def _whole_mask(side: Side, hide: Hide) -> _Part:
    def run(batch: Batch) -> tuple[Batch, Flags, dict[int, str]]:
        column = batch.side(side)
        items: list[Item] = [None] * len(batch)
        for row, (begin, end) in enumerate(pairwise(column.bounds.tolist())):
            if column.present is None or column.present[row]:
                items[row] = hide(bytes(column.data[begin:end]))
        return (
            batch.with_column(side, pa.array(items, pa.binary())),
            flags(len(batch), column.rows),
            {},
        )

    return run


def _header_mask(name: str, hide: Hide) -> _Part:
    def run(batch: Batch) -> tuple[Batch, Flags, dict[int, str]]:
        headers = batch.headers
        at = np.flatnonzero(
            headers.named(name.__eq__) & headers.values.is_valid().to_numpy(zero_copy_only=False)
        )
        if not len(at):
            return batch, flags(len(batch)), {}
        items = [hide(item) for item in headers.values.take(at).to_pylist()]
        column = headers.with_values(at, items).to_arrow()
        return batch.with_column("headers", column), flags(len(batch), headers.rows[at]), {}

    return run
