"""The model of a link on many executors: it says what was measured where something was, and what it says of
all else hangs together."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bench import scaling_model as model
from bench.scaling import main
from bench.scaling_model import Link

FIGURES = Path(__file__).parents[3] / "bench/results.json"
MEASURED = Link(one_machine=True, cores=2, lanes=2)
"""Where all was measured: two cores with both brokers on them."""


PROCESSOR = "AMD EPYC"
"""Of the machine that the model is calibrated by."""


def measured(**wanted: Any) -> Iterator[dict[str, Any]]:
    for sitting in json.loads(FIGURES.read_text())["sittings"]:
        for result in sitting["results"] if sitting["processor"] == PROCESSOR else ():
            if result["copier"] == "verbatim" and all(result.get(k) == v for k, v in wanted.items()):
                yield result


def of_shape(shape: str) -> tuple[dict[str, float], float]:
    """CPU of a record in µs, by process, and records/s."""
    found = list(measured(kind="throughput", shape=shape))
    each = [f["cpu_us_per_record_by_process"] for f in found]
    cost = {who: median(one[who] for one in each) for who in each[0]}
    return cost, median(f["records_per_s"] for f in found)


def near(value: float, expected: float, factor: float) -> bool:
    return expected / factor <= value <= expected * factor


SHAPES = {
    "100B-4p": (100, 4, False),
    "200B-4p": (200, 4, False),
    "1KB-4p": (1_000, 4, False),
    "10KB-4p": (10_000, 4, False),
    "100KB-4p": (100_000, 4, False),
    "200B-4p-in-16KiB": (200, 4, True),
    "1KB-4p-in-16KiB": (1_000, 4, True),
    "200B-10x10p": (200, 100, False),
    "200B-100x10p": (200, 1_000, False),
}
PROCESSES = {
    "replicator": "replicator",
    "deduplicator": "deduplicator",
    "source": "source broker",
    "target": "target broker",
}


@pytest.mark.parametrize("shape", [s for s in SHAPES if "-4p" in s])
@pytest.mark.parametrize("part", PROCESSES)
def test_what_a_record_costs_is_what_was_measured_last(shape: str, part: str) -> None:
    size, _, small = SHAPES[shape]
    cost, _ = of_shape(shape)
    assert Link(size=size, small_batches=small).cost_us(part) == pytest.approx(
        cost[PROCESSES[part]], rel=0.03
    )


def test_what_a_further_partition_costs_is_what_a_thousand_of_them_took_longer() -> None:
    few, many = of_shape("200B-4p")[0], of_shape("200B-100x10p")[0]
    markers = [
        median(f["markers"] / f["records"] for f in measured(kind="throughput", shape=shape))
        for shape in ("200B-4p", "200B-100x10p")
    ]
    for part, cost_s in model.PARTITION_S.items():
        took_us = many[PROCESSES[part]] - few[PROCESSES[part]]
        assert near(cost_s, took_us / 1e6 / (markers[1] - markers[0]), 1.1)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_backlog_goes_as_fast_as_it_did(shape: str) -> None:
    size, partitions, small = SHAPES[shape]
    link = replace(MEASURED, size=size, partitions=partitions, busy=partitions, small_batches=small)
    most, limit = model.catching_up(link)
    assert near(most, of_shape(shape)[1], 1.15)
    assert limit.name == "the machine's CPU"


@pytest.mark.parametrize(("rate", "factor"), [(100, 2.0), (1_000, 1.2), (5_000, 1.2), (20_000, 1.2)])
def test_records_wait_as_long_as_they_did(rate: int, factor: float) -> None:
    found = list(measured(kind="latency", rate=rate))
    said = model.steady(replace(MEASURED, records_per_s=rate, size=100))
    assert said.p50_s is not None
    assert said.p99_s is not None
    assert near(said.p50_s * 1000, median(f["p50_ms"] for f in found), factor)
    assert near(said.p99_s * 1000, median(f["p99_ms"] for f in found), factor)
    cores = said.cores["replicator"] + said.cores["deduplicator"]
    assert near(cores, median(f["cores"] for f in found), 1.4)


def test_a_trickle_over_a_thousand_partitions_takes_what_it_took() -> None:
    """`python -m bench.trickle --partitions 1000` on 2026-11-29: 1.44 cores with both brokers, half of the
    records within 27 ms, 99 of a hundred within 82."""
    said = model.steady(replace(MEASURED, partitions=1_000, busy=1_000, records_per_s=1_000, size=200))
    assert near(sum(said.cores.values()), 1.44, 1.25)
    assert said.p50_s is not None
    assert said.p99_s is not None
    assert near(said.p50_s, 0.027, 2.0)
    assert near(said.p99_s, 0.082, 1.3)


def test_starts_and_the_ends_of_epochs_take_what_they_took() -> None:
    started = median(f["started_s"] for f in measured(kind="throughput", shape="200B-4p"))
    assert near(model.start_s(MEASURED), started, 1.1)
    (paused,) = measured(kind="pause")
    assert near(model.boundary_s(MEASURED), paused["longest_pause_s"], 1.1)
    # Ten minutes of traffic, or as little as there is: seconds of CPU, once in ten minutes.
    assert model.fold_needs(1.0) == pytest.approx((model.FOLD_S + 600 * model.FOLD_MAPPING_S) / 600)


MANY = Link(
    executors=4,
    cores=4,
    lanes=4,
    partitions=100_000,
    busy=100_000,
    staging_partitions=1_000,
    records_per_s=100_000,
    source_brokers=6,
    target_brokers=6,
    broker_cores=16,
    replicas=3,
    network=3.125e9,
)


def test_deliveries_fall_behind_where_more_comes_than_a_transaction_has_time_to_take() -> None:
    assert model.steady(MANY).p50_s is not None
    behind = model.steady(replace(MANY, executors=16, staging_partitions=64))
    assert behind.p50_s is None
    assert behind.limit.name == "a delivery's turns"


def test_a_full_frame_costs_no_more_than_its_records() -> None:
    link = replace(MEASURED, size=100_000, records_per_s=8_000)
    of = model.turns(link)
    assert of.frames > 1_000
    assert of.small_frames == 0
    assert model.cores(link, of)["replicator"] == pytest.approx(8_000 * link.cost_us("replicator") / 1e6)


def test_what_an_epochs_end_takes_grows_with_partitions_and_with_lanes_that_read_the_control_topic() -> None:
    each = model.ANSWER_S + model.PLAN_S + model.ORIGIN_S + model.TOPIC_S / MANY.topic_partitions
    least = 100_000 * each
    assert least < model.boundary_s(MANY) < 2 * least
    lanes = replace(MANY, lanes=16)
    assert model.boundary_s(replace(lanes, executors=100)) > model.boundary_s(lanes) + 10
    assert model.boundary_s(replace(lanes, executors=100, network=1e12)) < model.boundary_s(lanes)


def test_a_start_makes_a_replica_of_each_partition() -> None:
    longer = model.start_s(replace(MANY, replicas=3)) - model.start_s(replace(MANY, replicas=1))
    assert longer == pytest.approx(200_000 * model.CREATED_S / 6)


def test_who_takes_over_from_a_lost_executor_reads_what_was_mapped_since_the_last_fold() -> None:
    idle = model.lost_s(MANY, 0.0)
    assert idle == pytest.approx(model.SETTLED_S + model.boundary_s(MANY))
    # A minute of 10,000 a second, a quarter of them by whom is left; at most as long as one would take.
    longer = model.lost_s(MANY, 10_000.0) - idle
    assert 600_000 / 4 / 12 * model.MAPPING_READ_S <= longer < 600_000 / 4 * model.MAPPING_READ_S


links = st.builds(
    Link,
    executors=st.integers(1, 100),
    cores=st.integers(1, 32),
    lanes=st.integers(1, 16),
    partitions=st.just(100_000),
    busy=st.integers(1, 100_000),
    staging_partitions=st.integers(1, 10_000),
    records_per_s=st.floats(1, 1e7),
    size=st.integers(100, 100_000),
    small_batches=st.booleans(),
    source_brokers=st.integers(1, 50),
    target_brokers=st.integers(1, 50),
    broker_cores=st.integers(1, 64),
    replicas=st.integers(1, 3),
    network=st.sampled_from([1.25e8, 1.25e9, 3.1e9]),
)


@given(links)
def test_a_backlog_uses_one_part_up_and_none_beyond(link: Link) -> None:
    most, limit = model.catching_up(link)
    assert limit.used == pytest.approx(1.0, rel=1e-3)
    more, _ = model.catching_up(replace(link, target_brokers=link.target_brokers * 2))
    assert more >= most * 0.999


@given(links)
def test_latency_is_told_where_no_part_has_too_much(link: Link) -> None:
    said = model.steady(link)
    if said.p50_s is None or said.p99_s is None:
        assert said.limit.used > model.MOST_BUSY
        return
    assert said.limit.used <= model.MOST_BUSY * 1.001
    assert 0 < said.p50_s < said.p99_s
    assert all(part.used <= said.limit.used for part in model.parts(link, said.turns))


@given(links)
def test_no_more_is_moved_than_came(link: Link) -> None:
    """Frames, mappings and markers are for records: there are no more of them, and each partition has one a
    turn."""
    of = model.turns(link)
    full = link.records_per_s * link.size
    assert of.frames <= max(link.records_per_s, full / model.FRAME_BYTES) * 1.001
    assert of.moved <= max(of.frames, full / model.TRANSACTION_BYTES) * 1.001
    assert of.transactions <= of.moved


@given(links, st.floats(1.5, 100))
def test_longer_turns_take_no_more_cpu(link: Link, by: float) -> None:
    short = model.turns(link)
    long = model.turns(link, by * max(short.lane_s, short.delivery_s))
    assert sum(model.cores(link, long).values()) <= sum(model.cores(link, short).values()) * 1.001


def test_the_table_has_a_line_for_each_number_of_executors() -> None:
    result = CliRunner().invoke(main, ["--executors", "1,100"])
    assert result.exit_code == 0
    title, _, one, hundred = result.output.splitlines()
    assert one.startswith("| 1 |")
    assert hundred.startswith("| 100 |")
    assert len({line.count("|") for line in (title, one, hundred)}) == 1


def test_what_the_documentation_shows_is_what_the_model_says() -> None:
    text = (FIGURES.parents[1] / "docs/operations/sizing.md").read_text()
    shown = re.findall(r"`python -m bench\.scaling ([^`]+)`[^|]*((?:\|.*\n)+)", text)
    assert len(shown) >= 3
    for arguments, table in shown:
        assert CliRunner().invoke(main, shlex.split(arguments)).output == table


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--executors", "1,x"], "--executors"),
        (["--executors", "0"], "--executors"),
        (["--partitions", "10", "--busy", "11"], "--busy"),
        (["--one-machine"], "--executors"),
        (["--size", "1"], "--size"),
        (["--records-per-second", "nan"], "--records-per-second"),
    ],
)
def test_bad_input_is_named(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert f"Invalid value for {said}" in result.output.replace("'", "")
