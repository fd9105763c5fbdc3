"""What arrives at the destination is what was at the source: each kind of record, topic and log."""

from __future__ import annotations

from tests.brokers import Record, Seen, create_topic, produce, read_all
from tests.conftest import Kafka, Names
from tests.harness import Link


def contents(records: list[Seen]) -> list[tuple[object, ...]]:
    """Everything of a record that must be equal on both sides."""
    return [(r.key, r.value, r.headers, r.timestamp) for r in records]


def assert_copied(link: Link, topic: str, destination: str | None = None) -> None:
    """Every partition of the destination holds exactly the source's records, in order."""
    there = [contents(p) for p in read_all(link.source, topic)]
    here = [contents(p) for p in read_all(link.target, destination or topic)]
    assert here == there


def test_null_and_empty_keys_values_and_headers_arrive_as_they_were(source: Kafka, target: Kafka, names: Names) -> None:
    """Promise: null and empty are never confused; header order, duplicates and null header values stay."""
    topic = names.topic()
    create_topic(source.bootstrap_servers, topic, 3)
    kinds = [None, b"", b"x"]
    headers = [None, [("h", b"1"), ("h", None), ("g", b""), ("h", b"1")], [("", b"x")]]
    produce(
        source.bootstrap_servers,
        topic,
        [Record(partition=p, key=k, value=v, headers=h) for p in range(3) for k in kinds for v in kinds for h in headers],
    )
    link = Link(source.bootstrap_servers, target.bootstrap_servers, names.link, topic)
    assert link.copy() == (0, 0)
    assert_copied(link, topic)
    assert link.copy() == (0, 0)
    assert_copied(link, topic)
