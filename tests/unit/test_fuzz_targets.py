"""The targets of the fuzzing keep their promises for what is well and for all that was ever found; and each
notices a broken reader. `python -m tests.fuzz` looks for more."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from common.kafka.wire import fetch_answers, message_sets, protocol, record_decoder, sasl
from common.link import batch_frame, control_kinds, frame, offset_mappings, positions, schema_map
from common.pipeline import avro_fields, avro_of_json, avro_values, json_of_avro
from offsets import group_offsets
from tests.fuzz.__main__ import FOUND
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_well_and_what_was_ever_found_breaks_no_promise(name: str) -> None:
    target = TARGETS[name]
    seeds = target.seeds()
    assert len(seeds) > 1
    for data in [*seeds, *(path.read_bytes() for path in (FOUND / name).glob("*"))]:
        target.run(data)
        for cut in range(0, len(data), 1 + len(data) // 20):
            target.run(data[:cut])


def run_all(name: str) -> None:
    for data in TARGETS[name].seeds():
        TARGETS[name].run(data)


def _raises(*_: Any, **__: Any) -> Any:
    raise IndexError("broken on purpose")


BROKEN: dict[str, tuple[Any, str]] = {
    "answer": (fetch_answers, "_placed"),
    "batch": (record_decoder, "_one_by_one"),
    "frame-headers": (frame, "_number"),
    "frame-rows": (frame, "must_match"),
    "frame-batches": (batch_frame, "must_match"),
    "mapping": (offset_mappings, "_check"),
    "control": (control_kinds, "decode"),
    "position": (positions, "Position"),
    "group-offset": (group_offsets, "GroupOffset"),
    "schema": (schema_map, "Mapped"),
    "avro": (avro_fields.Walk, "walk"),
    "avro-of-json": (avro_of_json.Writer, "write"),
    "reply": (protocol, "Produced"),
    "challenge": (sasl, "_fields"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_an_error_that_is_none_of_the_readers_own_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*BROKEN[name], _raises)
    with pytest.raises(IndexError, match="on purpose"):
        run_all(name)


def _without_first(read: Callable[..., pa.RecordBatch]) -> Callable[..., pa.RecordBatch]:
    return lambda *given: read(*given).slice(1)


def _twice(read: Callable[..., tuple[pa.RecordBatch, int, int]]) -> Callable[..., Any]:
    def reads(*given: Any) -> tuple[pa.RecordBatch, int, int]:
        rows, end, size = read(*given)
        return pa.concat_batches([rows, rows]), end, size

    return reads


WRONG: list[tuple[str, Any, str, Callable[..., Any]]] = [
    ("answer", record_decoder, "leading", _twice(record_decoder.leading)),
    ("answer", message_sets, "leading", _twice(message_sets.leading)),
    ("batch", record_decoder, "_one_by_one", _without_first(record_decoder._one_by_one)),
    ("frame-rows", frame, "_ascending", lambda of, column: column.to_pylist()[::-1]),
    ("avro", avro_values, "long_of", lambda _: 0),
    ("avro", json_of_avro, "_long", lambda data, at: (0, at + 1)),
    ("avro-of-json", avro_of_json, "varint", lambda _: b"\2"),
    ("challenge", hmac, "compare_digest", lambda *_: True),
]


@pytest.mark.parametrize(("name", "where", "what", "instead"), WRONG)
def test_what_is_read_wrong_is_noticed(
    name: str, where: Any, what: str, instead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, what, instead)
    with pytest.raises(AssertionError):
        run_all(name)
