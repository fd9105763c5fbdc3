"""Kafka's default partitioner for records with a key: murmur2, as Java's producers have it, and librdkafka's
with `partitioner=murmur2_random`. Pure.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SEED, _M = 0x9747B28C, np.uint32(0x5BD1E995)
_LONG_BYTES = 1024
"""Of longer keys each is hashed by itself: all of a batch would wait for the longest one, word by word."""
Hashes = npt.NDArray[np.uint32]


def partitions(keys: pa.Array, count: int, without: int) -> npt.NDArray[np.int64]:
    """Of keys (`pa.binary()`) the partitions of a topic that has so many. `without`: that of records without
    a key."""
    positive = (murmur2(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64) % count
    if keys.null_count:
        positive[keys.is_null().to_numpy(zero_copy_only=False)] = without
    return positive


def murmur2(keys: pa.Array) -> Hashes:
    """Their hashes, all words of the same number at once. That of a null means nothing."""
    bounds = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, 4 * keys.offset).astype(np.int64)
    data = keys.buffers()[2]
    # Three more than there are: the last word of a key is read as a whole.
    padded = np.concatenate(
        [np.frombuffer(data if data is not None else b"", np.uint8), np.zeros(4, np.uint8)]
    )
    lengths = np.diff(bounds)
    # The longest ones first: those that have a word of some number are the first so many.
    order = np.argsort(-lengths, kind="stable")
    starts, sizes = bounds[:-1][order], lengths[order]
    found = np.uint32(_SEED) ^ sizes.astype(np.uint32)
    for word in range(min(int(sizes[0]), _LONG_BYTES) // 4 if len(sizes) else 0):
        having = int(np.searchsorted(-sizes, -4 * (word + 1), side="right"))
        k = _word(padded, starts[:having] + 4 * word) * _M
        found[:having] = found[:having] * _M ^ (k ^ k >> np.uint32(24)) * _M
    rest = sizes % 4
    tail = _word(padded, starts + sizes - rest) & (
        (np.uint32(1) << (8 * rest).astype(np.uint32)) - np.uint32(1)
    )
    found = np.where(rest > 0, (found ^ tail) * _M, found)
    found ^= found >> np.uint32(13)
    found *= _M
    found ^= found >> np.uint32(15)
    hashes = np.empty(len(found), np.uint32)
    hashes[order] = found
    for row in np.flatnonzero(lengths > _LONG_BYTES).tolist():
        hashes[row] = _alone(padded[bounds[row] : bounds[row + 1]].tobytes())
    return hashes


def _alone(key: bytes) -> int:
    h, m, most = _SEED ^ len(key), int(_M), 0xFFFFFFFF
    whole = len(key) - len(key) % 4
    for (k,) in struct.iter_unpack("<I", key[:whole]):
        k = k * m & most
        h = h * m & most ^ (k ^ k >> 24) * m & most
    if whole < len(key):
        h = (h ^ int.from_bytes(key[whole:], "little")) * m & most
    h = (h ^ h >> 13) * m & most
    return h ^ h >> 15


def _word(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> Hashes:
    """Four bytes from each place on, little-endian."""
    found = data[at].astype(np.uint32)
    for byte in range(1, 4):
        found |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return found
