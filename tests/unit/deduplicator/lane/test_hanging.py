"""What hangs without a marker: what is closed how, and what may not be written to before more is known.
Owners that change: tests/simulation."""

from __future__ import annotations

import json
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from common.kafka.client import clients
from common.kafka.wire import open_transactions
from common.kafka.wire.open_transactions import OpenTransactions
from common.link.control_state import Control
from common.link.offset_mappings import Mapping
from common.link.partitioning import partitions_of
from common.ports import Deadline
from deduplicator.lane import hanging
from deduplicator.lane.hanging import WATCH_S, Watch, close_hanging, last_begins, own_destinations
from deduplicator.lane.recovery import Recovered
from tests.support.control_json import encode

ONE, TWO, THREE = ("orders", 1), ("orders", 2), ("orders", 3)
FIRST, SPARE, FOREIGN = 7, 8, 99


def mapping(partition: int, *runs: list[int], position: int = 5) -> Mapping:
    return Mapping("c", "orders", "id", partition, 0, 9, "orders", partition, position, 3, 0, 0, list(runs))


def closed(
    monkeypatch: pytest.MonkeyPatch,
    told: OpenTransactions,
    fenced: set[str],
    last: dict[tuple[str, int], set[int]],
    all_there: bool = True,
    delivered: bool = True,
    then: list[OpenTransactions] | None = None,
) -> tuple[list[Any], dict[tuple[str, int], KafkaError]]:
    """`then`: what is told when it has been closed, the last of it again and again."""
    marked: list[Any] = []
    coming = [told, *(then or [OpenTransactions()])]

    def told_next(of: Collection[tuple[str, int]], timeout: float) -> OpenTransactions:
        if len(coming) < 1 + len(then or "1"):
            assert set(of) == {at for _, where, _ in marked for at in where}
        return coming.pop(0) if len(coming) > 1 else coming[0]

    fencing: Any = SimpleNamespace(
        client=SimpleNamespace(open_transactions=told_next),
        ids_of={FIRST: "l.0", SPARE: "l.0.1"},
        fenced=dict.fromkeys(fenced),
        mark=lambda tid, where, committed: marked.append((tid, where, committed)),
    )
    monkeypatch.setattr(hanging, "last_mapped", lambda *_: (last, all_there))
    plan: Any = None
    admin: Any = None
    own = dict.fromkeys((ONE, TWO, THREE), delivered)
    return marked, close_hanging(plan, 0, fencing, own, 9, admin, Deadline(5))


def test_each_is_closed_by_its_own_id_as_the_mappings_say_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    told = OpenTransactions({ONE: {FIRST: 5}, TWO: {FIRST: 5, FOREIGN: 1}, THREE: {FIRST: 5, SPARE: 8}})
    marked, unsettled = closed(monkeypatch, told, {"l.0", "l.0.1"}, {ONE: {5, 9}, TWO: {4}, THREE: {2, 5}})
    assert unsettled == {}
    assert sorted(marked) == [
        ("l.0", [ONE, THREE], True),
        ("l.0", [TWO], False),
        ("l.0.1", [THREE], False),
    ]


def test_where_what_is_to_close_it_lacks_its_marker_too_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A marker takes a moment: it is waited for. What others begin there meanwhile is theirs."""
    monkeypatch.setattr(open_transactions, "AGAIN_S", 0.0)
    told = OpenTransactions({ONE: {FIRST: 5}, TWO: {FIRST: 5}})
    late = [told, OpenTransactions({TWO: {FIRST: 5}}), OpenTransactions({TWO: {FOREIGN: 9}})]
    assert closed(monkeypatch, told, {"l.0"}, {}, then=late)[1] == {}
    monkeypatch.setattr(open_transactions, "MARKER_S", 0.05)
    _, unsettled = closed(monkeypatch, told, {"l.0"}, {}, then=late[:2])
    assert unsettled.keys() == {TWO} and "lacks its marker, too" in unsettled[TWO].str()
    gone = OpenTransactions({}, {ONE: KafkaError(KafkaError.LEADER_NOT_AVAILABLE)})
    _, unsettled = closed(monkeypatch, told, {"l.0"}, {}, then=[gone])
    assert {at: why.code() for at, why in unsettled.items()} == {ONE: KafkaError.LEADER_NOT_AVAILABLE}


def test_what_others_have_open_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert closed(monkeypatch, OpenTransactions({ONE: {FOREIGN: 5}}), {"l.0"}, {}) == ([], {})


def test_where_an_id_is_still_being_completed_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    told = OpenTransactions({ONE: {FIRST: 5}, TWO: {SPARE: 5}})
    marked, unsettled = closed(monkeypatch, told, {"l.0.1"}, {})
    assert marked == [("l.0.1", [TWO], False)]
    assert unsettled.keys() == {ONE} and "l.0 hangs there" in unsettled[ONE].str()


def test_where_no_mapping_is_left_that_would_tell_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    told = OpenTransactions({ONE: {FIRST: 5}, TWO: {FIRST: 5}})
    marked, unsettled = closed(monkeypatch, told, {"l.0"}, {TWO: {5}}, all_there=False)
    assert marked == [("l.0", [TWO], True)]
    assert unsettled.keys() == {ONE} and "offset 5" in unsettled[ONE].str()
    for all_there, delivered in ((True, True), (False, False)):
        marked, unsettled = closed(monkeypatch, told, {"l.0"}, {}, all_there, delivered)
        assert (marked, unsettled) == ([("l.0", [ONE, TWO], False)], {}), "a commit would show"


def test_a_missing_right_is_no_other_kind_of_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is denied is seen to elsewhere, for whoever writes; this one is set aside by name."""
    denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "takes READ")
    gone = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    _, unsettled = closed(monkeypatch, OpenTransactions({}, {ONE: denied, TWO: gone}), {"l.0"}, {})
    assert unsettled[ONE].code() == KafkaError._STATE and unsettled[ONE].str() == "takes READ"
    assert unsettled[TWO].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_of_each_destination_partition_the_last_transaction_counts() -> None:
    """All that it has there, whatever source partitions it is of; not what had the same offsets in a topic of
    that name that was deleted."""
    some = [mapping(1, [0, 0, 2]), mapping(2, [0, 7, 1]), mapping(1, [0, 10, 2], [5, 20, 3], position=6)]
    some += [mapping(2, position=7), mapping(1, [8, 4, 1], position=6)]
    assert last_begins(some) == {ONE: {4, 10, 20}, TWO: {7}}


def test_mappings_are_read_back_until_all_of_the_last_transaction_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transaction's mappings may begin before what was read."""
    log = [mapping(1, [0, at * 10, 1], position=at // 2) for at in range(40)]
    log[4:] = [mapping(3, [0, 1, 1], position=at) for at in range(4, 40)]
    read: list[int] = []

    def read_mappings(_: Any, __: str, ___: int, begin: int, until: int, *____: Any) -> list[Mapping]:
        read.append(begin)
        return log[begin : until + 1]

    monkeypatch.setattr(hanging, "FEW", 37)
    monkeypatch.setattr(hanging, "read_mappings", read_mappings)
    monkeypatch.setattr(clients, "watermarks", lambda *_: (0, 40))
    monkeypatch.setattr(clients, "reader", lambda *_, **__: SimpleNamespace(close=lambda: None))
    plan: Any = SimpleNamespace(mappings_topic="m", reader={}, group="g")
    admin: Any = None
    found, all_there = hanging.last_mapped(plan, 0, [ONE], 39, admin, Deadline(5))
    assert found[ONE] == {20, 30} and all_there and read == [3, 0]


def test_what_an_owner_wrote_to_is_looked_at_until_nothing_of_its_own_is_open_there() -> None:
    """Where records come all the time something is open each time, but not the same."""
    told = [
        OpenTransactions({ONE: {FIRST: 5}, TWO: {FOREIGN: 5}}),
        OpenTransactions({ONE: {FIRST: 9}}, {THREE: KafkaError(KafkaError.LEADER_NOT_AVAILABLE)}),
        OpenTransactions({ONE: {FIRST: 9}}),
    ]
    asked: list[set[tuple[str, int]]] = []

    def open_transactions(of: set[tuple[str, int]], timeout: float) -> OpenTransactions:
        asked.append(of)
        return told.pop(0)

    client = SimpleNamespace(open_transactions=open_transactions)
    fencing: Any = SimpleNamespace(client=client, ids_of={FIRST: "l.0"})
    watch, now = Watch(fencing), 100.0
    assert watch.hangs((), now) is None and asked == [], "nothing was written"
    watch.wrote([ONE, TWO])
    assert watch.hangs((), now) is None
    watch.wrote([THREE])
    assert watch.hangs((), now + WATCH_S - 1) is None and len(asked) == 1
    assert watch.hangs((), now + WATCH_S) is None
    assert watch.hangs([THREE], now + 2 * WATCH_S) == ONE
    assert asked == [{ONE, TWO}, {ONE, THREE}, {ONE}]


def test_what_hangs_may_hang_in_each_partition_over_which_a_version_has_spread_keys() -> None:
    """Promise: an owner asks for all of them, whichever version it was, and knows of each whether something
    may have been delivered there; of what keeps its partition it asks for its own."""
    state = Control(link="link")

    def said(kind: str, **more: Any) -> None:
        state.apply(state.position, encode(kind, **more))

    said("topic", topic="orders", topic_id="id", partitions=4, config={})
    for number, (topic, count) in enumerate((("de", 6), ("de", 3), ("fr", None)), 1):
        route = {"topic": topic} | ({} if count is None else {"partition": {"hash": count}})
        definition = json.dumps({"flows": [{"topics": ["orders"], "stages": [{"route": route}]}]})
        said("pipeline", n=number, definition=definition, sha256="")
    of = {"topic": "orders", "topic_id": "id", "max_message_bytes": 1}
    said("destination", **of, destination="orders", partitions=4)
    said("route", **of, destination="de", partitions=3)
    said("route", **of, destination="fr", partitions=4)
    plan: Any = SimpleNamespace(link="link", staging_partitions=2)
    mine = [0, 2] if 0 in partitions_of("orders", 4, 0, 2) else [1, 3]
    found = Recovered({("id", mine[1]): 5}, {}, True, None, 0, 0)
    own = own_destinations(plan, 0, state, found)
    assert own == {
        **{(topic, number): number == mine[1] for topic in ("orders", "fr") for number in mine},
        **{("de", number): True for number in range(6)},
    }
    assert not any(own_destinations(plan, 0, state, Recovered({}, {}, True, None, 0, 0)).values())
