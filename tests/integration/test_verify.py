"""`verbatim verify` against real brokers whose destinations are written by hand: each fault is found where it
is, and nothing else.

Each test has topics and a link name of its own, so they do not disturb each other."""

from __future__ import annotations

import hashlib
import hmac
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from common.errors import SettingsError
from common.pipeline import loading
from common.pipeline.definition import definition
from tests.support.brokers import wait_until
from verbatim.main import cli
from verbatim.verify import link

Record = dict[str, Any]
BASE_MS = 1_760_000_000_000


def some_records(count: int, first: int = 0) -> list[Record]:
    """Records that are hard to copy: nulls, empties, repeated and null headers, binary bytes."""
    kinds: list[Record] = [
        {"key": b"k", "value": b"v"},
        {"key": None, "value": b""},
        {"key": b"", "value": None},
        {
            "key": b"\x00\xff",
            "value": b"\xfe" * 100,
            "headers": [("h", b"1"), ("h", b"2"), ("a", None), ("b", b"")],
        },
    ]
    return [{**kinds[n % 4], "timestamp": BASE_MS + n} for n in range(first, first + count)]


class World:
    """A topic on both clusters and a link's own topics, written by hand."""

    def __init__(
        self, source: Any, target: Any, topic_configs: dict[str, dict[str, str]] | None = None
    ) -> None:
        self.servers = {"source": source.bootstrap_servers, "destination": target.bootstrap_servers}
        name = uuid.uuid4().hex[:8]
        self.topic, self.link = f"t-{name}", f"l-{name}"
        self.admin = {side: AdminClient({"bootstrap.servers": at}) for side, at in self.servers.items()}
        self._plain = {
            side: Producer({"bootstrap.servers": at, "linger.ms": 5}) for side, at in self.servers.items()
        }
        configs = topic_configs or {}
        for side in self.servers:
            self.create(side, self.topic, configs.get(side))
        self.create("destination", f"{self.link}.offset-mappings")
        self.create("destination", f"{self.link}.control")

    def create(self, side: str, topic: str, config: dict[str, str] | None = None) -> None:
        # The records are old: without this, retention deletes them while the test runs.
        config = {"retention.ms": "-1", **(config or {})}
        for future in self.admin[side].create_topics([NewTopic(topic, 1, 1, config=config)]).values():
            future.result(30)

    def delete(self, side: str, topic: str) -> None:
        for future in self.admin[side].delete_topics([topic]).values():
            future.result(30)

    def write(self, side: str, records: list[Record], topic: str | None = None, **own: Any) -> list[int]:
        """Produces to partition 0; returns the offsets."""
        offsets: list[int] = []

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            offsets.append(message.offset())

        producer = Producer({"bootstrap.servers": self.servers[side], **own}) if own else self._plain[side]
        if own:
            producer.init_transactions(30)
            producer.begin_transaction()
        for record in records:
            producer.produce(topic or self.topic, partition=0, on_delivery=delivered, **record)
        assert producer.flush(30) == 0
        if own:
            producer.commit_transaction(30)
        return offsets

    def topic_id(self) -> str:
        described = self.admin["source"].describe_topics(TopicCollection([self.topic]))[self.topic].result(30)
        return str(described.topic_id)

    def map(
        self, runs: list[list[int]], start: int, end: int, topic_id: str | None = None, pipeline: int = 0
    ) -> None:
        cluster = self.admin["source"].describe_cluster().result(30).cluster_id
        value = {
            "v": 1, "cluster": cluster, "topic": self.topic, "topic_id": topic_id or self.topic_id(), "partition": 0,
            "start": start, "next": end, "destination_topic": self.topic, "destination_partition": 0, "staging_offset": 1,
            "records": sum(run[2] for run in runs), "duplicates": 0, "pipeline": pipeline, "runs": runs,
        }  # fmt: skip
        key = orjson.dumps({"topic": self.topic, "partition": 0})
        self.write(
            "destination", [{"key": key, "value": orjson.dumps(value)}], f"{self.link}.offset-mappings"
        )

    def trim(self, side: str, below: int) -> None:
        for future in self.admin[side].delete_records([TopicPartition(self.topic, 0, below)]).values():
            future.result(30)

    def command(self, *arguments: str, **environ: str) -> Result:
        settings = {
            "APPLICATION_NAME": self.link,
            "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": self.servers["source"],
            "KAFKA_CLUSTERS_SOURCE_TOPIC": self.topic,
            "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": self.servers["destination"],
        }
        return CliRunner().invoke(cli, ["verify", *arguments], env=settings | environ, catch_exceptions=False)

    def verify(self, *arguments: str, **environ: str) -> tuple[int, dict[str, Any]]:
        """Exit code and the report of the topic's one partition; `at` holds (count, source offset,
        destination offset)."""
        result = self.command("--output", "json", *arguments, **environ)
        (report,) = orjson.loads(result.stdout)["partitions"]
        report["at"] = {
            kind: (f["count"], f["source_offset"], f["destination_offset"])
            for kind, f in report["findings"].items()
        }
        return result.exit_code, report


@pytest.fixture
def world(source: Any, target: Any) -> World:
    return World(source, target)


def altered(position: int, **change: Any) -> Callable[[list[Record]], list[Record]]:
    return lambda records: [*records[:position], {**records[position], **change}, *records[position + 1 :]]


FAULTS: list[
    tuple[str, Callable[[list[Record]], list[Record]], dict[str, tuple[int, int | None, int | None]]]
] = [
    ("nothing", lambda r: r, {}),
    ("lost", lambda r: r[:40] + r[41:], {"lost": (1, 40, None)}),
    ("lost first", lambda r: r[1:], {"lost": (1, 0, None)}),
    ("duplicate", lambda r: r[:60] + r[50:60] + r[60:], {"duplicated": (10, 50, 60)}),
    ("reordered", lambda r: [*r[:30], r[31], r[30], *r[32:]], {"reordered": (1, 30, 31)}),
    ("value", altered(8, value=b"w"), {"altered": (1, 8, 8)}),
    ("key", altered(8, key=b"other"), {"altered": (1, 8, 8)}),
    ("null value made empty", altered(10, value=b""), {"altered": (1, 10, 10)}),
    ("empty value made null", altered(9, value=None), {"altered": (1, 9, 9)}),
    ("null key made empty", altered(9, key=b""), {"altered": (1, 9, 9)}),
    ("timestamp", altered(8, timestamp=BASE_MS + 9), {"altered": (1, 8, 8)}),
    (
        "header dropped",
        altered(11, headers=[("h", b"1"), ("h", b"2"), ("a", None)]),
        {"altered": (1, 11, 11)},
    ),
    (
        "headers swapped",
        altered(11, headers=[("h", b"2"), ("h", b"1"), ("a", None), ("b", b"")]),
        {"altered": (1, 11, 11)},
    ),
    (
        "null header emptied",
        altered(11, headers=[("h", b"1"), ("h", b"2"), ("a", b""), ("b", b"")]),
        {"altered": (1, 11, 11)},
    ),
    (
        "foreign",
        lambda r: [*r[:20], {"value": b"from elsewhere", "timestamp": BASE_MS}, *r[20:]],
        {"foreign": (1, None, 20)},
    ),
]


@pytest.mark.parametrize(
    ("fault", "expected"), [(f, e) for _, f, e in FAULTS], ids=[name for name, _, _ in FAULTS]
)
def test_each_fault_is_found_where_it_is(world: World, fault: Any, expected: Any) -> None:
    records = some_records(100)
    world.write("source", records)
    world.write("destination", fault(records))
    code, report = world.verify()
    assert report["at"] == expected
    assert code == (1 if expected else 0)
    assert any("no offset mappings" in note for note in report["notes"])


def test_transaction_markers_and_aborted_records_are_no_difference(world: World) -> None:
    records = some_records(30)
    for part in (records[:10], records[10:30]):
        world.write("source", part, **{"transactional.id": world.link})
    aborting = Producer({"bootstrap.servers": world.servers["destination"], "transactional.id": world.link})
    aborting.init_transactions(30)
    aborting.begin_transaction()
    aborting.produce(world.topic, b"aborted", partition=0)
    aborting.flush(30)
    aborting.abort_transaction(30)
    destination = world.write("destination", records, **{"transactional.id": world.link + "-2"})
    world.map([[0, destination[0], 10], [11, destination[10], 20]], 0, 31)
    code, report = world.verify("--complete")
    assert (code, report["at"], report["equal"], report["notes"]) == (0, {}, 30, [])


def test_timestamps_set_by_the_source_broker_are_compared_by_value(source: Any, target: Any) -> None:
    world = World(source, target, {"source": {"message.timestamp.type": "LogAppendTime"}})
    world.write("source", [{"value": b"%d" % n} for n in range(5)])
    from confluent_kafka import Consumer

    reader = Consumer(
        {"bootstrap.servers": world.servers["source"], "group.id": "x", "auto.offset.reset": "earliest"}
    )
    reader.assign([TopicPartition(world.topic, 0, 0)])
    read: list[Record] = []
    while len(read) < 5:
        read += [{"value": m.value(), "timestamp": m.timestamp()[1]} for m in reader.consume(5, 5)]
    reader.close()
    world.write("destination", read)
    assert world.verify("--complete")[1]["at"] == {}


def test_records_that_have_not_arrived_are_behind_and_fail_unless_that_is_allowed(world: World) -> None:
    records = some_records(50)
    world.write("source", records)
    world.write("destination", records[:45])
    code, report = world.verify()
    assert (code, report["at"], report["behind"], report["first_behind"]) == (1, {}, 5, 45)
    assert [world.verify(option)[0] for option in ("--complete", "--allow-behind")] == [1, 0]
    text = world.command().stdout.splitlines()
    assert text[0].startswith("FAILED") and text[-1].startswith("FAILED") and "5 behind" in text[-1]
    with pytest.raises(SettingsError, match="--allow-behind"):
        world.command("--complete", "--allow-behind")


def test_records_that_the_mappings_call_delivered_are_lost_even_at_the_end(world: World) -> None:
    records = some_records(50)
    world.write("source", records)
    world.write("destination", records[:45])
    world.map([[0, 0, 45]], 0, 48)
    code, report = world.verify()
    assert (code, report["at"], report["behind"]) == (1, {"lost": (3, 45, None)}, 2)


def test_a_missing_destination_topic_is_behind(world: World) -> None:
    world.write("source", some_records(5))
    code, report = world.verify(KAFKA_CLUSTERS_DESTINATION_TOPIC="nowhere." + world.topic)
    assert (code, report["behind"]) == (1, 5)
    assert any("no such topic" in note for note in report["notes"])


@pytest.mark.parametrize(
    ("runs", "next_offset", "expected"),
    [
        ([[0, 0, 100]], 100, {}),
        ([[0, 0, 40], [40, 41, 59]], 99, {"mapping": (59, 40, 41)}),
        ([[0, 0, 40], [41, 41, 59]], 100, {"mapping": (1, 40, None)}),
        ([[0, 0, 41], [40, 41, 59]], 100, {"mapping": (1, 40, 41)}),
        ([[0, 50, 50], [50, 0, 50]], 100, {"mapping": (1, 50, 0)}),
        ([[0, 0, 90], [90, 5000, 10]], 100, {"mapping": (10, 90, 5000)}),
    ],
    ids=["right", "shifted", "hole", "covered twice", "not monotone", "no such record"],
)
def test_wrong_mappings_are_found_though_the_records_are_right(
    world: World, runs: Any, next_offset: int, expected: Any
) -> None:
    records = some_records(100)
    world.write("source", records)
    world.write("destination", records)
    world.map(runs, 0, next_offset)
    code, report = world.verify()
    assert (report["at"], code) == (expected, 1 if expected else 0)


@pytest.mark.parametrize("mapped", [True, False])
def test_a_trimmed_source_is_compared_from_its_log_start(world: World, mapped: bool) -> None:
    records = some_records(100)
    world.write("source", records)
    world.write("destination", records[:70] + records[71:])
    if mapped:
        world.map([[0, 0, 70], [71, 70, 29]], 0, 100)
    world.trim("source", 30)
    code, report = world.verify()
    assert (code, report["at"]) == (1, {"lost": (1, 70, None)})
    assert any("source begins at offset 30" in note for note in report["notes"])


@pytest.mark.parametrize("mapped", [True, False])
def test_a_trimmed_destination_is_compared_from_its_log_start(world: World, mapped: bool) -> None:
    records = some_records(100)
    world.write("source", records)
    world.write("destination", records)
    if mapped:
        world.map([[0, 0, 100]], 0, 100)
    world.trim("destination", 30)
    code, report = world.verify("--allow-behind")
    assert (code, report["at"], report["equal"]) == (1, {"gone-at-target": (30, 0, None)}, 70)


@pytest.mark.parametrize("mapped", [True, False])
def test_what_retention_took_at_the_destination_and_the_source_still_has_is_found(
    world: World, mapped: bool
) -> None:
    """Also where nothing is left there; what was never delivered is behind."""
    world.write("source", some_records(60))
    world.write("destination", some_records(50))
    if mapped:
        world.map([[0, 0, 50]], 0, 50)
    config = ConfigResource(
        ConfigResource.Type.TOPIC,
        world.topic,
        incremental_configs=[
            ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    world.admin["destination"].incremental_alter_configs([config])[config].result(30)
    at = TopicPartition(world.topic, 0)

    def emptied() -> bool:
        begin = world.admin["destination"].list_offsets({at: OffsetSpec.earliest()})[at].result(30)
        return int(begin.offset) == 50

    wait_until(emptied, "retention")
    code, report = world.verify()
    count = 50 if mapped else 60
    assert (code, report["at"], report["behind"]) == (1, {"gone-at-target": (count, 0, None)}, 60 - count)
    assert report["findings"]["gone-at-target"]["detail"].startswith("the destination's log begins behind it")


def test_a_partition_that_stands_still_is_named_with_its_reason_until_it_goes_on(world: World) -> None:
    world.write("source", some_records(5))
    world.write("destination", some_records(3))
    about = {"topic": world.topic, "topic_id": world.topic_id(), "partition": 0, "link": world.link}
    halted = {**about, "kind": "halted", "application": "replicator", "reason": "source-truncated", "next": 3}

    def say(record: dict[str, Any]) -> None:
        world.write("destination", [{"value": orjson.dumps(record)}], f"{world.link}.control")

    say(halted | {"detail": "the log was cut"})
    code, report = world.verify("--allow-behind")
    assert (code, report["at"], report["behind"]) == (1, {"halted": (1, 3, None)}, 2)
    assert report["findings"]["halted"]["detail"] == "source-truncated: the log was cut"
    assert "halted: 1, first at source offset 3 (source-truncated: the log was cut)" in world.command().stdout
    say({**about, "kind": "resumed", "application": "replicator"})
    assert world.verify("--allow-behind")[0] == 0


def test_records_below_the_origin_are_not_lost(world: World) -> None:
    records = some_records(100)
    world.write("source", records)
    world.write("destination", records[60:])
    origin = {
        "kind": "origin",
        "topic": world.topic,
        "topic_id": world.topic_id(),
        "partition": 0,
        "offset": 60,
    }
    world.write("destination", [{"value": orjson.dumps(origin)}], f"{world.link}.control")
    code, report = world.verify("--complete")
    assert (code, report["at"], report["equal"]) == (0, {}, 40)
    assert any("began at source offset 60" in note for note in report["notes"])


def test_of_a_topic_made_again_the_present_records_are_compared(world: World) -> None:
    old = world.topic_id()
    world.write("destination", some_records(40))
    world.map([[0, 0, 40]], 0, 40, topic_id=old)
    world.delete("source", world.topic)
    for _ in range(50):
        if world.topic not in world.admin["source"].list_topics(timeout=10).topics:
            break
    world.create("source", world.topic)
    records = some_records(30, first=1000)
    world.write("source", records)
    world.write("destination", records)
    world.map([[0, 40, 30]], 0, 30)
    assert old != world.topic_id()
    code, report = world.verify("--complete")
    assert (code, report["at"], report["equal"]) == (0, {}, 30)
    assert any("made again" in note for note in report["notes"])


def test_a_compacted_topic_is_compared_by_what_survives(source: Any, target: Any) -> None:
    world = World(
        source,
        target,
        {"source": {"cleanup.policy": "compact"}, "destination": {"cleanup.policy": "compact"}},
    )
    records = [{"key": b"%d" % (n % 5), "value": b"%d" % n, "timestamp": BASE_MS + n} for n in range(50)]
    world.write("source", records)
    # As if the cleaner had been at the destination already.
    world.write("destination", records[45:])
    world.map([[45, 0, 5]], 45, 50)
    code, report = world.verify("--complete")
    assert (code, report["at"]) == (0, {})
    assert any("compacted" in note for note in report["notes"])


def test_a_compacted_topic_whose_latest_record_is_another_is_found(source: Any, target: Any) -> None:
    world = World(
        source,
        target,
        {"source": {"cleanup.policy": "compact"}, "destination": {"cleanup.policy": "compact"}},
    )
    records = [{"key": b"%d" % (n % 5), "value": b"%d" % n, "timestamp": BASE_MS + n} for n in range(50)]
    world.write("source", records)
    world.write("destination", [*records[:47], {**records[47], "value": b"x"}, *records[48:]])
    code, report = world.verify()
    assert (code, report["at"]) == (1, {"altered": (1, 47, 47)})


def test_a_sample_reads_less_and_says_what_it_does_not_tell(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A hundred windows: which ones depends on the topic's name too, another one each time, but some 20 they
    # are.
    monkeypatch.setattr("verbatim.verify.common_part.SAMPLE_OFFSETS", 10)
    records = some_records(1000)
    world.write("source", records)
    world.write("destination", records)
    world.map([[0, 0, 1000]], 0, 1000)
    result = world.command("--output", "json", "--sample", "0.2", "--seed", "1")
    whole = orjson.loads(result.stdout)
    (report,) = whole["partitions"]
    assert result.exit_code == 0
    assert 100 <= report["source_records"] <= 500
    assert report["equal"] == report["source_records"] == report["destination_records"]
    assert any("not told" in note for note in whole["notes"])


def test_text_names_the_first_place_and_the_verdict(world: World) -> None:
    records = some_records(20)
    world.write("source", records)
    world.write("destination", altered(7, value=b"x")(records))
    result = world.command()
    assert result.exit_code == 1
    assert f"FAILED {world.topic}/0" in result.stdout
    assert "altered: 1, first at source offset 7, destination offset 7 (value differs)" in result.stdout


def test_a_topic_that_is_not_selected_is_a_bad_setting(world: World) -> None:
    runner = CliRunner()
    settings = {
        "APPLICATION_NAME": world.link,
        "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": world.servers["source"],
        "KAFKA_CLUSTERS_SOURCE_TOPIC": world.topic,
        "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": world.servers["destination"],
    }
    result = runner.invoke(cli, ["verify", "--topic", "other"], env=settings)
    assert result.exit_code == 2 or (
        isinstance(result.exception, SettingsError) and result.exception.exit_code == 2
    )


PII = "0123456789abcdef"
PIPELINES = [
    """
    version: 1
    keys: {k: env:PII}
    flows: [{topics: ['t-.*'], value: json, stages: [
      {filter: {drop: {value.test: true}}},
      {mask: {key: k, fields: {email: hmac}}}]}]
    """,
    "{version: 1, flows: [{topics: ['t-.*'], stages: [{headers: {set: {from: '{topic}@{offset}'}}}]}]}",
]


def test_a_link_with_a_pipeline_is_held_against_what_each_version_makes(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = hmac.new(PII.encode(), b"a@b.org", "sha256").hexdigest().encode()

    def say(n: int, text: str) -> None:
        made = loading.parse(text, tmp_path / "pipeline.yaml")
        told = definition(made, {"k": PII.encode()}).decode()
        sha256 = hashlib.sha256(told.encode()).hexdigest()
        said = {"link": world.link, "kind": "pipeline", "n": n, "definition": told, "sha256": sha256}
        world.write("destination", [{"value": orjson.dumps(said)}], f"{world.link}.control")

    for n, text in enumerate(PIPELINES, 1):
        say(n, text)
    values = [b'{"email" : "a@b.org", "n": 1.10}', b'{"test": true}', b'{"email": null}'] * 2
    records: list[Record] = [{"value": value, "timestamp": BASE_MS + n} for n, value in enumerate(values)]
    world.write("source", [*records[:1], *records])
    copies = [
        records[0],
        {**records[0], "value": b'{"email" : "' + hidden + b'", "n": 1.10}'},
        records[2],
        *(
            {**record, "headers": [("from", b"%s@%d" % (world.topic.encode(), n))]}
            for n, record in enumerate(records[3:], 4)
        ),
    ]
    (tmp_path / "pipeline.yaml").write_text(PIPELINES[0])
    known = {"PIPELINE": str(tmp_path / "pipeline.yaml"), "PII": PII}

    world.write("destination", copies)
    world.map([[0, 0, 1]], 0, 1)
    world.map([[1, 1, 1], [3, 2, 1]], 1, 4, pipeline=1)
    world.map([[4, 3, 3]], 4, 7, pipeline=2)
    code, report = world.verify(**known)
    assert (code, report["at"], report["notes"]) == (0, {}, [])
    counts = ("source_records", "destination_records", "equal", "transformed", "filtered")
    assert [report[name] for name in counts] == [7, 6, 6, 4, 1]
    lines = world.command(**known).stdout.splitlines()
    assert lines[0].endswith("6 equal, 4 transformed, 1 filtered")
    code, report = world.verify()
    assert (code, report["at"]) == (0, {}) and "2 records were compared without their value" in report[
        "notes"
    ][0]

    # What was to be filtered is delivered, and a copy is there twice.
    world.write("destination", [records[1], copies[5]])
    code, report = world.verify(**known)
    assert (code, report["at"]) == (1, {"foreign": (1, None, 6), "duplicated": (1, 6, 7)})
    assert report["findings"]["duplicated"]["pipeline"] == 2
    assert "destination offset 7, pipeline version 2" in world.command(**known).stdout

    def check_all(*given: Any) -> Any:
        found = real(*given)
        say(3, PIPELINES[0])
        return found

    real = link._check_all
    monkeypatch.setattr(link, "_check_all", check_all)
    assert "version 3 of the pipeline was written meanwhile" in world.command(**known).stdout
