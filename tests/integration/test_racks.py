"""A source of several racks: a reader with `client.rack` reads from the replica in its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from common.kafka.wire.batch_consumer import BatchConsumer
from tests.conftest import Names
from tests.integration.test_batches import read, values
from tests.support.brokers import Record, create_on_nodes, produce
from verbatim.local.kafka_cluster import Cluster


class Racks(Cluster):
    """Each node in a rack of its own."""

    def _properties(self, node: int) -> dict[str, str]:
        return super()._properties(node) | {
            "broker.rack": f"rack-{node}",
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        }


@pytest.fixture(scope="module")
def racks() -> Iterator[Racks]:
    with Racks(nodes=3) as cluster:
        yield cluster


def test_a_reader_reads_from_its_own_rack_and_from_the_leader_when_that_is_gone(
    racks: Racks, names: Names
) -> None:
    """Promise: with `client.rack`, records come from the follower in that rack, and none is missing when it
    dies."""
    at, topic = racks.bootstrap_servers, names.topic()
    its_id = create_on_nodes(at, topic, [1, 2])
    produce(at, topic, [Record(b"%d" % i) for i in range(10)])
    reader = BatchConsumer({"bootstrap.servers": at, "client.rack": "rack-2"}, {})
    reader.assign([(topic, its_id, 0, 0, None)])
    got = values(read(reader, 10))
    (position,) = reader._positions.values()
    assert position.replica == 2
    assert f"{position.leader[0]}:{position.leader[1]}" == at.split(",")[1]  # type: ignore[index]
    racks.kill(2)
    produce(at, topic, [Record(b"%d" % i) for i in range(10, 20)])
    got += values(read(reader, 20, 40))
    assert got == [b"%d" % i for i in range(20)]
    assert position.replica is None
    reader.close()
