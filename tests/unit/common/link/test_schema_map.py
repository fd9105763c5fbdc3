"""The map of schema ids: what its records say, and that the first one counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.errors import StateError
from common.link.schema_map import Mapped, Reference, Restore, SchemaId, SchemaMap, encode_id, encode_restore

KEY, MAPPED = SchemaId(".", 7), Mapped(12, "ab" * 32, (Reference("a.proto", "a", -1),))


def test_the_first_record_of_an_id_counts_and_a_later_one_is_disputed_until_the_first_is_written_again() -> (
    None
):
    found = SchemaMap()
    found.apply(*encode_id(KEY, MAPPED))
    found.apply(*encode_id(KEY, MAPPED))
    assert found.target(".", 7) == 12 and found.target(".eu", 7) is None and not found.disputed
    found.apply(*encode_id(KEY, Mapped(13, MAPPED.sha256)))
    assert found.ids == {KEY: MAPPED} and found.disputed == {KEY}
    found.apply(*encode_id(KEY, MAPPED))
    assert not found.disputed
    # Nobody takes an id back.
    found.apply(encode_id(KEY, MAPPED)[0], None)
    assert found.ids == {KEY: MAPPED}


def test_a_text_may_come_later_and_is_not_lost_again() -> None:
    found = SchemaMap()
    found.apply(*encode_id(KEY, MAPPED))
    assert found.avro(*KEY) is None
    whole = replace(MAPPED, avro='{"type":"string"}')
    for mapped in (whole, MAPPED):
        found.apply(*encode_id(KEY, mapped))
        assert found.ids == {KEY: whole} and found.avro(*KEY) == whole and not found.disputed
    found.apply(*encode_id(KEY, replace(whole, target=13)))
    assert found.ids == {KEY: whole} and found.disputed == {KEY}


def test_what_is_to_be_put_back_is_known_until_it_is() -> None:
    found = SchemaMap()
    found.apply(*encode_restore("orders-value", Restore("FULL", "READWRITE")))
    found.apply(*encode_restore("a", Restore("BACKWARD")))
    assert found.restores == {"orders-value": Restore("FULL", "READWRITE"), "a": Restore("BACKWARD")}
    found.apply(*encode_restore("orders-value", None))
    found.apply(*encode_restore("never", None))
    assert found.restores == {"a": Restore("BACKWARD")}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"no json", b"{}"),
        (b"{}", b'{"v":1}'),
        (encode_id(KEY, MAPPED)[0], b'{"v":1,"target":"12","sha256":"","references":[]}'),
        (encode_id(KEY, MAPPED)[0], b'{"v":1,"target":12,"sha256":"","references":[],"avro":{}}'),
        (encode_id(KEY, MAPPED)[0], b'{"v":2}'),
        (b'{"subject":"a"}', b'{"v":1}'),
    ],
)
def test_what_can_not_be_understood_is_an_error(key: bytes | None, value: bytes) -> None:
    with pytest.raises(StateError):
        SchemaMap().apply(key, value)
