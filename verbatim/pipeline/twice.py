"""The double run: records go through a flow with code of the operator's again, and cut otherwise. What comes
out must be the same. Pure, if the code is.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from common.errors import SettingsError
from common.pipeline.batch import Origin
from common.pipeline.engine import Applied, Outcome, ReadyFlow

FIRST_PIECES = (1, 2, 3)
"""Records of the first ones that a batch is cut into; then they grow."""


def must_be_pure(flow: ReadyFlow, rows: pa.RecordBatch, origin: Origin, first: Applied) -> None:
    """`first`: what has come of these rows. Raises SettingsError where not everything comes again."""
    if not flow.code or first.on_error != flow.on_error:
        return
    wanted = _told([(rows, first)])
    again = [(rows, flow.apply(rows, origin))]
    cut = [(piece, flow.apply(piece, origin)) for piece in _pieces(rows)]
    for how, found in (("once more", again), ("in other batches", cut)):
        told = _told(found)
        for offset, became in wanted.items():
            if told[offset] != became:
                names = ", ".join(sorted(flow.code))
                raise SettingsError(
                    f"{origin.topic}/{origin.partition} offset {offset}: comes out otherwise when it is run {how}: of"
                    f" {names} something is no function of the record alone"
                )


def _pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    at, turn = 0, 0
    while at < len(rows):
        count = FIRST_PIECES[turn] if turn < len(FIRST_PIECES) else at
        yield rows.slice(at, count)
        at, turn = at + count, turn + 1


def _told(runs: list[tuple[pa.RecordBatch, Applied]]) -> dict[int, object]:
    """What has become of each record, by offset."""
    found: dict[int, object] = {}
    for rows, applied in runs:
        kept = {row["offset"]: row for row in applied.rows.to_pylist()}
        why = {failure.offset: (failure.stage, failure.reason) for failure in applied.failures}
        for offset, outcome in zip(rows.column(0).to_pylist(), applied.outcomes.tolist(), strict=True):
            found[offset] = Outcome(outcome), kept.get(offset), why.get(offset)
    return found
