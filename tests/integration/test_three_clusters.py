"""Links among three clusters: a hub, an aggregation, a chain with its consumer groups, and a ring. Each
copies exactly, and verify says so."""

from __future__ import annotations

import pytest

from offsets.service import Service
from tests.conftest import Kafka, Names
from tests.integration.test_offsets import commit, committed
from tests.integration.test_two_way import (
    KEPT,
    ON,
    Load,
    assert_all_there,
    mark,
    of,
    plain,
    running,
    told,
    verified,
    written,
)
from tests.support.brokers import create_topic, end_offsets, produce, read_all
from tests.support.harness import Link, assert_copied, eventually


@pytest.fixture(scope="module")
def at(source: Kafka, target: Kafka, third: Kafka) -> tuple[str, str, str]:
    """Where the clusters A, B and C are."""
    return source.bootstrap_servers, target.bootstrap_servers, third.bootstrap_servers


def assert_exact(link: Link, topic: str, destination: str | None = None) -> None:
    """Every record is at the destination, as it was, and the mappings say where; by two ways of looking that
    share no code."""
    assert_copied(link, topic, destination)
    for partition in verified(link).partitions:
        assert partition.equal == partition.source_records == partition.destination_records > 0


def test_two_clusters_are_gathered_in_a_third_under_names_of_their_own(
    at: tuple[str, str, str], names: Names
) -> None:
    """Promise: topics of one name from two clusters go to topics of their own (`{source}`), each exactly, by
    links that share a control topic and copy at the same time."""
    a, b, c = at
    topic, control = names.topic("orders"), f"{names.link}.control"
    links = []
    for who, bootstrap in (("a", a), ("b", b)):
        create_topic(bootstrap, topic, 2, KEPT)
        produce(bootstrap, topic, [*written(who, 0, 50), *written(who, 50, 70, 1)])
        links.append(
            Link(
                bootstrap,
                c,
                f"{names.link}.{who}",
                topic,
                CONTROL_TOPIC=control,
                KAFKA_CLUSTERS_SOURCE_NAME=who,
                KAFKA_CLUSTERS_DESTINATION_TOPIC="{source}.{topic}",
            )
        )
    with running(*links):
        loads = [Load(link.source, topic, who, 2) for link, who in zip(links, "ab", strict=True)]
        eventually(lambda: min(load.count[1] for load in loads) >= 400, "some load")
        for load in loads:
            load.stop()
        for link, who, load in zip(links, "ab", loads, strict=True):
            wanted = [50 + load.count[0], 20 + load.count[1]]
            eventually(lambda: link.arrived(f"{who}.{topic}") == wanted, f"all of {who}", 60)  # noqa: B023 - called at once
    for link, who in zip(links, "ab", strict=True):
        assert_exact(link, topic, f"{who}.{topic}")


@pytest.mark.whole
def test_one_topic_goes_to_two_clusters_and_one_link_waits_for_nothing_of_the_other(
    at: tuple[str, str, str], names: Names
) -> None:
    """Promise: two links of one source copy the same topic to two clusters, each exactly, whether the other
    runs or not."""
    a, b, c = at
    topic = names.topic("orders")
    create_topic(a, topic, 2, KEPT)
    to_b, to_c = (Link(a, to, f"{names.link}.hub", topic) for to in (b, c))
    produce(a, topic, [*written("a", 0, 50), *written("a", 50, 70, 1)])
    assert to_b.copy() == (0, 0)
    with running(to_b, to_c):
        load = Load(a, topic, "a", 2)
        eventually(lambda: load.count[1] >= 400, "some load")
        load.stop()
        wanted = [50 + load.count[0], 20 + load.count[1]]
        eventually(lambda: to_b.arrived(topic) == to_c.arrived(topic) == wanted, "all in both", 60)
    for link in (to_b, to_c):
        assert_exact(link, topic)


@pytest.mark.whole
def test_a_chain_copies_exactly_and_its_consumer_groups_go_on_at_the_end_of_it(
    at: tuple[str, str, str], names: Names
) -> None:
    """Promise: what a link has copied, transactions, their markers and gaps and all, another copies on
    exactly; and a group's offset, translated once for each link, is at the last cluster that of the record
    which the group would have read next at the first."""
    a, b, c = at
    topic = names.topic("orders")
    create_topic(a, topic, 1, KEPT)
    first, second = Link(a, b, f"{names.link}.1", topic), Link(b, c, f"{names.link}.2", topic)
    produce(a, topic, written("a", 0, 30))
    produce(a, topic, written("gone", 0, 5), "abort", f"{names.link}.tx")
    with running(first, second):
        eventually(lambda: second.arrived(topic) == [30], "the first records at the end of the chain", 60)
        produce(a, topic, written("a", 30, 60), "commit", f"{names.link}.tx")
        load = Load(a, topic, "b", 1)
        eventually(lambda: load.count[0] >= 300, "some load")
        load.stop()
        eventually(lambda: second.arrived(topic) == [60 + load.count[0]], "all at the end of the chain", 60)
    assert_exact(first, topic)
    assert_exact(second, topic)
    ends = [read_all(bootstrap, topic)[0] for bootstrap in at]
    assert plain(ends[0]) == plain(ends[1]) == plain(ends[2])
    stood = {f"{names.link}.g{i}": ends[0][i].offset for i in (0, 17, 30, 59, 200)}
    stood[f"{names.link}.end"] = end_offsets(a, topic)[0]
    for group, offset in stood.items():
        commit(a, group, topic, offset)
    groups = {"CONSUMER_GROUPS": rf"{names.link}\..*"}
    for link in (first, second):
        link.variables |= groups
        assert Service(link.settings, once=True).run_within() == 0
    for i in (0, 17, 30, 59, 200):
        assert committed(c, f"{names.link}.g{i}", topic) == ends[2][i].offset
    assert committed(c, f"{names.link}.end", topic) == ends[2][-1].offset + 1


def test_in_a_ring_each_record_goes_round_once_and_stops_before_where_it_began(
    at: tuple[str, str, str], names: Names
) -> None:
    """Promise: with PROVENANCE_HEADERS on each link of a ring, a topic of one name that is written on all
    three clusters holds each record once on each, in its order, with a header for each cluster that it has
    come by."""
    topic = names.topic("orders")
    for bootstrap in at:
        create_topic(bootstrap, topic, 1, KEPT)
    # Names of links on one cluster have nothing to do with each other.
    ring = [Link(at[i], at[(i + 1) % 3], f"{names.link}.ring", topic, **ON) for i in range(3)]
    with running(*ring):
        loads = [Load(bootstrap, topic, who, 1) for bootstrap, who in zip(at, "abc", strict=True)]
        eventually(lambda: min(load.count[0] for load in loads) >= 300, "some load")
        for load in loads:
            load.stop()
        wanted = sum(load.count[0] for load in loads)
        eventually(
            lambda: all(link.arrived(topic) == [wanted] for link in ring), "all records everywhere", 60
        )
        for link in ring:
            verified(link)
        assert all(link.arrived(topic) == [wanted] for link in ring)
    marks = [mark(told(bootstrap)) for bootstrap in at]
    own = [[of(read_all(bootstrap, topic)[0])] for bootstrap in at]
    for i, who in enumerate("abc"):
        assert [r.value for r in own[i][0]] == [r.value for r in written(who, 0, loads[i].count[0])]
        before, further = (i - 1) % 3, (i - 2) % 3
        assert_all_there(
            topic,
            at[i],
            own[i],
            ((marks[before],), own[before]),
            ((marks[further], marks[before]), own[further]),
        )
