"""Provenance headers: which records are left out of frames, what is added to copies, what verify expects, and
what is refused with them."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from common.config import loading
from common.kafka.wire.records import Header
from common.link import provenance
from common.link.frame import decode_rows
from offsets.main import command as offsets
from offsets.survey import UNTRANSLATED
from replicator.lane import partition_copy
from replicator.lane.partition_copy import CutFrame, Loop, PartitionCopy
from tests.support.strategies import Record, chunk_of, records
from verbatim.main import cli
from verbatim.moves.failover import Failover
from verbatim.moves.failover import Options as FailoverOptions
from verbatim.moves.steps import Step
from verbatim.verify.comparison import PartitionReport
from verbatim.verify.provenance import Provenance

HERE, THERE = provenance.header("here"), provenance.header("there")
REQUIRED = {
    "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "127.0.0.1:1",
    "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "127.0.0.1:1",
    "KAFKA_CLUSTERS_SOURCE_TOPIC": "orders",
}
ON = {**REQUIRED, "PROVENANCE_HEADERS": "true"}


def make(position: int, leave_out: Header | None = None, refuse: Header | None = None) -> PartitionCopy:
    return PartitionCopy(
        "here", "orders", "id", 0, "w", position, position, None, -1, None, leave_out, refuse
    )


def offsets_in(cuts: list[CutFrame]) -> list[int]:
    values = [(cut.frame, bytes(cut.value)) for cut in cuts]
    return [o for frame, value in values for o in decode_rows(frame, zlib.crc32(value), value).offsets]


@given(
    records(min_size=1),
    st.lists(
        st.sampled_from([None, [THERE], [HERE], [HERE, THERE], [("verbatim.provenance", None)]]), min_size=12
    ),
    st.integers(1, 5),
)
def test_frames_leave_out_what_came_from_the_target_and_cover_it_all_the_same(
    found: list[Record], more: list[list[Header] | None], size: int
) -> None:
    found = [replace(r, h=[*(r.h or []), *own] if own else r.h) for r, own in zip(found, more, strict=False)]
    copy = make(found[0].at, THERE)
    largest, partition_copy.MAX_FRAME_RECORDS = partition_copy.MAX_FRAME_RECORDS, size
    try:
        copy.take_chunk(chunk_of(found))
        cuts = copy.cut(True)
    finally:
        partition_copy.MAX_FRAME_RECORDS = largest
    kept = [r.at for r in found if THERE not in (r.h or [])]
    assert offsets_in(cuts) == kept
    assert [cut.frame.start for cut in cuts] == [found[0].at, *(cut.frame.next for cut in cuts[:-1])]
    assert cuts[-1].frame.next == found[-1].at + 1
    for cut in cuts:
        copy.acknowledge(cut)
    assert (copy.records, copy.left_out) == (len(kept), len(found) - len(kept))
    assert copy.acked == found[-1].at + 1


def test_without_the_setting_nothing_is_left_out_and_only_a_record_that_would_go_round_is_refused() -> None:
    echo, other = Record(0, h=[THERE]), Record(1, h=[("verbatim.provenance", b"elsewhere")])
    copy = make(0)
    copy.take_chunk(chunk_of([echo, other]))
    assert offsets_in(copy.cut(True)) == [0, 1]
    copy = make(0, refuse=THERE)
    copy.take_chunk(chunk_of([other]))
    assert offsets_in(copy.cut(True)) == [1]
    copy.take_chunk(chunk_of([replace(echo, at=2)]))
    with pytest.raises(Loop, match="record 2 of orders-0 came from the target cluster"):
        copy.cut(True)


def test_verify_takes_for_copies_what_bears_the_links_header_last_and_counts_the_rest() -> None:
    of_link = Provenance("here", "there")
    assert of_link.source(None) == (True, None)
    assert of_link.source([("a", b""), HERE]) == (True, [("a", b""), HERE])
    assert not of_link.source([THERE, HERE])[0]
    assert of_link.destination([HERE]) == (True, None)
    assert of_link.destination([("a", b""), HERE]) == (True, [("a", b"")])
    theirs: list[list[Header] | None] = [None, [("a", b"")], [HERE, ("verbatim.provenance", b"third")]]
    for others in theirs:
        assert not of_link.destination(others)[0]
    report = PartitionReport("orders", 0, "orders")
    of_link.tell(report)
    assert "are 1 source records" in report.notes[0] and "and 3 destination records" in report.notes[0]


@pytest.mark.parametrize(
    "arguments",
    [["--once"], ["--dry-run"], ["--reverse"], ["describe"], ["--once", "--provenance-headers", "true"]],
)
def test_groups_are_refused_by_name_where_others_write_to_the_destinations(arguments: list[str]) -> None:
    """Before anything is connected to: no cluster is there."""
    env = REQUIRED if "--provenance-headers" in arguments else ON
    found = CliRunner().invoke(offsets, arguments, env=env)
    assert UNTRANSLATED in str(found.exception)
    assert found.exception.exit_code == 2  # type: ignore[union-attr]


def test_a_cutover_is_refused_and_a_failover_moves_no_groups_where_others_write_to_the_destinations() -> None:
    found = CliRunner().invoke(cli.commands["cutover"], env=ON)
    assert found.exit_code == 2 and "PROVENANCE_HEADERS" in found.stdout
    step = Step("groups")
    survey: Any = None  # not even looked at
    Failover(loading.load(environ=ON), FailoverOptions(1.0))._groups(survey, step)
    assert step.found == [UNTRANSLATED]
