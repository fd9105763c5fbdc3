"""Kafka's default partitioner: the hashes that Java has, whatever batch a key is in."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kafka.wire.murmur2 import murmur2, partitions

JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""From Kafka's UtilsTest."""


def reference(key: bytes) -> int:
    """As Utils.murmur2 goes about it, a key by itself."""
    m, word = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    for at in range(0, len(key) // 4 * 4, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & word
        k = (k ^ k >> 24) * m & word
        h = h * m & word ^ k
    if rest := key[len(key) // 4 * 4 :]:
        h = (h ^ int.from_bytes(rest, "little")) * m & word
    h = (h ^ h >> 13) * m & word
    return h ^ h >> 15


def hashes(keys: list[bytes | None]) -> list[int]:
    return [int(found) for found in murmur2(pa.array(keys, pa.binary()))]


@pytest.mark.parametrize(("key", "expected"), JAVA.items())
def test_the_hashes_of_java(key: bytes, expected: int) -> None:
    assert reference(key) == hashes([key])[0] == expected % 2**32


@given(
    st.lists(st.none() | st.binary(max_size=20) | st.binary(min_size=1020, max_size=1030)), st.integers(0, 3)
)
def test_a_key_has_the_same_hash_in_any_batch(keys: list[bytes | None], cut: int) -> None:
    column = pa.array([b"x" * cut, *keys], pa.binary()).slice(1)
    found = murmur2(column).tolist()
    assert [h for h, key in zip(found, keys, strict=True) if key is not None] == [
        reference(key) for key in keys if key is not None
    ]
    placed = partitions(column, 6, 4).tolist()
    assert placed == [4 if key is None else (reference(key) & 0x7FFFFFFF) % 6 for key in keys]
