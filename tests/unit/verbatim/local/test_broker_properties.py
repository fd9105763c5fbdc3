"""What local brokers are started with: listeners that others find, and topics of Kafka's own that survive the
loss of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from verbatim.local.broker_properties import broker_properties

PORTS = {n: (100 + n, 200 + n) for n in range(1, 6)}


@pytest.mark.parametrize(("nodes", "copies", "in_sync"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)])
def test_kafkas_own_topics_have_as_many_copies_as_there_are_nodes_for_and_outlive_one(
    nodes: int, copies: int, in_sync: int
) -> None:
    found = broker_properties(1, {n: PORTS[n] for n in range(1, nodes + 1)}, Path("/data"))
    assert {found[key] for key in found if key.endswith("replication.factor")} == {str(copies)}
    assert {found[key] for key in found if key.endswith((".isr", "insync.replicas"))} == {str(in_sync)}


def test_a_node_names_all_controllers_and_listens_on_its_own_ports_of_this_machine_alone() -> None:
    found = broker_properties(2, {1: PORTS[1], 2: PORTS[2]}, Path("/data"))
    assert found["controller.quorum.voters"] == "1@127.0.0.1:201,2@127.0.0.1:202"
    assert found["listeners"] == "PLAINTEXT://127.0.0.1:102,CONTROLLER://127.0.0.1:202"
    assert found["advertised.listeners"] == "PLAINTEXT://127.0.0.1:102"
    assert (found["node.id"], found["log.dirs"]) == ("2", "/data")


def test_clients_behind_a_proxy_are_told_its_port_and_brokers_keep_to_their_own() -> None:
    found = broker_properties(1, {1: PORTS[1]}, Path("/data"), clients=(301, 302))
    assert found["listeners"].split(",")[2:] == ["CLIENTS://127.0.0.1:301"]
    assert found["advertised.listeners"] == "PLAINTEXT://127.0.0.1:101,CLIENTS://127.0.0.1:302"
    assert found["inter.broker.listener.name"] == "PLAINTEXT"
    names = [name.partition(":")[0] for name in found["listeners"].split(",")]
    assert [name.partition(":")[0] for name in found["listener.security.protocol.map"].split(",")] == names
