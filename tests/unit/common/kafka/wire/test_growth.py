"""How what is asked for grows where the line is long, and does not where it is short."""

from __future__ import annotations

import random
import struct
import time
from contextlib import closing

import pytest

from common.kafka.wire import protocol
from common.kafka.wire.fetch_protocol import FETCH
from common.kafka.wire.growth import Growth
from tests.support.listeners import Asked, Broker, metadata
from tests.unit.common.kafka.wire.test_batch_consumer import batch
from tests.unit.common.kafka.wire.test_sick_brokers import consumer, fetched, read, servers

MIB = 1 << 20
MOST = 48


def run(
    size: Growth,
    round_trip_s: float,
    bytes_per_s: float,
    for_s: float,
    noise: float = 0.0,
    begin: float = 1000.0,
) -> float:
    """A partition of which there is always more, over a line; what came in a second, in the end."""
    draw = random.Random(1)
    now, came, since = begin, 0, 0.0
    while now < begin + for_s:
        asked = MIB * size.factor
        took_s = (round_trip_s + asked / bytes_per_s) * (1 + noise * draw.uniform(-1, 1))
        now += took_s
        size.came(asked, True, MOST, now)
        if now > begin + for_s / 2:
            came, since = came + asked, since or now - took_s
    return came / (now - since)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_long_line_is_filled(noise: float) -> None:
    """1 Gbit/s and 100 ms: a megabyte at a time makes 9 MB/s."""
    size = Growth()
    assert run(size, 0.1, 125e6, 60, noise) > 0.65 * 125e6
    assert size.factor >= 16


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_short_line_is_left_as_it_is(noise: float) -> None:
    size = Growth()
    run(size, 0.0005, 1e9, 600, noise)
    assert size.factor <= 4


def test_what_brings_nothing_any_more_is_given_back() -> None:
    """A leader that is far away, and then another one nearby."""
    size = Growth()
    run(size, 0.1, 125e6, 60, 0.1)
    assert size.factor >= 16
    run(size, 0.0005, 1e9, 900, 0.1, 2000.0)
    assert size.factor <= 4


@pytest.mark.parametrize("seed", range(3))
def test_chance_alone_does_not_make_it_grow(seed: int) -> None:
    size, draw, now, factors = Growth(), random.Random(seed), 1000.0, list[int]()
    rate = 1e9
    while now < 2800.0:
        # What comes differs by a fifth, for seconds.
        if draw.random() < 0.002:
            rate = 1e9 * draw.uniform(0.8, 1.2)
        now += MIB * size.factor / rate
        size.came(MIB * size.factor, True, MOST, now)
        factors.append(size.factor)
    assert sum(factors) / len(factors) < 8


def test_more_is_seldom_tried_where_it_was_no_better() -> None:
    size, tried, before = Growth(), 0, 1
    now = 1000.0
    while now < 4600.0:
        now += 0.01
        size.came(MIB, True, MOST, now)
        tried += size.factor > before
        before = size.factor
    assert size.factor == 1 and 5 <= tried <= 20


def test_who_has_caught_up_is_asked_for_no_more() -> None:
    size = Growth()
    now = 1000.0
    for _ in range(1000):
        now += 0.1
        size.came(1000, False, MOST, now)
    assert size.factor == 1


def test_there_is_a_most() -> None:
    size, now = Growth(), 1000.0
    for _ in range(1000):
        now += 0.1
        size.came(MIB * size.factor, True, 1, now)
    assert size.factor == 1


def asked_of(asked: Asked) -> tuple[int, int]:
    """For how many bytes in all, and of the first partition (0: of none)."""
    (in_all,) = struct.unpack_from(">i", asked.body, 1 + 12)
    at = 1 + struct.calcsize(">iiiibii")
    if asked.body[at] == 1:
        return in_all, 0
    (of_one,) = struct.unpack_from(">i", asked.body, at + 1 + 16 + 1 + struct.calcsize(">iiqiq"))
    return in_all, of_one


@pytest.mark.parametrize(
    ("given", "grows"),
    [({}, True), ({"max.partition.fetch.bytes": MIB}, False), ({"fetch.max.bytes": 8 * MIB}, False)],
)
def test_a_broker_far_away_is_asked_for_more_unless_it_is_said_how_much(
    given: dict[str, int], grows: bool
) -> None:
    asked: list[tuple[int, int]] = []
    next_offset = 0

    def full(request: Asked) -> bytes:
        nonlocal next_offset
        in_all, of_one = asked_of(request)
        asked.append((in_all, of_one or asked[-1][1]))
        time.sleep(0.06)
        next_offset += 1
        return fetched(0, batch(next_offset - 1, 1, size=asked[-1][1] - 1000))

    with Broker({FETCH: full}) as far:
        far.answers = {**far.answers, protocol.METADATA: metadata({1: far.address}, "orders", [1])}
        with closing(consumer(servers(far.address) | given)) as reader:
            # A slow moment puts off what is tried next by ten seconds.
            read(reader, 60, until=lambda: len(asked) > 15 and (not grows or asked[-1][1] >= 8 * MIB))
    of_one = [of_one for _, of_one in asked]
    assert of_one[0] == MIB and asked[0][0] == 8 * MIB
    assert (max(of_one) >= 8 * MIB) is grows, of_one
    assert grows or {*asked} == {(8 * MIB, MIB)}
    assert max(in_all for in_all, _ in asked) <= 48 * MIB
