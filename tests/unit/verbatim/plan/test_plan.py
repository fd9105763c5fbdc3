"""A plan changes nothing, whatever the code behind it asks for, and adds up what copying costs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from common.kafka.client import topics
from common.ports import Deadline
from verbatim.plan import plan, sampling
from verbatim.plan.dry_run_clients import PretendingAdmin, now, refused
from verbatim.plan.granted_rights import lacking
from verbatim.plan.report import Change, PlanReport, TopicPlan, as_json, as_text, cost, size

READING = {
    "cluster_id",
    "describe_acls",
    "describe_cluster",
    "describe_configs",
    "describe_consumer_groups",
    "describe_topics",
    "describe_user_scram_credentials",
    "list_consumer_group_offsets",
    "list_consumer_groups",
    "list_groups",
    "list_offsets",
    "list_topics",
    "poll",
    "set_sasl_credentials",
}
WRITING = {name for name in dir(AdminClient) if not name.startswith("_")} - READING
VALIDATED = {"create_topics", "create_partitions", "incremental_alter_configs"}
CALL_S = 5.0
ON_TOPIC: Any = ConfigSource.DYNAMIC_TOPIC_CONFIG.value


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What reaches the brokers through methods that write: (method, whether only to be validated)."""
    calls: list[tuple[str, bool]] = []

    def method(name: str) -> Callable[..., Any]:
        def call(_: AdminClient, asked: list[Any], **kwargs: Any) -> dict[Any, Any]:
            calls.append((name, kwargs.get("validate_only") is True))
            return {(one if name == "incremental_alter_configs" else one.topic): now(None) for one in asked}

        return call

    for name in VALIDATED:
        monkeypatch.setattr(AdminClient, name, method(name))
    return calls


@pytest.fixture
def admin() -> PretendingAdmin:
    return PretendingAdmin({"bootstrap.servers": "127.0.0.1:1"})


def test_every_method_that_writes_is_kept_from_the_cluster(admin: PretendingAdmin) -> None:
    """Also one that a newer client library brings."""
    assert set(vars(PretendingAdmin)) >= WRITING, "a method that may write, and is not overridden"
    for name in WRITING - VALIDATED:
        with pytest.raises(AssertionError, match=f"{name} would change the cluster"):
            getattr(admin, name)([])


def test_a_topic_that_would_be_made_is_told_as_if_it_were_there(
    admin: PretendingAdmin, sent: list[tuple[str, bool]]
) -> None:
    deadline = Deadline(CALL_S)
    assert topics.create(admin, "t", 3, None, {"retention.ms": "5"}, deadline)
    topics.add_partitions(admin, "t", 4, deadline)
    topics.alter(admin, "t", {"max.message.bytes": "9"}, deadline)
    assert sent == [("create_topics", True)]
    assert topics.describe(admin, ["t"], deadline)["t"].partitions == 4
    assert topics.configs(admin, ["t"], deadline) == {"t": {"retention.ms": "5", "max.message.bytes": "9"}}
    assert topics.offsets(admin, {("t", 3): OffsetSpec.latest()}, deadline) == {("t", 3): 0}
    (told,) = admin.list_offsets({TopicPartition("t", 0): OffsetSpec.earliest()}).values()
    assert told.result().offset == 0


def test_changes_of_topics_that_are_there_are_validated_and_remembered(
    admin: PretendingAdmin, sent: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    default = ConfigEntry("a", "0", source=ConfigSource.DEFAULT_CONFIG)
    a = ConfigEntry("a", "1", source=ON_TOPIC, synonyms={"a": ConfigEntry("a", "1", ON_TOPIC), "d": default})

    def there(_: AdminClient, resources: list[ConfigResource], **kwargs: Any) -> dict[ConfigResource, Any]:
        return {r: now({"a": a, "b": ConfigEntry("b", "2")}) for r in resources}

    monkeypatch.setattr(AdminClient, "describe_configs", there)
    admin.create_partitions([NewPartitions("t", 4)])["t"].result()
    topics.alter(admin, "t", {"b": "3"}, Deadline(CALL_S))
    assert sent == [("create_partitions", True), ("incremental_alter_configs", True)]
    assert admin.pretended.partitions == {"t": 4} and admin.pretended.config == {"t": {"b": "3"}}
    assert topics.configs(admin, ["t"], Deadline(CALL_S)) == {"t": {"a": "1", "b": "3"}}
    # Unset, so that what stands behind it counts.
    unset = ConfigEntry("a", None, incremental_operation=AlterConfigOpType.DELETE)
    resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[unset])
    admin.incremental_alter_configs([resource])[resource].result()
    assert topics.configs(admin, ["t"], Deadline(CALL_S)) == {"t": {"a": "0", "b": "3"}}
    assert admin.pretended.config == {"t": {"b": "3", "a": None}}


def test_what_the_brokers_refuse_is_not_taken_for_done(
    admin: PretendingAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no(_: AdminClient, asked: list[NewTopic], **kwargs: Any) -> dict[str, Any]:
        return {new.topic: refused(ValueError("no")) for new in asked}

    monkeypatch.setattr(AdminClient, "create_topics", no)
    with pytest.raises(ValueError, match="no"):
        admin.create_topics([NewTopic("t", 1)])["t"].result()
    assert not admin.pretended.topics


def test_only_what_can_be_pretended_is_done_to_a_configuration(admin: PretendingAdmin) -> None:
    entry = ConfigEntry("a", "1", incremental_operation=AlterConfigOpType.APPEND)
    with pytest.raises(AssertionError, match="anything but SET"):
        admin.incremental_alter_configs(
            [ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[entry])]
        )


def test_other_topics_are_asked_of_the_brokers(
    admin: PretendingAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def real(_: AdminClient, collection: TopicCollection, **kwargs: Any) -> dict[str, Any]:
        asked.extend(collection.topic_names)
        return {name: now(SimpleNamespace(topic_id=None, partitions=[])) for name in collection.topic_names}

    monkeypatch.setattr(AdminClient, "describe_topics", real)
    admin.pretended.topics["made"] = NewTopic("made", 2)
    found = admin.describe_topics(TopicCollection(["made", "real"]))
    assert asked == ["real"] and len(found["made"].result().partitions) == 2


def a_topic(**more: Any) -> TopicPlan:
    fields: dict[str, Any] = {
        "partitions": 1,
        "records": 1000,
        "to_copy": 100,
        "record_bytes": 10.0,
        "rate": 2.0,
        "copies": 3,
    }
    return TopicPlan("t", "id", destination="t", action="there", **{**fields, **more})


def test_copying_costs_four_crossings_of_the_network_and_the_disk_of_each_replica() -> None:
    found = cost([a_topic(), a_topic(to_copy=0, rate=0.0), a_topic(refused="no")])
    assert (found.records, found.copy_bytes, found.disk_bytes) == (100, 1000, 3000)
    assert (found.from_source_bytes_a_second, found.target_bytes_a_second) == (20, 60)
    assert found.disk_bytes_a_day == 20 * 3 * 86400


def test_a_cost_that_is_not_known_is_not_taken_for_none() -> None:
    unknown = a_topic(record_bytes=None)
    assert cost([unknown]).copy_bytes is None and cost([unknown]).unknown == ["t"]
    both = cost([unknown, a_topic()])
    assert both.copy_bytes == 1000 and both.unknown == ["t"] and both.records == 200
    assert cost([a_topic(record_bytes=None, records=0, to_copy=0)]).copy_bytes == 0


def test_a_report_that_found_something_says_so_last() -> None:
    report = PlanReport("orders", "s", "t", topics=[a_topic()], changes=[Change("partitions", "t", 4)])
    assert as_text(report)[-1].startswith("ok: 1 topics") and as_json(report)["ok"]
    report.failures.append("topic t: can't be")
    assert as_text(report)[-1].startswith("FAILED: 1 thing ") and "FAILS: topic t: can't be" in as_text(
        report
    )
    assert not as_json(report)["ok"] and as_json(report)["cost"]["records"] == 100
    alone, met = (
        as_text(PlanReport("l", topics=[topic]))[1] for topic in (a_topic(), a_topic(meets=["a", "b"]))
    )
    assert "meets" not in alone and met.startswith("topic t -> t where it meets a, b: ")


@pytest.mark.parametrize(("count", "text"), [(None, "unknown"), (0, "0 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")])  # fmt: skip
def test_bytes_are_told_as_people_read_them(count: float | None, text: str) -> None:
    assert size(count) == text


def test_rights_are_missing_only_where_the_brokers_say_which_there_are() -> None:
    assert lacking(frozenset({"READ", "WRITE"}), frozenset({"READ"})) == ["WRITE"]
    assert lacking(frozenset({"READ"}), None) == []


def a_look(**fields: Any) -> Any:
    """The part of a look at the source that needs no cluster."""
    look = plan._Look.__new__(plan._Look)
    found = {"report": PlanReport("l"), "starts": {("t", 0): 5}, "read": {("t", 0)}, "leaderless": set()}
    for name, value in {**found, "source": None, "seconds": 0.0, **fields}.items():
        setattr(look, name, value)
    return look


@pytest.mark.parametrize(
    ("bounds", "due", "warning"),
    [((0, 9), (5, 9), None), ((7, 9), (7, 9), "source-lost"), ((0, 3), (3, 3), "source-truncated")],
)
def test_what_is_to_be_copied_is_what_the_source_still_has(
    bounds: tuple[int, int], due: tuple[int, int], warning: str | None
) -> None:
    look = a_look()
    assert look._due(("t", 0), bounds) == due
    assert (look.report.warnings == []) if warning is None else (warning in look.report.warnings[0])


def test_a_partition_that_nobody_leads_is_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def rates(_: Any, partitions: list[Any], *rest: Any) -> Any:
        asked.extend(partitions)
        return dict.fromkeys(partitions, (0, 9)), dict.fromkeys(partitions, 1.0)

    monkeypatch.setattr(sampling, "rates", rates)
    look = a_look(starts={("t", 0): 5, ("t", 1): 5}, leaderless={("t", 1)}, _sizes=lambda _: {})
    look.report.topics.append(a_topic(partitions=2))
    look._records()
    assert asked == [("t", 0)]
    (topic,) = look.report.topics
    assert (topic.records, topic.to_copy, topic.rate) == (9, 4, 1.0)
    assert look.report.warnings == ["t-1 has no leader at the source; it is copied once it has one"]
