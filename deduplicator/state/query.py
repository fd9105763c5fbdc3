"""The query that folds the offset mappings into the state table while an application runs; when it is worth
while is its caller's to say."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from common.errors import StateError
from deduplicator.state.snapshot import FoldResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

    from deduplicator.state.table import StateTable

log = logging.getLogger(__name__)

HISTORY_DAYS = 30
TIDY_FIRST_S, TIDY_S = 600.0, 6 * 3600.0


def start_state_query(
    table: StateTable,
    *,
    interval_s: float = 60.0,
    due: Callable[[], bool] = lambda: True,
    on_folded: Callable[[FoldResult], None] | None = None,
    on_error: Callable[[StateError], None] | None = None,
    checkpoint: str | None = None,
) -> StreamingQuery:
    """Start the query that folds when it is `due`, which it asks every `interval_s` when the mappings have
    moved, and tidies up now and then.

    It needs one slot, for seconds at a time. A fold that fails is logged, handed to `on_error`, and made up
    for by the next one; the query goes on. `checkpoint` None: a temporary directory, which is all the
    checkpoint is worth.
    """
    from deduplicator.state.mappings_source import options

    tidy_at = time.monotonic() + TIDY_FIRST_S

    def fold(_: DataFrame, __: int) -> None:
        # The batch's own rows are left unread: they start at the checkpoint, and the fold starts at M.
        nonlocal tidy_at
        if not due():
            return
        try:
            result = table.fold()
            if on_folded is not None:
                on_folded(result)
            if time.monotonic() >= tidy_at:
                tidy_at = time.monotonic() + TIDY_S
                table.maintain(HISTORY_DAYS)
        except StateError as error:
            log.warning("%s", error)
            if on_error is not None:
                on_error(error)

    writer = (
        table.spark.readStream.format("mappings")
        .options(**options(table.config, table.topic))
        .load()
        .writeStream.queryName("state")
        .trigger(processingTime=f"{interval_s} seconds")
        .foreachBatch(fold)
    )
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", checkpoint)
    return writer.start()
