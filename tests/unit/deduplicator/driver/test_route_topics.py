"""Which topics of routes are made and looked at, and when: as often as destinations are, for every version
that may have frames on their way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

from common.config import loading
from common.link import control_kinds as kinds
from common.link.control_kinds import SourceTopic
from common.link.control_records import Destination
from common.link.control_state import Control
from deduplicator.driver.route_topics import RouteTopics

Looked = list[tuple[str, str]]
"""Source topic id and the topic that it is routed to."""


class Log:
    """A control topic in memory."""

    def __init__(self) -> None:
        self.state = Control(link="link")

    def append_all(self, records: list[kinds.ControlRecord], _: Any = None) -> None:
        for record in records:
            self.state.apply(self.state.position, kinds.encode(record, "link"))

    def refresh(self, _: Any) -> Control:
        return self.state

    def pipeline(self, *names: str, topics: str = ".*", count: int | None = None) -> None:
        """Another version, which routes to these; `count`: to so many partitions, by their keys."""
        route: dict[str, Any] = {"cases": [{"when": {"size": 1}, "topic": name} for name in names]}
        stages = [{"route": route | ({"partition": {"hash": count}} if count else {})}]
        told = json.dumps({"flows": [{"topics": [topics], "stages": stages}] if names else []})
        self.append_all([kinds.Pipeline(self.state.pipeline + 1, told, "")])

    def topic(self, name: str, partitions: int = 1, topic_id: str = "", **config: str) -> None:
        self.append_all([SourceTopic(name, topic_id or name, partitions, config)])


def route_topics(log: Log, refused: Mapping[str, str] | None = None) -> tuple[RouteTopics, Looked]:
    settings = loading.load(
        environ={
            "APPLICATION_NAME": "link",
            "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "127.0.0.1:1",
            "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "127.0.0.1:1",
            "KAFKA_CLUSTERS_SOURCE_TOPIC": ".*",
            "KAFKA_CLUSTERS_DESTINATION_TOPIC": "copy.{topic}",
        }
    )
    link: Any = SimpleNamespace(source_cluster="s", target_cluster="t", source_name="s")
    made = RouteTopics(settings, link, log, admin=object())  # type: ignore[arg-type]
    looked: Looked = []

    def on(
        together: Mapping[str, SourceTopic], spread: Mapping[str, int] = MappingProxyType({})
    ) -> list[tuple[SourceTopic, Destination]]:
        looked.extend((source.topic_id, name) for name, source in together.items())
        spreads.append((dict(spread), {name: source.partitions for name, source in together.items()}))
        return [
            (source, Destination(name, source.partitions, 9, (refused or {}).get(name)))
            for name, source in together.items()
        ]

    made.verdicts.on = on  # type: ignore[method-assign]
    return made, looked


spreads: list[tuple[dict[str, int], dict[str, int]]] = []
"""What was asked of topics: how many partitions they are to have, no more; and how many they need."""


def test_a_topic_over_whose_partitions_keys_are_spread_has_as_many_as_the_versions_say() -> None:
    log = Log()
    made, looked = route_topics(log)
    log.topic("a", partitions=8)
    log.pipeline("one", count=3)
    spreads.clear()
    assert settled(made, looked) == [("a", "one")] and settled(made, looked) == []
    log.pipeline("one", count=6)
    assert settled(made, looked) == [("a", "one")] and log.state.routes["a", "one"].partitions == 6
    log.pipeline("one", count=4)
    assert settled(made, looked, again=True) == [("a", "one")]
    log.pipeline("one")
    assert settled(made, looked, again=True) == [("a", "one")]
    assert spreads == [
        ({"one": 3}, {"one": 3}), ({"one": 6}, {"one": 6}), ({"one": 4}, {"one": 6}), ({}, {"one": 8}),
    ]  # fmt: skip


def settled(made: RouteTopics, looked: Looked, again: bool = False) -> Looked:
    looked.clear()
    made.settle(again)
    return sorted(looked)


def test_each_topic_that_a_version_names_is_settled_once_and_looked_at_again_with_the_others() -> None:
    log = Log()
    made, looked = route_topics(log)
    log.topic("a")
    log.topic("b")
    assert settled(made, looked, again=True) == []
    log.pipeline("{topic}.de", "{link}.{topic}")
    wanted = [("a", "a.de"), ("a", "link.a"), ("b", "b.de"), ("b", "link.b")]
    assert settled(made, looked) == wanted and sorted(log.state.routes) == wanted
    assert settled(made, looked) == []
    assert settled(made, looked, again=True) == wanted
    position = log.state.position
    made.settle(again=True)
    assert log.state.position == position, "what is the same is not written again"


def test_frames_of_every_version_may_be_on_their_way_and_the_newest_alone_is_looked_at_again() -> None:
    log = Log()
    made, looked = route_topics(log)
    log.topic("a")
    log.pipeline("one")
    log.pipeline("two")
    log.pipeline()
    assert settled(made, looked) == [("a", "one"), ("a", "two")]
    assert settled(made, looked, again=True) == []
    log.pipeline("two")
    assert settled(made, looked, again=True) == [("a", "two")]


def test_the_own_destination_is_looked_after_by_others_and_a_flow_for_other_topics_names_none() -> None:
    log = Log()
    made, looked = route_topics(log)
    log.topic("a")
    log.topic("b")
    log.pipeline("copy.a", topics="a")
    assert settled(made, looked, again=True) == []


def test_what_has_grown_or_has_another_configuration_is_looked_at_at_once() -> None:
    log = Log()
    made, looked = route_topics(log)
    log.topic("a")
    log.pipeline("one")
    made.settle()
    log.topic("a", partitions=3)
    assert settled(made, looked) == [("a", "one")] and log.state.routes["a", "one"].partitions == 3
    log.topic("a", 3, **{"retention.ms": "5"})
    assert settled(made, looked) == [("a", "one")]
    assert settled(made, looked) == []


def test_a_topic_that_is_gone_or_was_made_again_has_a_verdict_too_and_no_second_one() -> None:
    """Its frames wait for it."""
    log = Log()
    made, looked = route_topics(log)
    log.topic("a", topic_id="old")
    log.topic("a", topic_id="new")
    log.topic("gone")
    log.append_all([kinds.TopicDeleted("gone", "gone")])
    log.pipeline("{topic}.de")
    assert settled(made, looked) == [("gone", "gone.de"), ("new", "a.de"), ("old", "a.de")]
    assert settled(made, looked, again=True) == [("new", "a.de")]


def test_what_is_refused_is_looked_at_again_once_an_operator_has_consented() -> None:
    log = Log()
    refused = {"one": "somebody's"}
    made, looked = route_topics(log, refused)
    log.topic("a")
    log.pipeline("one")
    assert settled(made, looked) == [("a", "one")] and log.state.routes["a", "one"].refused == "somebody's"
    assert settled(made, looked) == []
    log.append_all([kinds.AcceptDestination(("one",))])
    refused.clear()
    assert settled(made, looked) == [("a", "one")] and log.state.routes["a", "one"].refused is None
    assert log.state.copied_into["one"] == {"a"} and not log.state.accepts("one")
    assert settled(made, looked) == []


def test_two_topics_that_go_to_one_are_judged_one_after_the_other() -> None:
    log = Log()
    made, looked = route_topics(log)
    log.topic("a")
    log.topic("b")
    log.pipeline("one")
    judged: list[int] = []
    on: Any = made.verdicts.on

    def counted(together: Mapping[str, SourceTopic], spread: Mapping[str, int] = MappingProxyType({})) -> Any:
        judged.append(len(together))
        return on(together, spread)

    made.verdicts.on = counted  # type: ignore[method-assign]
    assert settled(made, looked) == [("a", "one"), ("b", "one")] and judged == [1, 1]
    assert log.state.has_several_sources("one")
