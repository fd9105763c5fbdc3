"""What a plan finds missing at the clusters, by what the brokers tell: rights, replicas, the size of
requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import LinkRefused
from common.kafka.client import topics
from common.link.permissions import SOURCE, TARGET, needed_on
from tests.simulation.world import settings
from verbatim.plan import granted_rights
from verbatim.plan.granted_rights import Granted
from verbatim.plan.report import PlanReport, RoutePlan, TopicPlan
from verbatim.plan.requirements import Requirements

SETTINGS = settings(REPLICATION_FACTOR="2")
ALL = frozenset({"READ", "WRITE", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS"})


class Clusters:
    """`rights`: what the brokers tell of a topic, else all, with two replicas. `least`: min.insync.replicas
    at the target."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **rights: Granted) -> None:
        self.rights = rights
        self.least = "1"
        self.broker: dict[str, str] | None = {}
        self.source: Any = object()
        self.target: Any = SimpleNamespace(pretended=SimpleNamespace(topics={}))
        monkeypatch.setattr(granted_rights, "of_topics", self.of_topics)
        monkeypatch.setattr(topics, "broker_config", self.broker_config)
        monkeypatch.setattr(topics, "configs", self.configs)

    def of_topics(self, _: Any, names: list[str], deadline: Any) -> dict[str, Granted]:
        return {name: self.rights.get(name, Granted(ALL, 2)) for name in names}

    def broker_config(self, *_: Any) -> dict[str, str]:
        if self.broker is None:
            raise LinkRefused("no right")
        return self.broker

    def configs(self, client: Any, names: list[str], _: Any) -> dict[str, dict[str, str]]:
        of_source = {"max.message.bytes": "900000"}
        return {n: of_source if client is self.source else {"min.insync.replicas": self.least} for n in names}

    def checked(self) -> PlanReport:
        report = PlanReport("l", topics=[TopicPlan("t", "id", 1, "copy", "there")])
        Requirements(SETTINGS, self.source, self.target, report).check_topics()
        return report


def test_what_is_allowed_and_taken_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    report = Clusters(monkeypatch).checked()
    assert (report.failures, report.warnings) == ([], [])
    assert report.topics[0].copies == 2


def test_a_pipeline_with_schema_ids_needs_the_map_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = Clusters(monkeypatch, **{SETTINGS.schemas_topic: Granted(frozenset({"DESCRIBE"}), 2)})
    report = PlanReport("l", topics=[TopicPlan("t", "id", 1, "copy", "there")])
    Requirements(SETTINGS, clusters.source, clusters.target, report, schema_ids=True).check_topics()
    assert [SETTINGS.schemas_topic in why and "READ" in why for why in report.failures] == [True]
    assert clusters.checked().failures == []


def test_rights_that_are_missing_are_named_with_their_cluster_and_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clusters = Clusters(monkeypatch, t=Granted(ALL - {"READ"}, 2), copy=Granted(ALL - {"WRITE"}, 2))
    clusters.rights[SETTINGS.staging_topic] = Granted(ALL - {"DELETE"}, 2)
    assert clusters.checked().failures == [
        "source, topic t: READ not allowed; grant it",
        f"target, topic {SETTINGS.staging_topic}: DELETE not allowed; grant it",
        "target, topic copy: WRITE not allowed; grant it",
    ]


def test_topics_that_records_are_routed_to_need_what_destinations_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clusters = Clusters(monkeypatch, de=Granted(frozenset({"DESCRIBE"}), 2))
    routes = [RoutePlan("de", "there"), RoutePlan("fr", "refused", "it is full")]
    report = PlanReport("l", topics=[TopicPlan("t", "id", 1, "copy", "there", routes=routes)])
    Requirements(SETTINGS, clusters.source, clusters.target, report).check_topics()
    (failure,) = report.failures
    assert failure.startswith("target, topic de: ") and "WRITE" in failure


def test_topics_with_fewer_replicas_than_must_be_in_sync_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = Clusters(monkeypatch, copy=Granted(ALL, 1))
    clusters.least, clusters.broker = "2", {"min.insync.replicas": "3"}
    assert clusters.checked().failures == [
        "target, copy: 1 replicas, and min.insync.replicas is 2: nothing could be written"
    ]
    clusters.target.pretended.topics["copy"] = object()
    report = clusters.checked()
    assert report.failures == [
        "target, topics to be made: 2 replicas, and min.insync.replicas is 3: nothing could be written"
    ]
    assert report.topics[0].copies == 2


@pytest.mark.parametrize(("takes", "warned"), [("100000000", False), ("900000", True)])
def test_records_larger_than_the_targets_brokers_take_are_told_beforehand(
    monkeypatch: pytest.MonkeyPatch, takes: str, warned: bool
) -> None:
    clusters = Clusters(monkeypatch)
    clusters.broker = {"socket.request.max.bytes": takes}
    assert ["t allows records of 900000 bytes" in text for text in clusters.checked().warnings] == (
        [True] if warned else []
    )


def test_brokers_that_do_not_tell_their_limits_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = Clusters(monkeypatch)
    clusters.broker = None
    report = clusters.checked()
    assert report.failures == [] and "can't be told without DESCRIBE_CONFIGS" in report.notes[0]


def test_groups_are_asked_for_only_where_that_makes_no_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def of_group(_: Any, group: str, deadline: Any) -> frozenset[str]:
        asked.append(group)
        return frozenset() if group == SETTINGS.deduplicator_group else frozenset({"READ"})

    monkeypatch.setattr(granted_rights, "of_group", of_group)
    for there in (False, True):
        monkeypatch.setattr(granted_rights, "has_groups", lambda *_, there=there: there)
        report = PlanReport("l")
        Requirements(SETTINGS, None, None, report).check_groups()  # type: ignore[arg-type]
        assert (len(asked), len(report.notes)) == ((3, 0) if there else (0, 1))
    assert report.failures == [
        f"target, group {SETTINGS.deduplicator_group}: READ not allowed; grant it"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cluster", "topic", "rights"),
    [
        (SOURCE, "<topics>", {"READ", "DESCRIBE_CONFIGS"}),
        (TARGET, "<link>.control", {"READ", "WRITE", "DESCRIBE_CONFIGS"}),
        (TARGET, "<link>.staging", {"READ", "WRITE", "DELETE", "DESCRIBE_CONFIGS"}),
        (TARGET, "<link>.positions", {"READ", "WRITE", "DESCRIBE_CONFIGS"}),
        (TARGET, "<link>.offset-mappings", {"READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS"}),
        (TARGET, "<destinations>", {"WRITE", "DESCRIBE_CONFIGS"}),
    ],
)
def test_a_plan_asks_for_the_rights_of_the_reference_that_no_setting_spares(
    cluster: str, topic: str, rights: set[str]
) -> None:
    """Those that only some links need, such as ALTER_CONFIGS on staging for very large records, are no
    failure."""
    assert needed_on(cluster, topic) == rights
