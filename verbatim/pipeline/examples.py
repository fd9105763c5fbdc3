"""The tests in a pipeline's file: records that are given, sent through it, and held against what is expected.
Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import SettingsError
from common.kafka.wire.records import Item, encode_rows, headers_of
from common.link.schema_map import Mapped
from common.pipeline.avro_of_json import Writer
from common.pipeline.avro_schema import NotWalked, Type, parsed
from common.pipeline.batch import Origin
from common.pipeline.engine import Applied, Engine, Outcome
from common.pipeline.json_of_avro import Misfit, reader
from common.pipeline.models import Example, Expected, Flow, Pipeline
from common.pipeline.paths import Side
from common.pipeline.schema_ids import SIDES, front_of
from common.pipeline.wire import ID_BYTES
from verbatim.pipeline.trying import record_lines, tried
from verbatim.pipeline.twice import must_be_pure

LINK = "link"
"""What `{link}` stands for."""
_WORDS = {
    Outcome.LEFT_OUT: "left-out",
    Outcome.TOMBSTONE: "tombstone",
    Outcome.FAILED: "failed",
    Outcome.WAITS: "waits",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A test, and what is otherwise than expected."""

    name: str
    differences: list[str]


def run(pipeline: Pipeline, keys: Mapping[str, bytes]) -> list[Verdict]:
    """Raises SettingsError."""
    return [
        Verdict(
            example.name or f"test {number}",
            list(_differences(pipeline, _engine(pipeline, keys, example), example)),
        )
        for number, example in enumerate(pipeline.tests, 1)
    ]


def shown(pipeline: Pipeline, keys: Mapping[str, bytes], example: Example) -> list[str]:
    """Its record before and after, for people; nothing where no flow takes its topic. Raises
    SettingsError."""
    given = example.given
    if (flow := pipeline.flow_of(given.topic)) is None:
        return []
    rows = {(given.topic, given.partition): _rows(example, flow)}
    (record,) = tried(_engine(pipeline, keys, example), LINK, rows)[given.topic].records
    return list(record_lines(given.topic, record))


def _differences(pipeline: Pipeline, engine: Engine, example: Example) -> Iterator[str]:
    given, expected = example.given, example.expect
    if isinstance(expected, str):
        expected = Expected(outcome=expected)
    flow, ready = pipeline.flow_of(given.topic), engine.flow_of(given.topic)
    if flow is None or ready is None:
        yield f"no flow takes the topic {given.topic}"
        return
    try:
        rows = _rows(example, flow)
    except SettingsError as error:
        yield str(error)
        return
    origin = Origin(LINK, given.topic, given.partition)
    applied = ready.apply(rows, origin)
    must_be_pure(ready, rows, origin, applied)
    outcome = _WORDS.get(Outcome(applied.outcomes[0]), "kept")
    wanted = [expected.outcome] if expected.outcome else ["kept", "tombstone"]
    if outcome not in wanted:
        stopped = applied.failures + applied.waits
        why = "".join(f": {failure.stage}: {failure.reason}" for failure in stopped)
        yield f"expected {' or '.join(wanted)}, but the record is {outcome}{why}"
    elif len(applied.rows):
        found = _found(applied, flow, example)
        for name in sorted(expected.model_fields_set & found.keys()):
            yield from _unlike(getattr(expected, name), found[name], name)


def _engine(pipeline: Pipeline, keys: Mapping[str, bytes], example: Example) -> Engine:
    ids = {int(schema_id): target for schema_id, target in example.map.items()}
    texts = {int(schema_id): Mapped(0, "", (), json.dumps(of)) for schema_id, of in example.schemas.items()}
    return Engine(
        pipeline, keys, lambda _, schema_id: ids.get(schema_id), lambda _, schema_id: texts.get(schema_id)
    )


def _rows(example: Example, flow: Flow) -> Any:
    """Raises SettingsError for what is no Avro of its schema."""
    given = example.given
    headers = [(name, None if text is None else text.encode()) for name, text in given.headers.items()]
    key, value = (_item(example, flow, side) for side in SIDES)
    return encode_rows([given.offset], [given.timestamp], [1], [key], [value], [headers or None])


def _id_bytes(flow: Flow, side: Side) -> int:
    return ID_BYTES[getattr(flow.wire, side, None) or "confluent"]


def _item(example: Example, flow: Flow, side: Side) -> Item:
    given, form, where = getattr(example.given, side), getattr(flow, side), f"given.{side}"
    schema_id = example.given.ids.get(side)
    if given is None:
        return None
    size = _id_bytes(flow, side)
    if schema_id is not None and schema_id >> 8 * size:
        raise SettingsError(f"given.ids.{side} has no place in {size} bytes")
    front = b"" if schema_id is None else front_of(schema_id, size)
    if form == "avro":
        try:
            return front + Writer(_type(schema_id, example)).write(given)
        except Misfit as error:
            raise SettingsError(
                f"{where} is no Avro of its schema: {', '.join((*error.place, error.why))}"
            ) from None
    text = given if form == "bytes" and isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return front + text.encode()


def _type(schema_id: int | None, example: Example) -> Type:
    if schema_id is None:
        raise SettingsError("Avro is given: say which schema it is of, as ids, and the schema, in schemas")
    if str(schema_id) not in example.schemas:
        raise SettingsError(f"schema {schema_id} is not among its schemas")
    try:
        return parsed(json.dumps(example.schemas[str(schema_id)]))
    except NotWalked as error:
        raise SettingsError(f"schema {schema_id} {error}") from None


def _found(applied: Applied, flow: Flow, example: Example) -> dict[str, Any]:
    row = applied.rows.to_pylist()[0]
    ids: dict[str, int] = {}
    behind = flow.formats[-1]
    for side in SIDES:
        item, avro = row[side], side in behind.avro
        if item is not None and item[:1] == b"\0" and (avro or getattr(flow.wire, side, None) is not None):
            end = 1 + _id_bytes(flow, side)
            ids[side], row[side] = int.from_bytes(item[1:end], "big"), item[end:]
            if avro:
                sources = (int(source) for source, target in example.map.items() if target == ids[side])
                row[side], _ = reader(_type(next(sources, ids[side]), example))(row[side], 0)
    return {
        "ids": ids,
        "key": _shown(row["key"], behind.key),
        "value": _shown(row["value"], behind.value),
        "headers": {name: _shown(value, "bytes") for name, value in headers_of(applied.rows)[0] or ()},
        "timestamp": row["timestamp"],
        "topic": applied.topics[0],
    }


def _shown(item: Item, form: str) -> Any:
    if item is None:
        return None
    try:
        return item.decode() if form == "bytes" else json.loads(item)
    except ValueError:
        return item.decode(errors="backslashreplace")


def _unlike(expected: Any, found: Any, where: str) -> Iterator[str]:
    """Of a mapping only what is expected is looked at. `{matches: expression}` stands for a text, and
    `{exists: false}` for nothing at all."""
    if isinstance(expected, dict) and expected.keys() == {"matches"}:
        if not isinstance(found, str) or not re.fullmatch(expected["matches"], found, re.DOTALL):
            yield f"{where}: {json.dumps(found)} does not match {expected['matches']}"
    elif isinstance(expected, dict) and isinstance(found, dict):
        for name, inner in expected.items():
            if inner == {"exists": False}:
                if name in found:
                    yield f"{where}.{name}: expected nothing, found {json.dumps(found[name])}"
            elif name not in found:
                yield f"{where}.{name}: is not there"
            else:
                yield from _unlike(inner, found[name], f"{where}.{name}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from _unlike(one, other, f"{where}[{number}]")
    elif type(expected) is not type(found) or expected != found:
        yield f"{where}: expected {json.dumps(expected)}, found {json.dumps(found)}"
