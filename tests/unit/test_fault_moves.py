"""The judgement of moves that are killed: what the oracle calls wrong, what a point is, and how points are
chosen."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.moves import oracle, report
from tests.faults.moves.oracle import SOURCE, TARGET, History, Read
from tests.faults.moves.play import Points
from tests.faults.moves.points import written
from tests.faults.moves.scenarios import SCENARIOS
from tests.faults.rounds.play import BAD
from tests.faults.rounds.report import DOCUMENT, ROOT, load

AT = ("orders", 0)


def history() -> History:
    """Five records, the last two written at the target; the group has gone over behind the second."""
    found = History(due={"g": ("orders",)})
    found.written[AT] = [SOURCE] * 3 + [TARGET] * 2
    found.read["g"] = [Read(SOURCE if n < 2 else TARGET, *AT, str(n)) for n in range(5)]
    return found


def test_each_record_once_over_both_clusters_is_right() -> None:
    assert oracle.reads(history()) == []
    assert history().wanted("g") == 5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda read: read.pop(2), "1 lost, the first 2"),
        (lambda read: read.insert(2, Read(TARGET, *AT, "1")), "1 twice, the first 1; it read 0 to 1 at the source, 1 to 4 at the target"),
        (lambda read: read.append(Read(TARGET, *AT, "forgotten")), "1 not meant to be there, the first forgotten"),
        (lambda read: read.append(Read(TARGET, *AT, "5")), "1 not meant to be there, the first 5"),
        (lambda read: read.reverse(), "in another order"),
        (lambda read: read.clear(), "5 lost, the first 0"),
        (lambda read: read.append(Read(TARGET, "paid", 1, "0")), "paid-1: 1 records that it does not read"),
    ],
)  # fmt: skip
def test_whatever_else_a_group_has_read_is_wrong(change: Callable[[list[Read]], object], said: str) -> None:
    found = history()
    change(found.read["g"])
    (problem,) = oracle.reads(found)
    assert problem.startswith("group g, ") and said in problem, problem


def test_a_group_answers_for_its_own_topics_alone() -> None:
    found = history()
    found.written["paid", 0] = [SOURCE]
    assert oracle.reads(found) == []
    found.due["g"] = ("orders", "paid")
    assert oracle.reads(found) == ["group g, paid-0: 1 lost, the first 0"]


def names(count: int) -> list[str]:
    return [str(n) for n in range(count)]


@pytest.mark.parametrize(
    ("cluster", "there", "whole", "said"),
    [
        (TARGET, names(5), {"orders"}, None),
        (TARGET, names(4), {"orders"}, "1 lost, the first 4"),
        (SOURCE, names(3), (), None),
        (SOURCE, names(2), (), "1 lost, the first 2"),
        (SOURCE, names(4), (), None),  # copied back some way
        (SOURCE, [*names(3), "forgotten"], (), "1 lost, the first 3"),
        (TARGET, [*names(5), "5"], {"orders"}, "1 not meant to be there, the first 5"),
        (TARGET, ["0", "1", "1", "2", "3", "4"], {"orders"}, "1 twice, the first 1"),
        (TARGET, ["0", "2", "1", "3", "4"], {"orders"}, "in another order"),
    ],
)
def test_a_log_has_all_or_as_far_as_it_goes(
    cluster: str, there: list[str], whole: set[str], said: str | None
) -> None:
    found = oracle.logs(history(), cluster, {AT: there}, whole)
    assert found == [] if said is None else said in found[0], found


def test_where_copies_end_is_as_it_was_written_down_or_it_is_told() -> None:
    assert oracle.ends("cutover", {AT: (3, 7)}, {AT: (3, 7)}) == []
    assert oracle.ends("cutover", {AT: (3, 6)}, {AT: (3, 7)}) == [
        "cutover, orders-0: (3, 6) was written down, and it was (3, 7)"
    ]
    assert len(oracle.ends("cutover", {}, {AT: (3, 7)})) == 1


@pytest.mark.parametrize(
    ("state", "is_denied", "settled", "wrong"),
    [
        (None, True, True, False),
        (None, False, False, True),
        ("promoting", True, False, False),
        ("promoting", False, False, True),
        ("promoted", False, True, False),
        ("promoted", True, False, False),
        ("promoted", True, True, True),
    ],
)
def test_others_may_write_a_copy_once_its_topic_is_promoted_and_never_before(
    state: str | None, is_denied: bool, settled: bool, wrong: bool
) -> None:
    assert bool(oracle.writable(state, is_denied, settled)) == wrong


def test_points_that_were_aimed_at_least_come_first_and_new_ones_are_found() -> None:
    points, kind, rng = Points(), ("cutover", True), random.Random(1)
    assert points.next(kind, rng).startswith("0 any ")
    points.seen(kind, 0, ["step link 1", "step lag 1"])
    assert {points.next(kind, rng) for _ in range(2)} == {"0 step link 1", "0 step lag 1"}
    points.seen(kind, 0, ["step link 1", "control promotion promoted, before 1"])
    assert points.next(kind, rng) == "0 control promotion promoted, before 1"
    assert points.of(kind, 0) == ["control promotion promoted, before 1", "step lag 1", "step link 1"]


def test_a_record_is_called_after_what_it_says() -> None:
    assert (
        written("link.control", b'{"kind": "promotion", "state": "promoted"}') == "control promotion promoted"
    )
    assert written("link.group-offsets", b"[1]") == "group-offsets"
    assert written("orders", None) == "orders"


def test_a_command_that_comes_by_its_point_is_gone_and_all_that_it_came_by_is_told(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.faults.moves import points as p; here = Path(sys.argv[1]);"
        "p.install(p.Points(here / 'passed', \"file's name, after 1\"), here);"
        "(here / 'x.yaml.part').write_text('x'); (here / 'x.yaml.part').replace(here / 'x.yaml'); print('too far')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.returncode, ended.stdout) == (-9, ""), ended.stderr
    assert (tmp_path / "x.yaml").exists()
    assert (tmp_path / "passed").read_text().splitlines() == [
        "file .part, before 1",
        "file's name, before 1",
        "file's name, after 1",
    ]


def test_the_figures_in_the_document_are_those_of_the_results() -> None:
    """`python -m tests.faults.moves.report --write` writes them anew."""
    document = DOCUMENT.read_text()
    assert report.BEGIN in document and report.END in document
    assert document == report.written(document, load(report.RESULTS))


def test_a_bad_one_stays_in_the_results_with_its_cause() -> None:
    for result in load(report.RESULTS):
        assert result["scenario"] in SCENARIOS
        assert result["verdict"] != BAD or result.get("cause") or result.get("broken"), result


def test_the_summary_counts_times_kills_and_points() -> None:
    def line(verdict: str, *kills: str, **more: object) -> dict[str, object]:
        base = {"scenario": "cutover", "seed": 1, "number": 2, "offsets": True, "problems": ["x is | lost"]}
        return {**base, "verdict": verdict, "kills": list(kills), "read": 1500, "given_up": False, **more}

    told = report.summary(
        [
            line("good"),
            line("good", "0 step link 1", "0 step lag 1"),
            line("good", "0 step link 1", given_up=True),
            line("bad", "0 step still 1", cause="mended"),
            line("bad", "0 step lag 1", broken="one-off"),
            line("good", broken="done-before"),
        ]
    )
    assert "| `cutover` | 4 | 4 | 3 | 1 | 6,000 | 1 |" in told
    assert "| `cutover`, seed 1, 2 | x is / lost | mended |" in told
    assert "| `one-off` | `cutover` | 1 | x is / lost |" in told
    assert "| `done-before` | `cutover` | 1 | **not noticed** |" in told
