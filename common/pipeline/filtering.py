"""The stage `filter`: which records go on. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.pipeline.batch import Batch, Done, Run, flags
from common.pipeline.conditions import Formats
from common.pipeline.judging import Judge
from common.pipeline.stages import Filter


def filtering(options: Filter, formats: Formats) -> Run:
    conditions = options.keep if options.keep is not None else options.drop
    assert conditions is not None
    judge = Judge(conditions, formats)
    keep = options.keep is not None

    def run(batch: Batch) -> Done:
        held, bad = judge(batch)
        others = ~held if keep else held
        if options.otherwise == "drop":
            return Done(batch, flags(len(batch)), others, failed=bad)
        values = batch.rows.column(4)
        changed = others & values.is_valid().to_numpy(zero_copy_only=False)
        if changed.any():
            nothing = pa.scalar(None, pa.binary())
            batch = batch.with_column("value", pc.if_else(pa.array(changed), nothing, values))
        return Done(batch, np.asarray(changed), failed=bad)

    return run
