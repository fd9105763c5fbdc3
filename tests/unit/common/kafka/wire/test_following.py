"""Whom a partition is read from: its leader, by its epoch, or a follower in the reader's own rack (KIP-320,
KIP-392). Listeners answer as they are told; real brokers: tests/integration/test_racks.py."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError

from common.kafka.wire import fetch_protocol, protocol
from common.kafka.wire.chunks import Chunk
from common.kafka.wire.fetch_protocol import FETCH
from tests.support.listeners import Asked, Broker, metadata, offset_of
from tests.unit.common.kafka.wire.test_batch_consumer import batch
from tests.unit.common.kafka.wire.test_sick_brokers import consumer, fetched, one_by_one, read, servers


def test_a_follower_nearby_is_read_from_until_it_errs_and_then_the_leader_again() -> None:
    """What a follower calls out of range or another history may just not have come to it yet: neither is an
    event."""
    with Broker({}) as leader, Broker({}) as follower:
        both = {protocol.METADATA: metadata({1: leader.address, 2: follower.address}, "orders", [1], [5])}
        bad: list[int] = []

        def lead(asked: Asked) -> bytes:
            assert b"near" in asked.body
            if follower.kinds().count("Fetch") < 3 and not bad:
                return fetched(0, preferred=2)
            return fetched(0, batch((offset_of(asked) or (0, 0))[1], 1))

        def follow(asked: Asked) -> bytes:
            epoch, offset = offset_of(asked) or (-1, -1)
            assert epoch == 5
            if offset < 2:
                return fetched(0, batch(offset, 1))
            bad.append(KafkaError.OFFSET_OUT_OF_RANGE)
            return fetched(0, error=bad[-1])

        leader.answers, follower.answers = {**both, FETCH: lead}, {**both, FETCH: follow}
        reader = consumer(servers(leader.address) | {"client.rack": "near"})
        chunks = [chunk for _, chunk in read(reader, 5, enough=4)]
        reader.close()
        assert [chunk.next for chunk in chunks] == [1, 2, 3, 4]
        assert follower.kinds().count("Fetch") >= 3, "that one had two of them"
        assert len(bad) == 1


def test_a_partition_does_not_stay_with_a_broker_that_leads_it_no_longer() -> None:
    """Seen: a fetch without the leader's epoch is served by who follows by now; and nobody asks who leads as
    long as all goes well."""
    with Broker({}) as old, Broker({FETCH: one_by_one(0)}) as new:
        moved = False

        def who(asked: Asked) -> bytes:
            brokers = {1: old.address, 2: new.address}
            return metadata(brokers, "orders", [2 if moved else 1], [6 if moved else 5])(asked)

        old.answers = {protocol.METADATA: who, FETCH: lambda _: fetched(0)}
        new.answers = {**new.answers, protocol.METADATA: who}
        reader = consumer(servers(old.address) | {"metadata.max.age.ms": "300"})
        assert read(reader, 0.2) == []
        moved = True
        assert read(reader, 5, enough=1)
        reader.close()
        assert {offset_of(a) for a in old.asked if a.api is FETCH and offset_of(a)} == {(5, 0)}
        assert offset_of(next(a for a in new.asked if a.api is FETCH)) == (6, 0)


@pytest.mark.parametrize("code", [KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH])
def test_a_broker_that_knows_of_another_leader_makes_one_ask_who_it_is(code: int) -> None:
    with Broker({}) as broker:
        epochs = [5]

        def serve(asked: Asked) -> bytes:
            if (offset_of(asked) or (6, 0))[0] == 5:
                epochs[0] = 6
                return fetched(0, error=code)
            return fetched(0, batch(0, 1))

        # The list of epochs is looked at as it is then.
        who = metadata({1: broker.address}, "orders", [1], epochs)
        broker.answers = {protocol.METADATA: who, FETCH: serve}
        reader = consumer(servers(broker.address))
        begun = time.monotonic()
        assert read(reader, 5, enough=1) and time.monotonic() - begun < 2
        reader.close()


def test_what_somebody_says_who_is_not_asked_any_more_is_not_believed() -> None:
    """An answer is on its way from a follower while the partition goes back to its leader: out of range there
    is not out of range."""
    reader = consumer({"bootstrap.servers": "b:1"})
    ((key, at),) = reader._positions.items()
    answer = protocol.Answer(b"\0" + fetched(0, error=KafkaError.OFFSET_OUT_OF_RANGE))
    whole = fetch_protocol.fetched(answer)
    reader._sessions.take = lambda *_: whole  # type: ignore[method-assign]
    at.leader = ("leader", 1)
    assert list(reader._take(("follower", 1), 0.0)) == []
    assert not at.stopped and key in reader._sessions.changed
    (event,) = reader._take(("leader", 1), 0.0)
    assert not isinstance(event, Chunk) and at.stopped
