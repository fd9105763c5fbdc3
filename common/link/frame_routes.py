"""How a frame carries records that go to several topics: as rows in the order of their offsets, each with the
number of a topic that stands in the frame's header. Pure.

A release that knows no routes would leave out a frame of a version that it does not know, and ask for it
again for ever. So the version stays that of rows, and a mark stands before these: it can't read them, finds
them the same when they come again, and halts the partition by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from common.kafka.wire.records import ROWS, Rows
from common.link.frame_errors import ROWS_AND_FAILED
from common.pipeline.route_names import topic_and_partition

ROWS_AND_ROUTES = ROWS_AND_FAILED.append(pa.field("route", pa.int16()))
"""Schema of such a frame's value: `error` as in frame_errors, `route` a place in the header's topics, null
for the link's own destination, and for what a stage failed on."""
_ERROR, _ROUTE = len(ROWS), len(ROWS) + 1
MARK = b"routes1\n"
"""No message of Arrow begins so; eight bytes, so that what follows stays aligned."""
ROUTES, PLACES = "routes", "places"
"""Headers: of topics, to whose partitions of the same number records go; of topics and partitions."""
MOST = 1 << 15
"""Topics of a frame."""
T = TypeVar("T")


def to_json(topics: Sequence[str]) -> bytes:
    return orjson.dumps(topics)


def header(routes: Sequence[str]) -> str:
    """The frame's header that names them. A release that knows no partitions of them does not know the name
    of theirs, and halts at the mark."""
    return PLACES if any(topic_and_partition(route)[1] is not None for route in routes) else ROUTES


def from_headers(fields: Mapping[str, bytes]) -> tuple[str, ...]:
    """Raises ValueError or TypeError for what no writer would say."""
    named = [name for name in (ROUTES, PLACES) if name in fields]
    if not named:
        return ()
    routes: Any = orjson.loads(fields[named[0]])
    if not isinstance(routes, list) or not 0 < len(routes) < MOST or len({*routes}) < len(routes):
        raise ValueError("topics of routes that are none, or not different ones")
    for route in routes:
        if not isinstance(route, str):
            raise TypeError(f"{route!r} is no topic")
    if named != [header(routes)]:
        raise ValueError("routes in a header that is for others")
    return tuple(routes)


def with_routes(
    rows: pa.RecordBatch, kept: pa.Array, topics: Sequence[str], to: npt.NDArray[np.int16]
) -> tuple[pa.RecordBatch, tuple[str, ...]]:
    """A frame's rows, and the topics that they go to; the rows as they are where none goes anywhere else.
    `rows`: of `ROWS` or `ROWS_AND_FAILED`; `kept`: the offsets of those that go on; `to`: of each of these
    one of the topics, or a negative number for the link's own destination."""
    used = np.unique(to[to >= 0]).tolist()
    if not used:
        return rows, ()
    names = tuple(dict.fromkeys(topics[number] for number in used))
    numbers = np.full(len(topics), -1, np.int16)
    for number in used:
        numbers[number] = names.index(topics[number])
    routes = np.full(len(rows), -1, np.int16)
    at = np.searchsorted(rows.column(0).to_numpy(), kept.to_numpy())
    routes[at] = np.where(to < 0, np.int16(-1), numbers[to])
    columns = rows.columns if rows.num_columns > _ERROR else [*rows.columns, pa.nulls(len(rows), pa.int16())]
    column = pa.array(routes, mask=routes < 0)
    return pa.RecordBatch.from_arrays([*columns, column], schema=ROWS_AND_ROUTES), names


def check(rows: pa.RecordBatch, topics: Sequence[str]) -> None:
    """Raises ValueError unless the rows are as a frame's header says."""
    routes = rows.column(_ROUTE)
    numbers = routes.drop_null().to_numpy()
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(topics)):
        raise ValueError("a route that the header has not")
    if routes.filter(rows.column(_ERROR).is_valid()).null_count != len(rows) - rows.column(_ERROR).null_count:
        raise ValueError("a route of a record that a stage failed on")


def parted(rows: Rows, own: T, routes: Sequence[T]) -> list[tuple[T, Rows]]:
    """Of a frame's rows those that go on, by where they go, each part in order. `own`: the link's own
    destination; `routes`: those of the header's topics. What has the same destination is one part."""
    going = rows.batch.filter(rows.batch.column(_ERROR).is_null())
    numbers = going.column(_ROUTE).fill_null(-1).to_numpy()
    found: list[tuple[T, Rows]] = []
    places: list[T] = []
    for place in (*routes, own):
        if place not in places:
            places.append(place)
    # The own destination is the last, which -1 finds.
    of = np.array([places.index(place) for place in (*routes, own)], np.int16)[numbers]
    for number, place in enumerate(places):
        part = going.filter(pa.array(of == number))
        if len(part):
            plain = pa.RecordBatch.from_arrays(part.columns[:_ERROR], schema=ROWS)
            found.append((place, Rows.of(plain.column(0).to_pylist(), plain)))
    return found
