"""What a link is refused for as it starts, before anything is made on the target."""

from __future__ import annotations

import pytest

from common.errors import LinkRefused
from tests.conftest import Kafka, Names
from tests.integration.test_plan import plan
from tests.support.brokers import Record, create_topic, produce, topics
from tests.support.harness import Link, assert_copied, eventually


def of_link(bootstrap: str, names: Names) -> set[str]:
    """The topics of this test."""
    return {name for name in topics(bootstrap) if names.link in name}


def test_a_link_that_would_copy_its_own_copies_is_refused_and_makes_nothing(
    source: Kafka, names: Names
) -> None:
    """Promise: on one cluster, a copy that is itself selected is refused by name, by the plan too: it would
    be copied again, and again under each name that follows. With the copies left out all goes its way."""
    at, topic = source.bootstrap_servers, names.topic("orders")
    create_topic(at, topic)
    produce(at, topic, [Record(b"one")])
    variables = {"KAFKA_CLUSTERS_DESTINATION_TOPIC": "{topic}.copy"}
    link = Link(at, at, names.link, rf"{names.link}\.t\..*", **variables)
    for run in (link.replicate, link.deduplicate):
        with pytest.raises(LinkRefused, match=rf"{topic}\.copy, the copy of {topic}, would be copied again"):
            run()
    assert of_link(at, names) == {topic}
    report, code = plan(link)
    assert code == 1
    assert any("would be copied again" in failure for failure in report["failures"])
    assert of_link(at, names) == {topic}
    link.variables["KAFKA_CLUSTERS_SOURCE_TOPIC_EXCLUDE"] = r".*\.copy"
    assert link.copy() == (0, 0)
    assert_copied(link, topic, f"{topic}.copy")


def test_one_that_comes_to_do_so_later_ends_by_name(source: Kafka, names: Names) -> None:
    """The first topic comes when the link is there."""
    at, topic = source.bootstrap_servers, names.topic("orders")
    variables = {"KAFKA_CLUSTERS_DESTINATION_TOPIC": "{topic}.copy"}
    link = Link(at, at, names.link, rf"{names.link}\.t\..*", **variables)
    replicator = link.start_replicator()
    eventually(lambda: replicator.application.health.role == "leader", "the replicator to lead")
    create_topic(at, topic)
    with pytest.raises(LinkRefused, match="would be copied again"):
        replicator.wait(30)


def test_a_link_that_is_another_than_it_was_made_as_makes_nothing(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: its identity is looked at first, so nothing is left behind of a link that is refused."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    create_topic(at, names.topic("orders"))
    link = Link(at, to, names.link, names.topic("orders"))
    assert link.replicate() == 0
    before = of_link(to, names)
    for variables in ({"STAGING_TOPIC": f"{names.link}.other"}, {"POSITIONS_TOPIC": f"{names.link}.other"}):
        other = Link(at, to, names.link, names.topic("orders"), **variables)
        with pytest.raises(LinkRefused, match="was made with topics"):
            other.replicate()
        assert of_link(to, names) == before
