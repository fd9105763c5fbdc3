"""What Spark is told of mapping records, of each version that was ever written."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import orjson
import pytest

from common.errors import StateError
from common.kafka.client.clients import Received
from common.link import offset_mappings
from deduplicator.state import mappings_source
from tests.simulation.clients import Message

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("mappings*.jsonl"))


def messages(*values: bytes | None) -> list[Received]:
    topic, stamp = "link.offset-mappings", 1_700_000_000_123
    found = [Message(topic, 1, offset, value=value, stamp=stamp) for offset, value in enumerate(values, 7)]
    return cast("list[Received]", found)


def test_rows_say_what_the_mappings_of_every_version_say() -> None:
    """Promise: what a deduplicator writes it can fold: a link whose mappings can't be is never trimmed, and
    recovers by all of them."""
    values = [
        orjson.loads(line)["value"].encode() for file in GOLDEN for line in file.read_text().splitlines()
    ]
    assert {orjson.loads(value)["v"] for value in values} == set(offset_mappings.VERSIONS)
    rows = mappings_source.rows(messages(*values)).to_pylist()
    assert [row["mappings_offset"] for row in rows] == [*range(7, 7 + len(values))]
    for row, value in zip(rows, values, strict=True):
        mapping = offset_mappings.decode(value)
        assert [[*run.values()] for run in row.pop("runs")] == mapping.runs
        assert (row.pop("mappings_partition"), row.pop("timestamp").timestamp()) == (1, 1_700_000_000.123)
        del row["mappings_offset"]
        assert row == {name: getattr(mapping, name) for name in row} and len(row) == 13


@pytest.mark.parametrize(
    "value", [None, b"", b"null", b'{"v":4}', b'{"v":1}', b'{"v":1,"runs":[[1,2]]}'], ids=repr
)
def test_a_mapping_that_is_not_understood_is_named(value: bytes | None) -> None:
    good = GOLDEN[0].read_text().splitlines()[0]
    with pytest.raises(StateError, match=r"^link\.offset-mappings/1: the mapping at offset 8 is not"):
        mappings_source.rows(messages(orjson.loads(good)["value"].encode(), value))
