"""Pipelines for tests: from text to what runs them, and records to run them on, with hypothesis."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st

from common.kafka.wire.records import Header, Item, encode_rows, headers_of
from common.link.schema_map import Mapped
from common.pipeline import loading
from common.pipeline.avro_values import Texts
from common.pipeline.batch import Origin
from common.pipeline.definition import definition
from common.pipeline.engine import Applied, Engine, Outcome
from common.pipeline.models import Pipeline
from verbatim.verify.pipeline import definition as second
from verbatim.verify.pipeline.records import Record
from verbatim.verify.pipeline.schema_ids import Ids
from verbatim.verify.pipeline.stages import hashed

ORIGIN = Origin("link", "orders", 3)
KEYS = {"k1": b"0123456789abcdef" * 4}
FIRST_OFFSET = 40
FEW = settings(max_examples=40)
"""An example of these is a batch of documents, and takes its time to be thought of."""
Given = tuple[Item, Item, Sequence[Header] | None, int]
"""Key, value, headers, timestamp."""


REGISTRIES = {"source": {"url": "http://source"}, "target": {"url": "http://target"}}


def pipeline(*stages: Any, **flow: Any) -> Pipeline:
    """Of one flow for all topics, whose values are JSON if it does not say otherwise."""
    flows = [{"topics": [".*"], "value": "json", **flow, "stages": list(stages)}]
    told: dict[str, Any] = {"version": 1, "keys": {"k1": "file:/nowhere"}}
    if any("schema-ids" in stage for stage in stages) or "avro" in flow.values():
        told |= {"registries": REGISTRIES, "schemas": {}}
    text = json.dumps({**told, "flows": flows})
    return loading.parse(text, Path("pipeline.yaml"))


def rows_of(records: Sequence[Given]) -> pa.RecordBatch:
    keys, values, headers, timestamps = zip(*records, strict=True) if records else ((), (), (), ())
    offsets = range(FIRST_OFFSET, FIRST_OFFSET + len(records))
    return encode_rows(offsets, timestamps, [1] * len(records), keys, values, headers)


def applied(
    made: Pipeline, records: Sequence[Given], ids: Ids | None = None, texts: Mapping[int, str] | None = None
) -> Applied:
    """`ids`: those of schemas at the target; `texts`: of schemas at the source, by id."""
    known = ids or {}
    flow = Engine(made, KEYS, lambda *schema: known.get(schema), _texts(texts or {})).flow_of(ORIGIN.topic)
    assert flow is not None
    return flow.apply(rows_of(records), ORIGIN)


def _texts(texts: Mapping[int, str]) -> Texts:
    known = {(".", schema_id): Mapped(0, "", (), text) for schema_id, text in texts.items()}
    return lambda *schema: known.get(schema)


def values(made: Pipeline, *given: Item) -> list[Item]:
    """What becomes of these values; of one that goes no further, nothing."""
    found = applied(made, [(None, value, None, 0) for value in given])
    return list(found.rows.column(4).to_pylist())


def place_of(record: Record) -> str | None:
    """Where it goes, as the engine says it. No stage before has changed a key of JSON."""
    if record.to is None or record.among is None:
        return record.to
    assert record.key is None or isinstance(record.key, bytes)
    return f"{record.to}/{hashed(record.key, record.partition, record.among)}"


def judged_alike(
    made: Pipeline,
    records: Sequence[Given],
    keys: Mapping[str, bytes] = KEYS,
    ids: Ids | None = None,
    texts: Mapping[int, str] | None = None,
) -> Applied:
    """Both implementations make the same of the records."""
    found = applied(made, records, ids, texts)
    oracle = second.Pipeline.of(
        definition(made, KEYS, Engine(made, KEYS).code),
        keys,
        ids,
        {(".", n): (text, False) for n, text in (texts or {}).items()},
    )
    kept = iter(zip(found.rows.to_pylist(), headers_of(found.rows), found.topics, strict=True))
    failed = {failure.offset: failure for failure in found.failures}
    words = {"kept": {Outcome.KEPT, Outcome.CHANGED}, "tombstone": {Outcome.TOMBSTONE}}
    words |= {"left-out": {Outcome.LEFT_OUT}, "failed": {Outcome.FAILED}, "waits": {Outcome.WAITS}}
    for row, (key, value, headers, timestamp) in enumerate(records):
        offset = FIRST_OFFSET + row
        record = Record(
            ORIGIN.topic, ORIGIN.partition, offset, timestamp, key, value, tuple(headers or ()), ORIGIN.link
        )
        result = oracle.apply(record)
        outcome = Outcome(found.outcomes[row])
        assert outcome in words[result.outcome], (outcome, result, failed.get(offset))
        if outcome is Outcome.FAILED:
            assert failed[offset].stage.startswith(f"stage {result.stage} ")
        elif outcome not in (Outcome.LEFT_OUT, Outcome.WAITS):
            got, got_headers, to = next(kept)
            assert to == place_of(result.record)
            assert got["offset"] == offset
            same = result.is_copied_as(got["timestamp"], got["key"], got["value"], got_headers)
            assert same, (got, result)
            if outcome is Outcome.KEPT:
                assert (got["key"], got["value"], got["timestamp"]) == (key, value, timestamp)
                assert list(got_headers or ()) == list(headers or ())
    assert next(kept, None) is None and len(failed) == (found.outcomes == Outcome.FAILED).sum()
    return found


# JSON as it may be written: white space, escapes, digits and names that come twice.

NAMES = ("a", "b", "id", "email", "a/b", "straße")
white = st.sampled_from(["", "", "", " ", "\n", "\t ", "\r\n"])
numbers = st.sampled_from(
    [
        "0",
        "-0",
        "1",
        "1.10",
        "1.1",
        "12345678901234567890123",
        "1e3",
        "1E+400",
        "-2.50",
        "1e99999999999999999999",
    ]
)


@st.composite
def strings(draw: st.DrawFn, content: st.SearchStrategy[str] | None = None) -> str:
    """A string of JSON, each character in one of its spellings."""
    text = draw(
        content
        if content is not None
        else st.text(max_size=6) | st.sampled_from([*NAMES, "5", "true", "1.10"])
    )
    if draw(st.booleans()):
        return json.dumps(text, ensure_ascii=draw(st.booleans()))
    spelled = [
        json.dumps(c)[1:-1]
        if c in '"\\' or ord(c) < 32 or ord(c) > 0xFFFF or not draw(st.booleans())
        else f"\\u{ord(c):04x}"
        for c in text
    ]
    return '"' + "".join(spelled) + '"'


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[str], names: Sequence[str] = NAMES) -> str:
    twice = draw(st.integers(0, 9)) == 0
    chosen = draw(st.lists(st.sampled_from(names), max_size=5, unique=not twice))
    members = [
        f"{draw(white)}{draw(strings(st.just(name)))}{draw(white)}:{draw(white)}{draw(inner)}{draw(white)}"
        for name in chosen
    ]
    return "{" + (",".join(members) or draw(white)) + "}"


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    elements = [f"{draw(white)}{draw(inner)}{draw(white)}" for _ in range(draw(st.integers(0, 3)))]
    return "[" + (",".join(elements) or draw(white)) + "]"


scalars = strings() | numbers | st.sampled_from(["null", "true", "false"])
jsons = st.recursive(scalars, lambda inner: objects(inner) | arrays(inner), max_leaves=8)
documents = st.builds(lambda a, b, c: f"{a}{b}{c}".encode(), white, objects(jsons) | jsons, white)
"""Mostly objects."""
broken = st.sampled_from(
    [b"", b"{", b'{"a":01}', b"\xff", b'{"a":"\xff"}', b'{"x":"\\ud800"}', b'{"a":1}x', b"nul", b"NaN"]
)
header_names = st.sampled_from(["x-a", "x-b", "keep", "verbatim.provenance"])
headers = st.none() | st.lists(
    st.tuples(header_names, st.none() | st.sampled_from([b"", b"5", b"\xff", b"abc"])), max_size=4
)
items = st.none() | documents | documents | documents | broken
records = st.tuples(st.none() | documents | st.binary(max_size=5), items, headers, st.integers(0, 2**40))
batches = st.lists(records, max_size=8)
