"""The fault rounds' own judgement: what the checker calls wrong, how faults are dealt, what the proxy reads
in a request."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.rounds import pipelines, report
from tests.faults.rounds.checker import Mapped, compare, compare_mapped
from tests.faults.rounds.faults import deck
from tests.faults.rounds.groups import bounds
from tests.faults.rounds.moves import AMID, group_problems, partition_problems
from tests.faults.rounds.play import BAD, GOOD, NOT_REACHED, deal
from tests.faults.rounds.proxy import end_of_transaction
from tests.faults.rounds.world import BATCHES, INSIDE, RECORDS
from tests.support.brokers import Seen

WHERE = ("orders", 0)


def record(offset: int, value: bytes | None = b"v") -> Seen:
    return Seen(offset, b"k", value, [("h", b"1"), ("h", None)], 1, 1000 + offset)


def source() -> list[Seen]:
    """With a hole at 2, as a transaction's marker leaves one."""
    return [record(i, b"%d" % i) for i in (0, 1, 3, 4)]


def copied() -> list[Seen]:
    return [r._replace(offset=10 + i) for i, r in enumerate(source())]


def mapped() -> list[Mapped]:
    return [Mapped(0, 3, WHERE, [[0, 10, 2]], 2), Mapped(3, 5, WHERE, [[3, 12, 2]], 2)]


@pytest.mark.parametrize(
    ("offset", "where"),
    [(0, (10, 10)), (1, (11, 11)), (2, (12, 12)), (3, (12, 12)), (4, (13, 13)), (5, (14, 17)), (9, (14, 17))],
)
def test_a_group_is_exact_at_the_copy_of_the_record_that_it_would_read_next(
    offset: int, where: tuple[int, int]
) -> None:
    """Behind the last record it may stand before or behind a transaction's marker: there is nothing between
    to read again or to miss."""
    assert bounds(mapped(), offset, end=17) == where


def told(delivered: int | None, at_least: int = 0) -> dict[str, int | None]:
    return {"delivered": delivered, "at_least": at_least}


@pytest.mark.parametrize(
    ("says", "here", "found"),
    [
        (told(5), 4, None),
        (told(3, 2), 2, None),
        (told(0, 5), 0, None),
        (told(3), 4, "2 records at the source, 4 at the destination"),
        (told(5), 2, "4 records at the source, 2 at the destination"),
        (told(3, 3), 2, "3 offsets are said to be missing of 2"),
        (told(None), 2, "nobody was told"),
        ({}, 2, "nobody was told"),
    ],
    ids=[
        "all",
        "half",
        "nothing",
        "more is there",
        "less is there",
        "more is missing",
        "not known",
        "untold",
    ],
)
def test_what_a_failover_told_is_what_is_there(
    says: dict[str, int | None], here: int, found: str | None
) -> None:
    runs = [m for m in mapped() if m.start < (3 if here <= 2 else 5)][: here and None]
    problems = partition_problems(WHERE, says, runs, source(), copied()[:here])
    assert bool(problems) == (found is not None), problems
    assert found is None or any(found in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("row", "stood", "stands", "found"),
    [
        (3, 3, 12, None),
        (1, 3, 11, None),
        (5, 5, 16, None),
        (4, 3, 13, "4 was told, it stood at 3"),
        (3, 3, 13, "13 at the target, not from 12 to 12"),
        (3, 3, 11, "11 at the target, not from 12 to 12"),
    ],
    ids=["exact", "behind", "at the end", "never there", "one is missed", "one comes again"],
)
def test_a_group_that_was_moved_stands_where_it_was_said_to(
    row: int, stood: int, stands: int, found: str | None
) -> None:
    at = ("g", *WHERE)
    problems = group_problems(
        {at: {"source_offset": row}}, {at: stood}, {at: stands}, {WHERE: mapped()}, {WHERE[0]: {0: 17}}
    )
    assert [*map(bool, problems)] == ([] if found is None else [True])
    assert found is None or found in problems[0]


def test_what_befalls_a_move_is_in_the_deck() -> None:
    assert {name for names in AMID.values() for name in names} <= deck(light=True).keys()


def test_an_exact_copy_with_exact_mappings_is_good() -> None:
    assert compare("orders-0", source(), copied()) == []
    assert compare_mapped(WHERE, mapped(), source(), copied()) == []
    assert compare_mapped(WHERE, [], [], []) == []


@pytest.mark.parametrize(
    ("here", "found"),
    [
        (copied()[:-1], "1 missing, 0 too many"),
        ([*copied(), copied()[-1]], "0 missing, 1 too many"),
        (
            [copied()[1], copied()[0], *copied()[2:]],
            "0 missing, 0 too many or altered; first difference at record 0",
        ),
        ([copied()[0]._replace(value=None), *copied()[1:]], "1 missing, 1 too many"),
        ([copied()[0]._replace(key=b""), *copied()[1:]], "1 missing, 1 too many"),
        ([copied()[0]._replace(headers=[("h", None), ("h", b"1")]), *copied()[1:]], "1 missing, 1 too many"),
        ([copied()[0]._replace(timestamp=999), *copied()[1:]], "1 missing, 1 too many"),
        ([], "4 missing"),
    ],
    ids=["lost", "twice", "out of order", "value", "key", "order of headers", "timestamp", "nothing"],
)
def test_whatever_differs_is_found(here: list[Seen], found: str) -> None:
    (problem,) = compare("orders-0", source(), here)
    assert found in problem


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([], "no mappings"),
        (mapped()[:1], "2 source offsets are mapped"),
        ([mapped()[0], replace(mapped()[1], start=4)], "follows one that ends at 3"),
        ([*mapped(), mapped()[1]], "follows one that ends at 5"),
        ([mapped()[0], replace(mapped()[1], runs=[[3, 13, 1], [4, 12, 1]])], "do not go upwards"),
        ([mapped()[0], replace(mapped()[1], runs=[[3, 13, 2]])], "point at another record"),
        ([mapped()[0], replace(mapped()[1], records=3)], "are not its records"),
        ([mapped()[0], replace(mapped()[1], destination=("orders", 1))], "mapped to"),
    ],
    ids=["none", "missing", "gap", "twice", "backwards", "elsewhere", "count", "destination"],
)
def test_wrong_mappings_are_found(records: list[Mapped], found: str) -> None:
    assert any(found in problem for problem in compare_mapped(WHERE, records, source(), copied()))


def test_the_same_seed_deals_the_same_and_every_fault_comes_before_any_comes_again() -> None:
    names = list(deck())
    dealt = deal(7, 40, names, singly=False)
    assert dealt == deal(7, 40, names, singly=False) != deal(8, 40, names, singly=False)
    assert dealt[:30] == deal(7, 30, names, singly=False), (
        "going on with a seed deals what a longer run would have"
    )
    flat = [name for steps in dealt for step in steps for name in step]
    assert len(flat) > 3 * 40
    assert sorted(flat[: len(names)]) == sorted(names)
    for step in (step for steps in dealt for step in steps if len(step) > 1):
        assert len({name.partition("/")[0] for name in step}) == 2


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [1, 3])
def test_the_end_of_a_transaction_is_read_from_its_request(version: int, commit: bool) -> None:
    client, transactional_id = b"rdkafka", b"link.2"
    head = struct.pack(">hhih", 26, version, 5, len(client)) + client
    end = struct.pack(">qh?", 4000, 3, commit)
    if version >= 3:
        request = head + b"\0" + bytes([len(transactional_id) + 1]) + transactional_id + end + b"\0"
    else:
        request = head + struct.pack(">h", len(transactional_id)) + transactional_id + end
    assert end_of_transaction(request) == ("link.2", commit)


LOOK = """
import json
import common.spark.lane_jobs, deduplicator.lane.delivery, deduplicator.lane.frame_handler, deduplicator.state.table
from common.kafka.client import clients

producer = clients.producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
from common.kafka.wire.batch_producer import BatchProducer
wrapped = [type(producer).produce, BatchProducer.commit_transaction, common.spark.lane_jobs.LaneJobs.submit, deduplicator.state.table.StateTable.fold]
print(json.dumps([f.__globals__.get("FOLDER") or f.__wrapped__ is not None for f in wrapped]))
"""


@pytest.mark.parametrize("broken", ["", "stale-next", "no-dedup", "commit-without-records", "no-fencing"])
def test_points_and_breakages_find_what_they_are_to_wrap_in_the_code_as_it_is(
    broken: str, tmp_path: Path
) -> None:
    """A name that has moved would leave crash points that never fire and breakages that break nothing."""
    path = os.pathsep.join([str(INSIDE), str(Path(__file__).parents[2])])
    variables = {**os.environ, "PYTHONPATH": path, "VERBATIM_FAULTS": str(tmp_path), "VERBATIM_BREAK": broken}
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env=variables, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert all(json.loads(done.stdout)) and len(json.loads(done.stdout)) == 4


def test_a_process_that_comes_by_an_armed_point_is_gone(tmp_path: Path) -> None:
    (tmp_path / "frame-before.armed").write_text('{"id": "it", "n": 2, "action": "kill"}')
    code = "import sitecustomize as s; s.point('frame-before'); print('once', flush=True); s.point('frame-before'); print('twice')"
    variables = {**os.environ, "PYTHONPATH": str(INSIDE), "VERBATIM_FAULTS": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (-9, "once\n")
    assert json.loads((tmp_path / "it.fired").read_text())["point"] == "frame-before"


def test_the_figures_in_the_document_are_those_of_the_results() -> None:
    """`python -m tests.faults.rounds.report --write` writes them anew."""
    document = report.DOCUMENT.read_text()
    assert report.BEGIN in document and report.END in document
    assert document == report.written(document, report.load())


def test_a_bad_round_stays_in_the_results_with_its_cause() -> None:
    for result in report.load():
        assert result["verdict"] != BAD or result.get("cause") or result.get("broken"), result


def test_the_summary_counts_what_happened_and_what_did_not() -> None:
    def line(verdict: str, reached: bool, **more: object) -> dict[str, object]:
        fault = {"name": "net/drop-source", "reached": reached}
        base = {"seed": 1, "round": 2, "faults": [fault], "verdict": verdict, "problems": ["x is | missing"]}
        return {**base, "records": 1000, "seconds": 3600.0, "engine": BATCHES, **more}

    results = [
        line(BAD, True, engine=RECORDS, seed=3, cause="mended"),
        line(GOOD, True),
        line(NOT_REACHED, False, lanes="processes"),
        line(BAD, True, cause="the checker's fault"),
        line(BAD, True, broken="no-dedup"),
        line(GOOD, True, broken="no-fencing"),
    ]
    told, before = report.summary(results).split("**Record by record**")
    assert (
        "| seed 3, 2 | x is / missing | mended |" in before and "| **all** | 1 | 1 | 1,000 | 1.0 |" in before
    )
    assert "seed 3" not in told
    assert "| lanes in spark | 2 | 2 | 2,000 | 2.0 |" in told
    assert "| **all** | 3 | 2 | 3,000 | 3.0 |" in told
    assert "1 good; 1 bad; 1 good in which some fault did not" in told
    assert "| seed 1, 2 | x is / missing | the checker's fault |" in told
    assert "| **net**: drop-source 2 | 2 |" in told and "net/drop-source 1." in told
    assert (
        "| `no-dedup` | 1 | x is / missing |" in before and "| `no-fencing` | 1 | **not noticed** |" in before
    )


def test_what_a_version_routes_is_to_be_elsewhere_and_not_where_it_comes_from(tmp_path: Path) -> None:
    headers = [("n", b"15"), ("n", b"5"), ("n", None), ("o", b"15")]
    there = [Seen(n, b"key-%d" % n, b"v", headers if n == 4 else None, 1, 1000) for n in range(10)]
    known = {1: (b"1", b"2", b"1", b"3"), 2: (b"1", b"2", b"2", b"")}
    runs = [[n, n, 1] for n in (0, 4)]
    first = Mapped(0, 5, ("orders", 0), runs, 2, 1, {"orders.routed": [[3, 0, 1]]})
    second = Mapped(5, 10, ("orders", 0), [[5, 2, 5]], 5, 2)
    own, away, dead = pipelines.made(there, [first, second], known)
    assert [r.offset for r in own] == [0, 4, 5, 6, 7, 8, 9] and [r.offset for r in away] == [3]
    assert dead == [(2, 1)]
    assert own[1].headers == [("n", b"1*"), ("n", b"*"), ("n", None), ("o", b"15"), ("turn", b"1")]
    its = [m.elsewhere("orders.routed") for m in (first, second)]
    here = [away[0]._replace(offset=0)]
    assert compare_mapped(("orders.routed", 0), its, away, here) == []
    assert compare_mapped(("orders.routed", 0), its, away, []) != []
    changing = pipelines.Changing(tmp_path / "file")
    found = []
    for _ in range(3):
        found.append("route:" in (tmp_path / "file").read_text())
        changing.write()
    assert found == [True, True, False]
