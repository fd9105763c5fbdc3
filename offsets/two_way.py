"""What a group has read of a topic that two links copy, one each way, as one offset on the other side. Pure.

A log of such a topic holds records of both sides, in another order than the other log. What a group has read
is therefore two positions: in the records that went there, and in those that came from there. On the other
side each of them allows a range of offsets, from behind the last record that it has read to the first one
that it has not. An offset that lies in both ranges skips nothing and repeats nothing; where there is none,
the group can't be moved.
"""

from __future__ import annotations

from offsets.translation_index import BEFORE_ORIGIN, BEYOND, NOTHING_COPIED, PartitionIndex, Translation

INTERLEAVED = "interleaved"
"""On the other side a record that the group has not read stands before one that it has."""
NOT_BACK_YET = "link-back-behind"
"""The link back has not come to where the group would stand."""


def cut(
    there: PartitionIndex | None,
    back: PartitionIndex | None,
    offset: int,
    origin: int | None,
    back_origin: int | None,
) -> Translation:
    """The offset behind all that a group has read which stands before `offset`. `there`: the partition on its
    way to the other side; `back`: the other side's on its way here; the origins: where copying began.

    Where it is not exact, its offset is none, or before the first record that is not read.
    """
    if there:
        found = there.translate(offset, origin)
        if not found.exact:
            return found
    elif there is None or there.start is None or offset > there.next:
        return Translation(None, False, NOTHING_COPIED)
    read, unread = there.around(offset)
    if read is None:
        # Below the origin others may have copied: no further than to where the destination ended then.
        begun = origin == 0 and there.start == 0
        read = 0 if begun else there.held if there.before is None else there.before
        if read is None:
            return Translation(unread, False, BEFORE_ORIGIN)
    if back is None or back.start is None:
        return Translation(None, False, NOT_BACK_YET)
    came = back.reverse(offset, back_origin)
    if not came.exact and came.why not in (BEYOND, BEFORE_ORIGIN):
        return Translation(None, False, came.why)
    came_read, came_unread = back.around(offset, backwards=True)
    came_read = (back_origin or 0) if came_read is None else came_read
    at, firsts = max(read, came_read), [first for first in (unread, came_unread) if first is not None]
    if firsts and at > min(firsts):
        return Translation(min(firsts), False, INTERLEAVED)
    if came_unread is None and at > back.next:
        return Translation(None, False, NOT_BACK_YET)
    return Translation(at, True)
