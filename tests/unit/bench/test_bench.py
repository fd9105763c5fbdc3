"""The pure parts of the benchmark: what is computed from measurements, and how it is shown."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from array import array
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from bench import cli, copiers, report, sitting, throughput, transforms, usage
from bench.clusters import Broker
from bench.figures import longest_gap, percentile, spread, steady, time_of, value_at
from bench.latency import SETTLE_S, judged
from bench.load import HEADERS, RUN_BYTES, Shape, runs, values, write
from bench.paced import Arrivals, Paced, Phase
from bench.recovery import every_partition_s, next_record_s
from bench.usage import Watch
from common.errors import VerbatimError
from common.pipeline.loading import load


@pytest.mark.parametrize(
    ("percent", "expected"), [(50, 500), (95, 950), (99, 990), (99.9, 999), (100, 1000), (0, 1)]
)
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(percent: float, expected: float) -> None:
    assert percentile([float(n) for n in range(1, 1001)], percent) == expected


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.1, 100))
def test_a_percentile_is_the_least_value_that_enough_do_not_exceed(
    found: list[float], percent: float
) -> None:
    ordered = sorted(found)
    chosen = percentile(ordered, percent)
    needed = percent / 100 * len(ordered) - 1e-5
    assert sum(value <= chosen for value in ordered) >= needed
    assert all(
        sum(other <= value for other in ordered) < needed + 1e-4 for value in ordered if value < chosen
    )


def test_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_a_spread_has_least_middle_and_greatest() -> None:
    assert (spread([3, 1, 2]).least, spread([3, 1, 2]).median, spread([3, 1, 2]).greatest) == (1, 2, 3)
    assert spread([4, 1]).median == 2.5


def test_the_steady_part_leaves_out_the_start_and_the_end() -> None:
    # Slow for 10 s until 10 %, then 100 records/s, then very slow from 95 % on.
    curve = [(0.0, 0.0), (10.0, 100.0), (18.5, 950.0), (100.0, 1000.0)]
    part = steady(curve, 1000)
    assert (part.begin_s, part.end_s) == (10.0, 18.5)
    assert part.records_per_s == pytest.approx(100)


def test_what_happens_outside_the_steady_part_costs_nothing() -> None:
    part = steady([(0.0, 0.0), (10.0, 100.0), (18.5, 950.0), (100.0, 1000.0)], 1000)
    cpu = [(0.0, 0.0), (10.0, 70.0), (18.5, 78.5), (100.0, 500.0)]
    assert part.per_record(cpu) == pytest.approx(8.5 / 850)


def test_markers_of_transactions_are_no_records() -> None:
    without = steady([(0.0, 0.0), (10.0, 1000.0)], 1000)
    with_as_many_again = steady([(0.0, 0.0), (10.0, 2000.0)], 1000)
    assert with_as_many_again.records_per_s == pytest.approx(without.records_per_s)


def test_an_unfinished_copy_has_no_steady_part() -> None:
    with pytest.raises(ValueError, match="not all of the 1000"):
        steady([(0.0, 0.0), (10.0, 999.0)], 1000)


def test_a_curve_is_straight_between_its_points_and_flat_beyond() -> None:
    curve = [(1.0, 10.0), (3.0, 30.0)]
    assert [value_at(curve, at) for at in (0, 1, 2, 3, 4)] == [10, 10, 20, 30, 30]
    assert time_of(curve, 20) == 2
    with pytest.raises(ValueError, match="never reached"):
        time_of(curve, 31)


def test_a_curve_that_stood_still_reaches_a_value_when_it_first_had_it() -> None:
    assert time_of([(0.0, 0.0), (1.0, 5.0), (9.0, 5.0), (10.0, 10.0)], 5) == 1


def test_the_longest_gap_is_between_neighbours() -> None:
    assert longest_gap([1.0, 1.5, 4.0, 4.25]) == 2.5
    with pytest.raises(ValueError, match="fewer than two"):
        longest_gap([1.0])


def _second(number: float) -> int:
    return round(number * 1e9)


def _phase(sent: int, first: int = 0) -> Phase:
    return Phase(10, _second(100), _second(100 + sent / 10), first, sent, 0.0)


def _arrivals(rows: list[tuple[float, float, int]]) -> Arrivals:
    made, arrived, numbers = zip(*rows, strict=True)
    return Arrivals(array("q", map(_second, made)), array("q", map(_second, arrived)), array("q", numbers))


def test_latency_is_counted_once_the_pace_has_settled() -> None:
    rows = [(100 + n / 10, 100 + n / 10 + (5 if n / 10 < SETTLE_S else 0.25), n) for n in range(60)]
    found = judged(_phase(60), _arrivals(rows))
    assert found["p50_ms"] == found["longest_ms"] == pytest.approx(250)
    assert (found["counted"], found["missing"], found["repeated"]) == (30, 0, 0)
    assert found["sent_per_s"] == pytest.approx(10)
    assert found["longest_pause_s"] == pytest.approx(0.1)


def test_lost_and_repeated_records_of_a_phase_are_told() -> None:
    rows = [(104.0, 104.1, 0), (104.0, 104.2, 0), (104.1, 104.2, 2), (90.0, 104.3, 77)]
    found = judged(_phase(3), _arrivals(rows))
    assert (found["missing"], found["repeated"], found["counted"]) == (1, 1, 2)


def test_of_partitions_that_are_not_read_nothing_is_missing() -> None:
    rows = [(104.0, 104.1, 0), (104.0, 104.2, 1), (104.1, 104.2, 10)]
    assert judged(_phase(12), _arrivals(rows), partitions=10, read=2)["missing"] == 1


def test_a_phase_of_which_nothing_arrived_has_no_latency() -> None:
    found = judged(_phase(3), Arrivals(array("q"), array("q"), array("q")))
    assert (found["p50_ms"], found["longest_pause_s"], found["missing"]) == (None, None, 3)


def test_recovery_waits_for_a_record_made_after_the_kill() -> None:
    # The first to arrive after the kill had been under way.
    arrivals = _arrivals([(9.0, 9.1, 0), (9.9, 11.0, 1), (12.0, 15.5, 3), (10.5, 14.0, 2)])
    assert next_record_s(_second(10), arrivals) == pytest.approx(4)
    assert every_partition_s(_second(10), arrivals) == pytest.approx(5.5)


def test_all_has_arrived_when_it_has_from_the_partition_furthest_behind(tmp_path: Path) -> None:
    broker = cast("Broker", SimpleNamespace(bootstrap_servers="localhost:1"))
    paced = Paced(tmp_path, broker, ["topic"], 4, broker, ["copy"])
    assert paced.arrived_ns() == 0
    (tmp_path / "arrivals.newest").write_bytes(array("q", [7, 5, 9, 6]).tobytes())
    assert paced.arrived_ns() == 5


def test_columns_of_a_table_line_up() -> None:
    text = report.table(["what", "n"], [["a long name", "1"], ["b", "1,000"]])
    lines = text.splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1] == "| ----------- | ----: |"
    assert lines[3] == "| b           | 1,000 |"


def test_a_figure_shows_its_spread_when_there_are_several() -> None:
    assert report.shown([3.0, 1.0, 2.0], "{:.0f}".format) == "2 (1 to 3)"
    assert report.shown([3.0], "{:.0f}".format) == "3"
    assert report.shown([None], "{:.0f}".format) == "-"


def test_microseconds_have_as_many_digits_as_say_something() -> None:
    assert [report.micros(value) for value in (0.234, 9.96, 12.34, 1234.5)] == [
        "0.23",
        "9.96",
        "12.3",
        "1,234.5",
    ]


def _throughput(copier: str, records_per_s: float) -> dict[str, Any]:
    return {
        "kind": "throughput",
        "copier": copier,
        "shape": "200B-4p",
        "records": 1000,
        "records_per_s": records_per_s,
        "mb_per_s": records_per_s / 5000,
        "cpu_us_per_record": 5.0,
        "broker_cpu_us_per_record": 1.0,
        "peak_bytes": 1 << 30,
        "peak_bytes_by_process": {"replicator": 400 << 20, "deduplicator": 624 << 20},
        "written_bytes": 200_000,
        "written_records": 1_000,
        "started_s": 9.0,
        "steady_s": 3.0,
    }


def _sitting(*results: dict[str, Any]) -> dict[str, Any]:
    about = {"at": "today", "command": "python -m bench", "cpus": 2, "processor": "some", "memory_gb": 8}
    return {**about, "kafka": "4.3.0", "python": "3.11", "results": list(results)}


def test_rounds_of_all_sittings_share_a_row() -> None:
    text = report.as_markdown(
        [
            _sitting(_throughput("verbatim", 100_000), _throughput("floor", 300_000)),
            _sitting(_throughput("verbatim", 120_000)),
        ]
    )
    rows = [line for line in text.splitlines() if line.startswith("| 200B")]
    assert len(rows) == 2
    assert "Verbatim |" in rows[0] and "| 110,000 (100,000 to 120,000) |" in " ".join(rows[0].split())
    assert "| 1,024 | 624 |" in " ".join(rows[0].split()), (
        "peak memory: of both applications, and of the greater one"
    )
    assert text.count("`python -m bench`") == 2


def test_every_shape_that_can_be_measured_has_its_place() -> None:
    """A sitting of a shape beside the usual ones ended with its figures measured and told nowhere."""
    for name in cli._SHAPES:
        assert name.split("-")[0] in report.as_markdown(
            [_sitting({**_throughput("verbatim", 100_000), "shape": name})]
        )


def test_figures_of_different_machines_are_not_mixed() -> None:
    one, other = _sitting(_throughput("verbatim", 100_000)), _sitting(_throughput("verbatim", 120_000))
    more = _sitting(_throughput("verbatim", 110_000), _throughput("floor", 300_000))
    text = report.as_markdown([one, {**other, "processor": "another"}, more])
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## On some", "## On another"]
    assert "| 105,000 (100,000 to 110,000) |" in " ".join(text.split()) and " 120,000 |" in text
    assert text.index("105,000") < text.index("## On another") < text.index("120,000")
    shown = report.of_one_machine([one, {**other, "processor": "another"}, more], "throughput")
    assert [r["records_per_s"] for r in shown] == [100_000, 110_000, 300_000]
    assert report.of_one_machine([one], "latency") == report.of_one_machine([], "latency") == []
    assert "## On" not in report.as_markdown([one, more])


def test_what_failed_is_told() -> None:
    text = report.as_markdown(
        [_sitting({"kind": "failure", "what": "latency of verbatim", "error": "it ended"})]
    )
    assert "- latency of verbatim: it ended" in text


def test_every_copier_has_a_title_and_its_place_in_the_tables() -> None:
    assert set(copiers.NAMES) == set(copiers.TITLES)


def test_verbatim_starts_with_the_classes_its_images_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "classes.jsa"
    makes = f'#!/bin/sh\necho "$@" >> {tmp_path}/run\n[ -f {tmp_path}/works ] && touch {archive} || echo no broker\n'
    (tmp_path / "verbatim").write_text(makes)
    (tmp_path / "verbatim").chmod(0o755)
    monkeypatch.setattr("bench.copiers.sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr("bench.copiers.classpath", lambda *_: "")
    monkeypatch.setattr("bench.copiers.class_archive.of_spark", lambda _: archive)
    said: list[str] = []
    with pytest.raises(VerbatimError, match=r"quickstart.*no broker"):
        copiers.lay_by_classes(said.append)
    (tmp_path / "works").touch()
    copiers.lay_by_classes(said.append)
    copiers.lay_by_classes(said.append)
    assert len(said) == 2 == len((tmp_path / "run").read_text().splitlines()), (
        "once there is one, nothing is run"
    )


@pytest.mark.parametrize("fill", ["half", "random", "text", "json"])
def test_values_have_their_size_and_are_the_same_every_time(fill: str) -> None:
    shape = Shape(1000, 10, fill=fill)
    some = values(shape)
    assert {len(value) for value in some} == {1000}
    assert some == values(shape)
    assert len(set(some)) == len(some)


@pytest.mark.parametrize(("topics", "partitions"), [(1, 1), (1, 4), (1, 16), (100, 10)])
def test_every_partition_gets_the_same_values_in_runs_however_many_there_are(
    topics: int, partitions: int
) -> None:
    size, each = 100_000, 7
    shape = Shape(size, 0, partitions=partitions, topics=topics)
    some, names = values(shape), [f"t{i}" for i in range(topics)]
    places = topics * partitions
    found = list(runs(shape, names, each * places))
    got: dict[tuple[str, int], list[bytes]] = {}
    for topic, partition, run in found:
        got.setdefault((topic, partition), []).extend(record["value"] for record in run)
    assert len(got) == places
    assert all(its == some[:each] for its in got.values())
    assert found[0][:2] == ("t0", 0) and len(found[0][2]) == RUN_BYTES // size


def test_what_partitions_can_not_share_evenly_is_not_lost() -> None:
    counts: Counter[int] = Counter()
    for _, partition, run in runs(Shape(200, 0), ["t"], 10_003):
        counts[partition] += len(run)
    assert counts == {0: 2501, 1: 2501, 2: 2501, 3: 2500}


class FullNowAndThen:
    """A producer whose queue has room for three records, until it is polled."""

    def __init__(self, code: int = KafkaError._QUEUE_FULL) -> None:
        self.code, self.room, self.got = code, 3, []  # type: ignore[var-annotated]

    def produce_batch(self, topic: str, run: list[dict[str, Any]], partition: int) -> None:
        for record in run:
            if not self.room:
                record["_error"] = KafkaError(self.code)
                continue
            self.produce(topic, **record, partition=partition)

    def produce(self, topic: str, **record: Any) -> None:
        if not self.room:
            raise BufferError
        self.room -= 1
        self.got.append((topic, record["partition"], record["key"], record["value"]))

    def poll(self, timeout: float) -> None:
        self.room = 3


@pytest.mark.parametrize("headers", [None, HEADERS])
def test_a_run_is_handed_over_whole_though_the_queue_is_full_now_and_then(headers: Any) -> None:
    to = FullNowAndThen()
    write(cast("Any", to), "t", 1, [{"key": b"k", "value": b"%d" % n} for n in range(10)], headers)
    assert to.got == [("t", 1, b"k", b"%d" % n) for n in range(10)]


def test_what_the_client_refuses_is_told() -> None:
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        write(
            cast("Any", FullNowAndThen(KafkaError.MSG_SIZE_TOO_LARGE)),
            "t",
            1,
            [{"value": b"", "key": b""}] * 4,
        )


def test_segments_are_sized_although_a_topics_folder_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, size in (("a-0", 5), ("a-1", 7), ("gone-0", 1), ("b-0", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0.log").write_bytes(bytes(size))
    scandir = os.scandir

    def deleted(path: Any = ".") -> Any:
        if str(path).endswith("gone-0"):
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", deleted)
    with Watch({}, tmp_path) as watch:
        pass
    assert watch.written() == {"a": 12, "b": 2}


def test_a_watch_that_could_not_see_is_no_figure_but_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind() -> None:
        raise RuntimeError("no processes")

    monkeypatch.setattr(usage, "processes", blind)
    with pytest.raises(RuntimeError, match="no processes"), Watch({}, tmp_path):
        pass


def test_a_watch_looks_less_often_where_a_look_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the memory, which takes longest, it looks seldom as it is."""
    spent = itertools.count(0.0, 0.04)
    monkeypatch.setattr(usage, "time", SimpleNamespace(thread_time=lambda: next(spent)))
    waited: list[float] = []

    def wait(timeout_s: float) -> bool:
        waited.append(timeout_s)
        return len(waited) == 3

    watch = Watch({}, tmp_path)
    watch._end = cast(Any, SimpleNamespace(wait=wait, set=lambda: None))
    with watch:
        pass
    assert waited == [0.25, 0.25, pytest.approx(0.04 / 0.05)]


def test_a_jvms_compilers_are_told_by_their_threads_names() -> None:
    """Of a process with one thread that is named like one of them, and one that is not."""
    looked, at_work = threading.Event(), threading.Barrier(3)

    def work(name: str) -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        while time.thread_time() < 0.05:
            pass
        at_work.wait(10)
        looked.wait(10)

    with ThreadPoolExecutor(2) as threads:
        working = [threads.submit(work, name) for name in ("C2 CompilerThre", "data-plane")]
        at_work.wait(10)
        found = usage.compilers(os.getpid())
        looked.set()
    for one in working:
        one.result()
    assert len(found) == 1 and 0.04 <= sum(found.values()) < 1


def test_what_compilers_took_leaves_out_those_that_have_ended() -> None:
    assert usage.compiled_s({"7": 2.0, "8": 5.0}, {"7": 2.5, "9": 0.25}) == 0.75


@pytest.mark.parametrize(
    ("compiling", "turns"), [([(0.3, 0.6), (0.1, 0.02), (0.01, 0.03)], 3), ([(0.2, 0.0)] * 20, 10)]
)
def test_a_sitting_warms_up_until_the_brokers_compile_no_more(
    compiling: list[tuple[float, float]], turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    coming = itertools.chain.from_iterable(compiling)
    copied: list[str] = []

    def measure(pair: Any, name: str, *_: Any) -> dict[str, Any]:
        copied.append(name)
        return _throughput(name, 100_000) | {"brokers_compiling_cores": next(coming)}

    monkeypatch.setattr(throughput, "measure", measure)
    sitting.Sitting(cast(Any, None), sitting.Scale(), lambda _: None).warm_up()
    assert copied == ["verbatim", "mm2-throughput"] * turns


def test_a_report_replaces_only_what_is_between_its_markers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figures = tmp_path / "figures.json"
    document = tmp_path / "performance.md"
    document.write_text(f"above\n{report.BEGIN}\nold\n{report.END}\nbelow\n")
    sitting.save(figures, _sitting(), [_throughput("verbatim", 100_000)], append=False)
    sitting.save(figures, _sitting(), [_throughput("floor", 300_000)], append=True)
    report.write(figures, document)
    text = document.read_text()
    assert text.startswith("above\n") and text.endswith("below\n")
    assert "old" not in text
    assert "100,000" in text and "300,000" in text
    assert (tmp_path / "benchmarks.png").stat().st_size > 1000


def test_a_document_without_markers_is_left_alone(tmp_path: Path) -> None:
    figures, document = tmp_path / "figures.json", tmp_path / "performance.md"
    figures.write_text('{"sittings": []}')
    document.write_text("by hand")
    with pytest.raises(ValueError, match="must hold"):
        report.write(figures, document)
    assert document.read_text() == "by hand"


def test_a_command_is_told_without_the_place_of_its_figures() -> None:
    arguments = ["--only", "latency", "--output", "some/figures.json", "--append", "--rate", "5"]
    assert sitting.command_line(arguments) == ["python", "-m", "bench", "--only", "latency", "--rate", "5"]


@pytest.mark.parametrize("name", transforms.VERBATIM)
def test_the_pipelines_that_are_measured_can_be_read_and_values_of_json_are_some(
    name: str, tmp_path: Path
) -> None:
    transforms.write_pipeline(name, tmp_path / "pipeline.yaml")
    assert len(load(tmp_path / "pipeline.yaml").flows) == 1
    assert all("email" in json.loads(value) for value in values(Shape(1000, 1, fill="json")))
