"""The stages of pipelines in the second implementation: functions of one record and options. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from verbatim.verify.pipeline import avro, own_code
from verbatim.verify.pipeline.json_tree import Bad, Members, Number, plain, planted
from verbatim.verify.pipeline.records import (
    EACH,
    Json,
    Record,
    Tree,
    avro_of,
    holds,
    is_json,
    node_of,
    path,
    places,
    put,
    text_of,
    value_at,
    without_each,
)

Keys = Mapping[str, bytes]


def key_id(key: bytes) -> str:
    return hmac.digest(key, b"verbatim pipeline key", "sha256")[:8].hex()


def _filter(options: Json, record: Record, flow: Json, keys: Keys) -> Record | None:
    keep = (
        holds(options["keep"], record, flow)
        if "keep" in options
        else not holds(options["drop"], record, flow)
    )
    if keep:
        return record
    return replace(record, value=None) if options.get("otherwise") == "tombstone" else None


def _headers(options: Json, record: Record, flow: Json, keys: Keys) -> Record:
    def kept(name: str) -> bool:
        if name.startswith("verbatim."):
            return True
        wanted = "keep" not in options or _any(options["keep"], name)
        return wanted and not _any(options.get("remove", []), name)

    headers = [(name, value) for name, value in record.headers if kept(name)]
    new = options.get("rename", {})
    headers = [(new.get(name, name), value) for name, value in headers]
    headers = [(name, value) for name, value in headers if name not in options.get("set", {})]
    for option in ("set", "add"):
        for name, template in options.get(option, {}).items():
            headers.append((name, None if template is None else filled(template, record).encode()))
    return replace(record, headers=tuple(headers))


def _any(expressions: list[str], name: str) -> bool:
    return any(re.fullmatch(expression, name, re.DOTALL) for expression in expressions)


def filled(template: str, record: Record) -> str:
    """A text with the places in it filled in."""

    def fill(match: re.Match[str]) -> str:
        return match[0][0] if match[0] in ("{{", "}}") else str(getattr(record, match[1]))

    return re.sub(r"\{\{|\}\}|\{(\w+)\}", fill, template)


def _mask(options: Json, record: Record, flow: Json, keys: Keys) -> Record:
    done: set[str] = set()
    for text, method in options["fields"].items():
        root, steps = path(text, options.get("side", "value"))
        hide = _hiding(method, keys.get(options.get("key", ""), b""))
        if root == "header":
            hidden = [
                (name, _bytes(hide(text_of(value))) if name == steps[0] and value is not None else value)
                for name, value in record.headers
            ]
            record = replace(record, headers=tuple(hidden))
        elif (item := record.side(root)) is None:
            continue
        elif flow.get(root) == "avro":
            if root not in done:
                done.add(root)
                record = record.with_side(root, _masked_avro(options, record, root, flow, keys))
        elif not is_json(root, flow):
            record = record.with_side(root, _bytes(hide(text_of(item))))
        else:
            holder = [node_of(item)]
            for place in list(places(holder, [EACH, *steps], True)):
                if (value := value_at(*place)) is not None:
                    put(*place, hide(value))
            record = record.with_side(root, Tree(holder[0]))
    return record


def _masked_avro(options: Json, record: Record, root: str, flow: Json, keys: Keys) -> bytes:
    hides = []
    for text, method in options["fields"].items():
        side, steps = path(text, options.get("side", "value"))
        if side == root:
            hides.append(
                (without_each(steps), method, _hiding(method, keys.get(options.get("key", ""), b"")))
            )
    item = record.side(root)
    assert isinstance(item, bytes)
    return avro.masked(item, avro_of(item, record, flow), hides)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")


def _content(value: Any) -> str:
    """Raises Bad."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return str(value)
    raise Bad("neither text nor a number nor a boolean")


def _encrypted(value: Any, key: bytes) -> str:
    """By the key that a version says, or by any where that one is not there."""
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

    plain = ("" if isinstance(value, Number | bool) else '"') + _content(value)
    head = "siv1." + key_id(key)
    siv = AESSIV(bytes.fromhex(key.decode()) or bytes(32))
    sealed = siv.encrypt(plain.encode("utf-8", "surrogateescape"), [head.encode()])
    return f"{head}.{base64.urlsafe_b64encode(sealed).decode().rstrip('=')}"


def _hiding(method: Any, key: bytes) -> Callable[[Any], str | None]:
    if method == "redact":
        return lambda value: "***"
    if method == "null":
        return lambda value: None
    if method == "hmac":
        return lambda value: hmac.new(
            key, _content(value).encode("utf-8", "surrogateescape"), hashlib.sha256
        ).hexdigest()
    if method == "encrypt":
        return lambda value: _encrypted(value, key)
    first, last = (method["partial"].get(name, 0) for name in ("first", "last"))
    by = method["partial"].get("with", "*")

    def hide(value: Any) -> str:
        text = _content(value)
        some = first + last < len(text)
        return "".join(
            c if some and (at < first or at >= len(text) - last) else by for at, c in enumerate(text)
        )

    return hide


def _fields(options: Json, record: Record, flow: Json, keys: Keys) -> Record:
    side = options.get("side", "value")
    item = record.side(side)
    if item is None:
        return record

    def steps(text: str) -> list[Any]:
        return path(text, side)[1]

    root = [_trimmed(node_of(item), options, steps)]
    for text, name in options.get("rename", {}).items():
        for holder, number in list(places(root[0], steps(text), True)):
            holder[number] = (name, holder[number][1])
            if [other for other, _ in holder].count(name) > 1:
                raise Bad("twice")
    for text, kind in options.get("cast", {}).items():
        for place in list(places(root[0], steps(text), True)):
            put(*place, _cast(value_at(*place), kind))
    for text, value in options.get("set", {}).items():
        _set(root, steps(text), filled(value, record) if isinstance(value, str) else value)
    if "flatten" in options and root[0] is not None:
        root = [_flattened(root[0], options["flatten"])]
    if "extract" in options:
        found = list(places(root[0], steps(options["extract"]), True))
        if not found:
            raise Bad("not there")
        root = [value_at(*found[0])]
    if "wrap" in options:
        root = [Members([(options["wrap"], root[0])])]
    return record.with_side(side, Tree(root[0]))


def _trimmed(node: Any, options: Json, steps: Callable[[str], list[Any]]) -> Any:
    """Without what goes."""
    gone = [place for text in options.get("drop", ()) for place in places(node, steps(text), True)]
    for holder, number in sorted(gone, key=lambda place: -place[1]):
        del holder[number]
    keep = [steps(text) for text in options.get("keep", ())]
    for one in keep:
        list(places(node, one, True))
    return _kept(node, keep) if keep else node


def _kept(node: Any, paths: list[list[Any]]) -> Any:
    if [] in paths:
        return node
    if isinstance(node, Members):
        found = [(name, value, [p[1:] for p in paths if p[0] == name]) for name, value in node]
        return Members([(name, _kept(value, inner)) for name, value, inner in found if inner])
    if isinstance(node, list):
        return [_kept(value, [p[1:] for p in paths if p[0] is EACH]) for value in node]
    return node


def _cast(value: Any, kind: str) -> Any:
    if value is None:
        return None
    text = _content(value)
    if kind == "string":
        return text
    if kind == "boolean" and text in ("true", "false"):
        return text == "true"
    forms = {"integer": r"-?(0|[1-9][0-9]*)", "number": r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?"}
    if kind in forms and re.fullmatch(forms[kind], text, re.ASCII):
        return Number(text)
    raise Bad("can't become that")


def _set(root: list[Any], steps: list[str], value: Any) -> None:
    holder, number = root, 0
    for depth, name in enumerate(steps):
        node = value_at(holder, number)
        if not isinstance(node, Members):
            raise Bad("no object")
        found = list(places(node, [name], True))
        if not found:
            for inner in reversed(steps[depth + 1 :]):
                value = {inner: value}
            node.append((name, planted(value)))
            return
        holder, number = found[0]
    put(holder, number, planted(value))


def _flattened(node: Any, delimiter: str) -> Members:
    if not isinstance(node, Members):
        raise Bad("no object")
    found = Members()
    for name, value in node:
        if isinstance(value, Members) and value:
            found += [(name + delimiter + inner, deep) for inner, deep in _flattened(value, delimiter)]
        else:
            found.append((name, value))
    if len(dict(found)) < len(found) or len(dict(node)) < len(node):
        raise Bad("twice")
    return found


def _one(text: str, record: Record, flow: Json) -> Any:
    """The one thing at a path. Raises Bad."""
    root, steps = path(text)
    if root == "header":
        found = [value for name, value in record.headers if name == steps[0]]
        if not found:
            raise Bad("not there")
        return found[-1]
    item = record.side(root)
    place = list(places(node_of(item), steps, True, once=False)) if item is not None else []
    if not place:
        raise Bad("not there")
    return value_at(*place[0])


def _key(text: str, record: Record, flow: Json, keys: Keys) -> Record:
    value = _one(text, record, flow)
    return replace(
        record, key=value if value is None or isinstance(value, bytes) else _content(value).encode()
    )


def _timestamp(text: str, record: Record, flow: Json, keys: Keys) -> Record:
    value = _one(text, record, flow)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise Bad("no time")
    if re.fullmatch(r"[0-9]+", value):
        if len(value) > 19 or int(value) >= 2**63:
            raise Bad("no time")
        return replace(record, timestamp=int(value))
    form = r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[-+]\d\d:\d\d)"
    if isinstance(value, Number) or not re.fullmatch(form, value, re.ASCII):
        raise Bad("no time")
    whole = re.sub(r"\.\d+", "", value).upper().replace(" ", "T").replace("Z", "+00:00")
    try:
        since = datetime.fromisoformat(whole) - datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    except (ValueError, OverflowError):
        raise Bad("no time") from None
    part = re.search(r"\.(\d{1,3})", value)
    ms = since // timedelta(milliseconds=1) + (int(part[1].ljust(3, "0")) if part else 0)
    if ms < 0:
        raise Bad("no time")
    return replace(record, timestamp=ms)


def _validate(options: Json, record: Record, flow: Json, keys: Keys) -> Record:
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    item = record.side(options.get("side", "value"))
    if item is None:
        return record
    schema = options["schema"]
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        if not kind(schema, registry=Registry()).is_valid(plain(node_of(item))):
            raise Bad("does not fit")
    except (ValueError, RecursionError):
        raise Bad("no JSON") from None
    return record


def _route(options: Json, record: Record, flow: Json, keys: Keys) -> Record:
    held = [case["topic"] for case in options.get("cases", ()) if holds(case["when"], record, flow)]
    # Whatever is named is looked up, also where an earlier case decides.
    template = [*held, options.get("topic", options.get("else"))][0]
    if template is None:
        return replace(record, to=None)
    how = options.get("partition")
    return replace(record, to=filled(template, record), among=how["hash"] if isinstance(how, dict) else None)


def hashed(key: bytes | None, partition: int, among: int) -> int:
    """Where Kafka's default partitioner takes a key: murmur2. Without one it is the source's partition that
    counts."""
    if key is None:
        return partition % among
    m, word = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    whole = len(key) - len(key) % 4
    for (k,) in struct.iter_unpack("<I", key[:whole]):
        k = k * m & word
        h = h * m & word ^ (k ^ k >> 24) * m & word
    if whole < len(key):
        h = (h ^ int.from_bytes(key[whole:], "little")) * m & word
    h = (h ^ h >> 13) * m & word
    return ((h ^ h >> 15) & 0x7FFFFFFF) % among


STAGES: dict[str, Callable[[Any, Record, Json, Keys], Record | None]] = {
    "filter": _filter,
    "headers": _headers,
    "mask": _mask,
    "fields": _fields,
    "key": _key,
    "timestamp": _timestamp,
    "validate": _validate,
    "python": own_code.python,
    "sql": own_code.sql,
    "route": _route,
}
