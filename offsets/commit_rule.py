"""Whether a translated offset is written to the target's group, and why not. Pure.

Two rules stand above all: a group with members is left alone, and a group that is ahead at the target by its
own consumption is never moved back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal[
    "written",
    "in-step",
    "active",
    "target-ahead",
    "target-moved",
    "kept",
    "rewind-off",
    "several-targets",
    "several-sources",
    "repartitioned",
    "beyond-source",
    "failed",
    "unmovable",
    "moving",
    "moved",
]
MEANINGS: dict[str, str] = {
    "written": "the translated offset was written",
    "in-step": "the target's group stands there already",
    "active": "the group has members at the target: its offsets are left alone",
    "target-ahead": "the target's group is ahead by its own consumption: never moved back",
    "target-moved": "the target's group was moved back there, and the source's has not moved since",
    "kept": "the source's group has not gone back; what was written before is more exact than what can be translated now",
    "rewind-off": "the source's group has gone back, and REWIND is off",
    "several-targets": "records of the partition are in several destinations",
    "several-sources": "records of several source topics are in the destination: no position there is one of this topic alone",
    "repartitioned": "records of the partition are spread over those of the destination by their keys: no position there is one of it",
    "beyond-source": "the source's group stands beyond the end of its log: the offset is of another log",
    "failed": "Kafka refused it",
    "unmovable": "a group of this kind has no offsets that could be translated",
    "moving": "`verbatim move-group` has begun to move the group, and not ended: run it again, or with --back",
    "moved": "`verbatim move-group` has moved the group to the target: it goes on there, and its offsets are left alone",
}


@dataclass(frozen=True, slots=True)
class Written:
    """What was last written to a partition of a target's group: the offset, and the source offset that it
    stands for.

    `previous` is what the target had before. The record of it goes out before the write, so after a crash the
    target may still have that.
    """

    source_offset: int
    offset: int
    previous: int | None


def decide(
    translated: int,
    source_offset: int,
    committed: int | None,
    written: Written | None,
    active: bool,
    rewind: bool,
) -> Outcome:
    """What to do about one partition of a group: "written" means, write `translated`.

    `committed` is the offset that the target's group has; `written` what this link wrote there for the same
    topic id and destination.
    """
    if active:
        return "active"
    if committed is None:
        return "written"
    if committed == translated:
        return "in-step"
    if committed < translated:
        # Its consumers, or an operator, put it back there, and the source's group is not in use: after a
        # failover, say. Moved on, it would leave records out.
        ours = written is None or committed in (written.offset, written.previous)
        if not ours and written is not None and written.source_offset == source_offset:
            return "target-moved"
        return "written"
    if written is None or committed != written.offset:
        return "target-ahead"
    if source_offset >= written.source_offset:
        return "kept"
    return "written" if rewind else "rewind-off"


def decide_back(translated: int, committed: int | None, active: bool) -> Outcome:
    """The same for fail-back, where the target's offset is written to the source's group: forwards only."""
    if active:
        return "active"
    if committed is None or committed < translated:
        return "written"
    return "in-step" if committed == translated else "target-ahead"
