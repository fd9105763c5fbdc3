"""Variables of the older system, and settings that are gone: what became of each. Pure."""

from __future__ import annotations

from typing import NamedTuple

from common.config.client_properties import Kind


class Successor(NamedTuple):
    """What became of a variable of the older system: a setting, a client property (with its kind), or
    nothing."""

    meaning: str
    setting: str | None = None
    property: str | None = None
    kind: Kind | None = None


OLD_VARIABLES: dict[str, Successor] = {
    "KAFKA_CLUSTERS_DESTINATION_TOPIC_PROXY": Successor("`STAGING_TOPIC`", "STAGING_TOPIC"),
    "KAFKA_CONFIG_CONSUMER_AUTO_RESET": Successor("`START_OFFSETS`", "START_OFFSETS"),
    "KAFKA_CONFIG_CONSUMER_FETCH_MIN_BYTES": Successor(
        "`fetch.min.bytes` of every consumer", None, "fetch.min.bytes", "consumer"
    ),
    "KAFKA_CONFIG_PRODUCER_LINGER_MS": Successor(
        "`linger.ms` of every producer", None, "linger.ms", "producer"
    ),
    "KAFKA_CONFIG_PRODUCER_COMPRESSION_TYPE": Successor(
        "`compression.type` of every producer", None, "compression.type", "producer"
    ),
    "KAFKA_CONFIG_PRODUCER_ACKS": Successor("ignored, acks is always all"),
    "KAFKA_CONFIG_PRODUCER_DELIVERY_TIMEOUT_MS": Successor(
        "ignored, no record is given up while Verbatim runs"
    ),
    "STREAMS_REPLICATION_FACTOR": Successor("`REPLICATION_FACTOR`", "REPLICATION_FACTOR"),
    "STREAMS_NUM_STREAM_THREADS": Successor("`PARALLELISM`", "PARALLELISM"),
    "WHOLE_BATCHES": Successor(
        "gone: records always go as record batches, which serves every broker and every way to come in"
    ),
    "STREAMS_NUM_STANDBY_REPLICAS": Successor("ignored, it has no meaning here"),
    "STREAMS_BUFFER_CONFIG_MAX_BYTES": Successor("ignored, it has no meaning here"),
}
SAME_ANYWAY = {
    ("KAFKA_CONFIG_PRODUCER_ACKS", "all"),
    ("KAFKA_CONFIG_PRODUCER_ACKS", "-1"),
    ("WHOLE_BATCHES", "true"),
    ("KAFKA_CONFIG_PRODUCER_DELIVERY_TIMEOUT_MS", "0"),
}
