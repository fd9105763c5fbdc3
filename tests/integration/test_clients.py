"""Kafka clients as the project sets them up, on brokers that fail; what is done with them is left to the other tests."""

from __future__ import annotations

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from common import kafka
from common.kafka import Deadline
from tests.brokers import create_topic
from verbatim.brokers import Cluster


def test_descriptions_go_on_when_the_broker_that_gave_them_dies_and_stays_dead() -> None:
    """Promise: a source or target that lost one of its brokers is asked for topic ids and log ends again within seconds. By default the
    client waits for the dead broker for five minutes, in which no frame leaves and no partition halts."""
    with Cluster(nodes=3) as cluster:
        create_topic(cluster.bootstrap_servers, "orders", config={"min.insync.replicas": "1"})
        client = kafka.admin({"bootstrap.servers": cluster.bootstrap_servers})
        assert kafka.watermarks(client, "orders", 0, Deadline(20)) == (0, 0)
        # Of whom the client asks next: the one that the last metadata called the controller.
        asked = client.list_topics(timeout=10).controller_id
        cluster.kill(asked)
        assert described(client, Deadline(30)) == "orders"
        assert kafka.watermarks(client, "orders", 0, Deadline(20)) == (0, 0)


def described(client: AdminClient, deadline: Deadline) -> str:
    def ask(timeout: float) -> str:
        future = client.describe_topics(TopicCollection(["orders"]), request_timeout=timeout)["orders"]
        return str(kafka.result(future, timeout + 1).name)

    return kafka.patiently("describing orders", ask, deadline)
