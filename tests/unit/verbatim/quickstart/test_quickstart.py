"""The parts of `verbatim quickstart` without brokers: its input, its load, its figures, its words, and that
it undoes what it did."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import verbatim.quickstart.quickstart
from common.errors import SettingsError, VerbatimError
from common.link import offset_mappings, positions
from common.link.offset_mappings import Mapping
from common.link.positions import Position
from common.partitions import PartitionId
from common.spark import class_archive, jars
from tests.support.brokers import wait_until
from verbatim.local import applications, kafka_cluster
from verbatim.local.applications import Application, descendants, environment, processes
from verbatim.local.kafka_cluster import BrokerError
from verbatim.main import cli
from verbatim.quickstart import display
from verbatim.quickstart.loading import History, Loader
from verbatim.quickstart.progress import DELAY_S, RATE_S, Progress, Tally
from verbatim.quickstart.quickstart import Quickstart
from verbatim.quickstart.records import Record, Records, flights, json_lines, partition_of
from verbatim.verify.comparison import Kind, PartitionReport
from verbatim.verify.link import LinkReport

# input


def test_all_flights_are_there_with_key_headers_and_the_time_of_departure() -> None:
    records = flights()
    first = next(records.read())
    assert records.count == 336_776
    assert (first.key, first.headers) == (b"N14228", [("carrier", b"UA"), ("route", b"EWR-IAH")])
    assert first.timestamp_ms == 1_357_035_300_000, "2013-01-01T05:15 in New York"
    value = orjson.loads(first.value)
    assert (
        value["distance"] == 1400 and value["dest"] == "IAH" and value["time_hour"] == "2013-01-01T10:00:00Z"
    )


def test_flights_without_a_tail_number_have_no_key_and_those_that_never_left_a_null_header() -> None:
    found = list(flights(20_000).read())
    unkeyed = [r for r in found if r.key is None]
    cancelled = [r for r in found if ("cancelled", None) in r.headers]
    assert unkeyed and all(orjson.loads(r.value)["tailnum"] is None for r in unkeyed)
    assert cancelled and all(orjson.loads(r.value)["dep_time"] is None for r in cancelled)
    assert len(found) == 20_000 and len(cancelled) == sum(
        orjson.loads(r.value)["dep_time"] is None for r in found
    )


def test_flights_are_the_same_every_time_and_fill_all_partitions() -> None:
    records = flights(5000)
    assert list(records.read()) == list(records.read())
    sizes = [0] * 4
    for number, record in enumerate(records.read()):
        sizes[partition_of(record, number, 4)] += 1
    assert min(sizes) > 1000


def test_lines_of_json_are_copied_as_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(
        b'{"id": 7,  "x": 1}\n\n[1, 2]\r\n"text"\n{"key": "k", "id": 1}\n{"id": null}\n{"key": {"a": 1}}'
    )
    records = json_lines(file)
    read = list(records.read())
    assert [r.value for r in read] == [
        b'{"id": 7,  "x": 1}',
        b"[1, 2]",
        b'"text"',
        b'{"key": "k", "id": 1}',
        b'{"id": null}',
        b'{"key": {"a": 1}}',
    ]
    assert [r.key for r in read] == [b"7", None, None, b"k", None, b'{"a":1}']
    assert [r.headers for r in read][:2] == [[("line", b"1")], [("line", b"3")]]
    assert records.count == 6
    assert json_lines(file, 2).count == 2 and len(list(json_lines(file, 2).read())) == 2


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"", "holds no records"), (b"\n \n", "holds no records"), (b"{}\n{", "line 2 is not JSON")],
)
def test_a_file_that_is_no_json_lines_is_refused_by_name(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=rf"--input: \S*in\.jsonl,? {complaint}"):
        json_lines(file)


def test_a_fault_beyond_the_records_wanted_does_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"1\n2\n{")
    assert json_lines(file, 2).count == 2


# load


class FakeProducer:
    """Takes everything and acknowledges on poll; `error` is what the third record meets."""

    def __init__(self, error: KafkaError | None = None) -> None:
        self.written: list[tuple[int, Any]] = []
        self._error = error
        self._reports: list[Callable[[KafkaError | None, Any], None]] = []

    def produce(self, topic: str, value: Any, key: Any, partition: int, **more: Any) -> None:
        self.written.append((partition, value))
        self._reports.append(more["on_delivery"])

    def poll(self, timeout: float) -> None:
        self.flush(timeout)

    def flush(self, timeout: float) -> int:
        reports, self._reports = self._reports, []
        for report in reports:
            report(self._error if len(self.written) > 2 else None, None)
        return 0


def numbered(count: int) -> Records:
    def read() -> Iterator[Record]:
        return (Record(None, b"%d" % n, [], 0) for n in range(count))

    return Records("t", "numbers", count, read)


@pytest.fixture
def loaded() -> Iterator[Callable[..., tuple[Loader, FakeProducer]]]:
    started: list[Loader] = []

    def start(count: int, live_s: float, error: KafkaError | None = None) -> tuple[Loader, FakeProducer]:
        producer = FakeProducer(error)
        loader = Loader(numbered(count), 3, {}, live_s, producer)  # type: ignore[arg-type]
        started.append(loader)
        loader.start()
        return loader, producer

    yield start
    for loader in started:
        loader.stop()


Start = Callable[..., tuple[Loader, FakeProducer]]


def test_the_load_waits_after_the_backlog_and_before_the_last_tenth(loaded: Start) -> None:
    loader, producer = loaded(1000, 0.3)
    wait_until(lambda: len(producer.written) == 100, "the backlog")
    time.sleep(0.1)
    assert len(producer.written) == 100, "nothing goes on before go_live"
    began = time.monotonic()
    loader.go_live()
    wait_until(lambda: len(producer.written) == 900, "the live part")
    assert time.monotonic() - began > 0.2, "spread over live_s"
    time.sleep(0.1)
    assert len(producer.written) == 900 and not loader.finished(), "the last tenth waits for the kill"
    loader.let_finish()
    wait_until(loader.finished, "the end")
    assert producer.written == [(n % 3, b"%d" % n) for n in range(1000)], (
        "each once, in order, at its partition"
    )
    assert loader.history.ends == [334, 333, 333]


@pytest.mark.parametrize("count", [1, 2, 3, 9, 10, 11])
def test_half_of_few_records_can_be_delivered_before_the_kill_and_at_least_one_is_left_for_after_it(
    loaded: Start, count: int
) -> None:
    loader, producer = loaded(count, 0.0)
    loader.go_live()
    wait_until(lambda: len(producer.written) == loader.held_from, "what may be written before the kill")
    assert loader.held_from >= max(1, count // 2)
    assert count == 1 or loader.held_from < count
    loader.let_finish()
    wait_until(loader.finished, "the end")
    assert len(producer.written) == count


def test_a_record_that_the_source_refuses_ends_the_load_with_its_reason(loaded: Start) -> None:
    loader, _ = loaded(1000, 0.1, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    loader.go_live()
    with pytest.raises(VerbatimError, match="topic t refused a record: Broker: Message size too large"):
        wait_until(loader.finished, "the refusal")


def test_a_load_can_be_stopped_wherever_it_stands() -> None:
    for go_live, let_finish in ((False, False), (True, False), (True, True)):
        producer = FakeProducer()
        loader = Loader(numbered(100_000), 3, {}, 60.0, producer)  # type: ignore[arg-type]
        loader.start()
        if go_live:
            loader.go_live()
        if let_finish:
            loader.let_finish()
        time.sleep(0.05)
        loader.stop()
        assert not loader.finished() and len(producer.written) < 100_000
        assert not any(thread.name == "loader" for thread in threading.enumerate())


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 0.01)), max_size=200))
def test_history_knows_each_offset_s_time_to_the_millisecond(steps: list[tuple[int, float]]) -> None:
    history, now, expected = History(3), 100.0, {}
    for partition, passed in steps:
        now += passed
        expected[(partition, history.ends[partition])] = now
        history.wrote(partition, now)
    for (partition, offset), at in expected.items():
        found = history.written_at(partition, offset)
        assert found is not None and at - 0.001 <= found <= at
    for partition, end in enumerate(history.ends):
        assert history.written_at(partition, end) is None
    assert history.written_at(3, 0) is None and history.written_at(0, -1) is None


# figures

BASE = Mapping("c", "t", "id", 0, 0, 0, "t", 0, 0, 0, 0, 0, [])
KEYS: list[PartitionId] = [("id", 0), ("id", 1)]


def mapped(tally: Tally, now: float, records: int, **more: Any) -> None:
    tally.mapping(offset_mappings.encode(replace(BASE, records=records, **more))[1], now)


def position(tally: Tally, key: PartitionId, reached: int) -> None:
    tally.position(*positions.encode("t", key, Position(reached, 0, -1)))


def counters(tally: Tally, application: str, lane: int, term: int, **values: int) -> None:
    key = {"metrics": application, "lane": lane}
    tally.position(orjson.dumps(key), orjson.dumps({"term": term, "epoch": 1, **values}))


def test_what_is_delivered_is_the_sum_of_the_mappings_of_the_topic() -> None:
    tally = Tally("t", lambda partition, offset: None)
    mapped(tally, 1.0, 10, next=10)
    mapped(tally, 1.1, 5, next=15)
    mapped(tally, 1.1, 7, partition=1, next=9)
    mapped(tally, 1.1, 99, topic="another", next=99)
    tally.mapping(b"no mapping", 1.2)
    tally.mapping(None, 1.2)
    position(tally, KEYS[0], 20)
    position(tally, KEYS[1], 3)
    position(tally, KEYS[1], 11)
    shown = tally.progress(40, 1.2)
    assert (shown.source_end, shown.staged, shown.delivered, shown.lag) == (40, 31, 22, 18)
    assert shown.rate == pytest.approx(22 / RATE_S)


def test_figures_of_different_moments_do_not_contradict_each_other() -> None:
    tally = Tally("t", lambda partition, offset: None)
    mapped(tally, 1.0, 10, next=10)
    shown = tally.progress(3, 1.0)
    assert (shown.source_end, shown.staged, shown.delivered, shown.lag) == (10, 10, 10, 0)


def test_duplicates_add_up_over_lanes_and_terms_and_the_newest_term_is_known() -> None:
    tally = Tally("t", lambda partition, offset: None)
    assert tally.term("replicator") == -1
    counters(tally, "deduplicator", 0, 1, records=5, duplicates=1)
    counters(tally, "deduplicator", 0, 1, records=9, duplicates=4)
    counters(tally, "deduplicator", 1, 1, records=2, duplicates=10)
    counters(tally, "deduplicator", 0, 3, records=1, duplicates=100)
    counters(tally, "replicator", 0, 2, records=50)
    tally.position(b"neither", b"nor")
    tally.position(b'{"metrics": "deduplicator"}', b"[]")
    assert tally.progress(0, 0.0).duplicates == 114
    assert tally.counter("deduplicator", "records") == 12
    assert (tally.term("replicator"), tally.term("deduplicator")) == (2, 3)


def test_delay_is_the_median_of_what_arrived_and_then_the_age_of_the_oldest_that_waits() -> None:
    written = {(0, 9): 10.0, (0, 19): 10.5, (0, 29): 10.9, (0, 30): 12.0, (1, 4): 11.5}
    tally = Tally("t", lambda partition, offset: written.get((partition, offset)))
    assert tally.progress(0, 11.0).delay_s is None
    for end in (10, 20, 30):
        mapped(tally, 11.0, 10, next=end)
    mapped(tally, 11.0, 4, partition=1, next=4)
    assert tally.progress(0, 11.0).delay_s == pytest.approx(0.5)
    assert tally.progress(0, 11.0 + DELAY_S + 3).delay_s == pytest.approx(16.0 - 11.5)
    written.clear()
    assert tally.progress(0, 17.0).delay_s is None, "nothing waits"


# words


def report(**findings: int) -> LinkReport:
    first = PartitionReport("t", 0, "t", source_records=60, destination_records=60, equal=60)
    second = PartitionReport("t", 1, "t", source_records=40, destination_records=40, equal=40)
    for kind, count in findings.items():
        if kind == "behind":
            second.add_behind(3, count)
        else:
            second.add(Kind(kind), 3, 3, count=count)
    return LinkReport([first, second])


def test_a_clean_report_is_a_good_verdict() -> None:
    assert display.verdict(report(), 100, 1) == (
        "ok: 100 records: 0 lost, 0 twice, order kept, one kill survived",
        True,
    )
    assert display.verdict(report(), 100, 0) == ("ok: 100 records: 0 lost, 0 twice, order kept", True)


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        ({"lost": 2}, "2 lost"),
        ({"behind": 5}, "5 lost"),
        ({"duplicated": 3}, "3 twice"),
        ({"reordered": 4}, "4 out of order"),
        ({"altered": 1}, "1 altered"),
        ({"foreign": 6}, "6 foreign"),
        ({"mapping": 7}, "7 mapping"),
    ],
)
def test_anything_found_is_a_bad_verdict_that_names_it(findings: dict[str, int], said: str) -> None:
    text, good = display.verdict(report(**findings), 100, 1)
    assert (
        not good and text.startswith("FAILED: 100 records: ") and said in text.split(": ", 2)[2].split(", ")
    )
    assert "survived" not in text


def test_records_that_vanished_from_both_sides_are_a_bad_verdict() -> None:
    text, good = display.verdict(report(), 101, 1)
    assert not good and "100 found equal" in text


def test_without_a_terminal_a_line_is_written_only_when_something_has_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = display.Lines(every_s=0.0)
    now = Progress(1000, 900, 800, 7, 1234.5, 0.0567)
    lines.show(now)
    lines.show(now)
    lines.show(replace(now, delivered=1000, delay_s=None))
    out = capsys.readouterr().out.splitlines()
    assert [line.partition(" s  ")[2] for line in out] == [
        "source 1,000, staged 900, delivered 800, duplicates dropped 7, lag 200, 1,234 records/s, delay 57 ms",
        "source 1,000, staged 900, delivered 1,000, duplicates dropped 7, lag 0, 1,234 records/s, delay -",
    ]


def test_a_terminal_shows_the_figures_and_keeps_what_happened_above_them() -> None:
    out = io.StringIO()
    screen = display.Screen(1000, console=Console(file=out, force_terminal=True, width=100, highlight=False))
    screen.show(Progress(1000, 900, 800, 7, 1234.5, 12.34))
    screen.event("[something] happened")
    screen.close()
    screen.say("after")
    text = out.getvalue()
    for figure in (
        "source end",
        "1,000",
        "900",
        "800",
        "duplicates dropped",
        "1,234",
        "12.3 s",
        "[something] happened",
        "after",
    ):
        assert figure in text


def test_next_steps_can_be_pasted_into_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV", "/somewhere/uv")
    variables = {
        "APPLICATION_NAME": "quickstart",
        "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "KAFKA_CLUSTERS_SOURCE_TOPIC": "flights",
        "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "127.0.0.1:2",
    }
    steps = display.next_steps(variables, {"replicator": 12}, {"replicator": 80}, [Path("/x/replicator.log")])
    commands = [step for step in steps if step and not step.startswith(("Everything", "logs:"))]
    assert subprocess.run(["bash", "-n"], input="\n".join(commands), text=True).returncode == 0
    exported = subprocess.run(
        ["bash", "-c", "\n".join([c for c in commands if c.startswith("export")] + ["env"])],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert all(f"{name}={value}\n" in exported for name, value in {**variables, "HEALTH_PORT": "0"}.items())
    snippets = [c for c in commands if c.startswith("uv run python -c ")]
    assert len(snippets) == 2
    for snippet in snippets:
        code = snippet.removeprefix('uv run python -c "').removesuffix('"')
        compile(code, "snippet", "exec")
        assert code == subprocess.run(
            ["bash", "-c", f'echo "{code}"'], capture_output=True, text=True
        ).stdout.rstrip("\n")
    assert "uv run verbatim verify" in commands and "kill -9 12; uv run replicator" in commands


# processes


def test_an_application_gets_its_own_settings_and_nobody_else_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (
        "APPLICATION_NAME",
        "KAFKA_CLUSTERS_SOURCE_PROPERTIES_SASL_PASSWORD",
        "SPARK_HOME",
        "PYSPARK_PYTHON",
        "STREAMS_REPLICATION_FACTOR",
        "STATE_PATH",
        "LOG_LEVEL",
    ):
        monkeypatch.setenv(name, "of another link")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dmine=1")
    monkeypatch.setenv("VERBATIM_JARS", "/jars/of/mine")
    made = environment({"APPLICATION_NAME": "quickstart"}, tmp_path)
    assert "of another link" not in made.values()
    assert made["APPLICATION_NAME"] == "quickstart" and made["VERBATIM_JARS"] == "/jars/of/mine"
    assert made["TMPDIR"] == str(tmp_path)
    assert made["JAVA_TOOL_OPTIONS"] == f"-Dmine=1 -Djava.io.tmpdir={tmp_path}"
    assert "PYTHONDONTWRITEBYTECODE" not in made and made["PYTHONPYCACHEPREFIX"] == "/jars/of/mine/bytecode"
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    assert "PYTHONPYCACHEPREFIX" not in environment({}, tmp_path)


def test_processes_are_known_by_parent_and_start_with_and_without_proc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        by_proc = processes()
        monkeypatch.setattr(Path, "exists", lambda self: False)
        by_ps = processes()
        child.kill()
    for found in (by_proc, by_ps):
        assert found[child.pid][0] == os.getpid()
        assert child.pid in descendants(os.getpid(), found) and os.getpid() not in descendants(
            child.pid, found
        )
    assert descendants(child.pid, {}) == []


FAMILY = """
import os, signal, subprocess, sys, time
open("seen.txt", "w").write(os.getcwd() + " " + os.environ["APPLICATION_NAME"] + " " + os.environ["TMPDIR"])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"child %d\\n" % child.pid)  # at once: what reads the log sees the line whole
if "dies" in sys.argv:
    while not os.path.exists("die"): time.sleep(0.01)
    sys.exit(7)
time.sleep(600)
"""


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Callable[..., Application]]:
    made: list[Application] = []

    def start(*arguments: str) -> Application:
        command = [sys.executable, "-c", FAMILY, *arguments]
        application = Application("replicator", {"APPLICATION_NAME": "quickstart"}, tmp_path, command)
        made.append(application)
        before = application.log_tail()
        application.start()
        wait_until(lambda: application.log_tail() != before, "the family to be complete")
        return application

    yield start
    for application in made:
        application.kill()


def child_of(application: Application) -> int:
    return int(application.log_tail().split()[-1])


def test_an_application_runs_in_its_folder_with_its_environment(
    family: Callable[..., Application], tmp_path: Path
) -> None:
    family()
    assert (tmp_path / "seen.txt").read_text() == f"{tmp_path} quickstart {tmp_path / 'tmp'}"


def test_kill_ends_every_process_and_the_application_can_be_started_again(
    family: Callable[..., Application],
) -> None:
    application = family("stubborn")
    child, pid = child_of(application), application.pid
    assert application.kill() == 2
    assert not {child, pid} & processes().keys()
    assert application.ended() == -signal.SIGKILL
    application.start()
    wait_until(lambda: child_of(application) != child, "another child")
    assert application.ended() is None and application.pid != pid


def test_stop_gives_an_application_the_chance_to_end_and_takes_its_children_with_it(
    family: Callable[..., Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    polite = family()
    polite.stop()
    assert polite.ended() == -signal.SIGTERM and child_of(polite) not in processes()
    monkeypatch.setattr(applications, "_STOP_S", 0.2)
    stubborn = family("stubborn")
    stubborn.stop()
    assert stubborn.ended() == -signal.SIGKILL and child_of(stubborn) not in processes()


def test_what_a_killed_driver_had_started_is_given_time_to_end_by_itself(
    family: Callable[..., Application],
) -> None:
    application = family()
    child, pid = child_of(application), application.pid
    assert not application.kill_driver(0.2)
    assert child in processes() and pid not in processes()
    os.kill(child, signal.SIGTERM)
    assert application.kill_driver(5.0)


def test_children_of_an_application_that_ended_by_itself_are_found_again(
    family: Callable[..., Application], tmp_path: Path
) -> None:
    application = family("dies")
    assert application.ended() is None
    (tmp_path / "die").touch()
    wait_until(lambda: application.ended() is not None, "its end")
    assert application.ended() == 7 and child_of(application) in processes()
    application.kill()
    assert child_of(application) not in processes()


def test_an_application_that_is_not_installed_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(VerbatimError, match="there is no /nowhere/replicator"):
        Application("replicator", {}, tmp_path, ["/nowhere/replicator"]).start()


# the command


class FakeCluster:
    """Records what is done with it. The second one made can't start."""

    made: ClassVar[list[FakeCluster]] = []

    def __init__(
        self, data_folder: Path, jvm_options: tuple[str, ...], record_classes: Path | None = None
    ) -> None:
        self.folder, self.done = data_folder, list[str]()
        self.fails = bool(FakeCluster.made)
        FakeCluster.made.append(self)

    def start(self) -> FakeCluster:
        self.folder.mkdir()
        self.done.append("start")
        if self.fails:
            raise BrokerError("no room for a broker")
        return self

    def stop(self, timeout_s: float) -> None:
        self.done.append("stop")


@pytest.fixture
def without_brokers(monkeypatch: pytest.MonkeyPatch) -> type[FakeCluster]:
    monkeypatch.setattr(FakeCluster, "made", [])
    monkeypatch.setattr(verbatim.quickstart.quickstart, "Cluster", FakeCluster)
    monkeypatch.setattr(jars, "resolve", lambda coordinate: [])
    return FakeCluster


def named_folder(output: str) -> Path:
    return Path(output.partition("data and logs: ")[2].splitlines()[0])


def test_what_had_started_is_stopped_and_removed_when_the_rest_can_t_start(
    without_brokers: type[FakeCluster],
) -> None:
    result = CliRunner().invoke(cli, ["quickstart", "--records", "10"])
    assert isinstance(result.exception, BrokerError)
    assert [(cluster.done[0], cluster.done[-1]) for cluster in without_brokers.made] == [
        ("start", "stop")
    ] * 2
    assert not named_folder(result.output).exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "whoever called it has its signals back"


def test_input_that_is_no_json_ends_it_with_nothing_left(
    without_brokers: type[FakeCluster], tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("{")
    result = CliRunner().invoke(cli, ["quickstart", "--input", str(tmp_path / "in")])
    assert isinstance(result.exception, SettingsError)
    assert all(cluster.done[-1] == "stop" for cluster in without_brokers.made)
    assert not named_folder(result.output).exists()


def test_a_folder_that_was_asked_for_stays_and_one_with_something_in_it_is_refused(
    without_brokers: type[FakeCluster], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    result = CliRunner().invoke(cli, ["quickstart", "--folder", str(folder)])
    assert isinstance(result.exception, BrokerError)
    assert f"data and logs stay in {folder}" in result.output and (folder / "source").exists()
    again = CliRunner().invoke(cli, ["quickstart", "--folder", str(folder)])
    assert isinstance(again.exception, SettingsError) and "is not empty" in str(again.exception)
    assert (folder / "source").exists()


def test_what_the_jvms_have_loaded_is_kept_once_they_have_ended(
    without_brokers: type[FakeCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, kafka = tmp_path / "spark.jsa", tmp_path / "kafka.jsa"
    monkeypatch.setattr(class_archive, "of_spark", lambda _: spark)
    monkeypatch.setattr(kafka_cluster, "class_data_archive", lambda: kafka)
    run = Quickstart(tmp_path / "run")
    run._scratch.mkdir(parents=True)
    ended: list[str] = []

    class Recording:
        def __init__(self, name: str) -> None:
            self.name = name

        def kill_driver(self, _: float) -> bool:
            ended.append(self.name)
            for option in run._spark_options(self.name)[1:]:
                Path(option.partition("AtExit=")[2].split()[0]).write_text(self.name)
            return True

    run._applications = {name: Recording(name) for name in ("replicator", "deduplicator")}  # type: ignore[misc]
    run.lay_by_classes()
    assert spark.read_text() == "deduplicator" and not kafka.exists(), "what could not be kept ends nothing"
    assert ended == ["replicator", "deduplicator"] and without_brokers.made[1].done == ["stop"]
    kafka.touch()
    run.lay_by_classes()
    assert len(ended) == 2 and run._spark_options("deduplicator") == []


def test_without_the_flights_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: at once and in one line, before anything is fetched or started."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(verbatim.quickstart.quickstart, "Quickstart", None)
    result = CliRunner().invoke(cli, ["quickstart"])
    assert isinstance(result.exception, SettingsError)
    assert "install verbatim-kafka[quickstart], or give a file of JSON lines with --input" in str(
        result.exception
    )
