"""The stage `schema-ids` on real brokers, with registries at both ends: what the client library's serializers
have written at the source its deserializers read at the target, and nothing goes through whose schema is not
there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.common.serde import SchemaId
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from common.link.halt_reasons import HaltReason
from schemas import requests
from schemas.look import map_of
from schemas.service import Service
from tests.conftest import Kafka, Names
from tests.integration.test_batches import batches_of
from tests.integration.test_pipelines import dies_in_transactions, verified
from tests.support.apicurio import apicurios
from tests.support.brokers import Record, Seen, create_topic, produce, read_all
from tests.support.harness import Link, Running, eventually
from tests.support.registry import Refused, StandIn, stand_in
from tests.support.schemas import avro, client, clients_closed, record
from verbatim.commands.accept_loss import accept_loss
from verbatim.main import cli

__all__ = ["clients_closed"]


def framed(schema_id: int, payload: bytes = b"payload") -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def id_of(item: bytes | None) -> int:
    assert item is not None and item[:1] == b"\0"
    return int.from_bytes(item[1:5], "big")


@dataclass
class World:
    """A link whose records have schemas, in registries at both ends."""

    link: Link
    source_url: str
    target_url: str
    file: Path
    topics: list[str]

    def configure(
        self, ids: str = "map", interval: str = "200ms", wire_key: bool = True, **stage: Any
    ) -> None:
        wire = {"value": "confluent"} | ({"key": "confluent"} if wire_key else {})
        said = {
            "version": 1,
            "registries": {"source": {"url": self.source_url}, "target": {"url": self.target_url}},
            "schemas": {"ids": ids, "interval": interval},
            "flows": [{"topics": [".*"], "wire": wire, "stages": [{"schema-ids": stage}]}],
        }
        self.file.write_text(json.dumps(said))

    def once(self) -> None:
        assert Service(self.link.settings, True)._run() == 0

    @contextmanager
    def schemas(self) -> Iterator[Running]:
        """The application, until the block ends."""
        running = Running(Service(self.link.settings, False))
        try:
            yield running
        finally:
            running.stop()

    def there(self, topic: str, partition: int = 0) -> list[Seen]:
        return read_all(self.link.target, topic)[partition]


def world_of(
    source: Kafka, target: Kafka, names: Names, file: Path, urls: tuple[str, str], *topics: str
) -> World:
    mine = [names.topic(topic) for topic in topics]
    link = Link(
        source.bootstrap_servers, target.bootstrap_servers, names.link, "|".join(mine), PIPELINE=str(file)
    )
    for topic in mine:
        create_topic(link.source, topic, 1)
    found = World(link, *urls, file, mine)
    found.configure()
    # `schemas` waits for nobody who is to make the link.
    assert link.replicate() == 0
    return found


@pytest.fixture
def standing(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> Iterator[tuple[World, StandIn, StandIn]]:
    """Of two topics, between stand-ins of registries."""
    with stand_in() as mine, stand_in() as theirs:
        urls = mine.url, theirs.url
        yield (
            world_of(source, target, names, tmp_path / "pipeline.yaml", urls, "orders", "others"),
            mine,
            theirs,
        )


@pytest.fixture(params=[pytest.param("stand-in", marks=pytest.mark.whole), "apicurio"])
def urls(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    with ExitStack() as stack:
        made: list[Any] = (
            [stack.enter_context(stand_in()) for _ in range(2)]
            if request.param == "stand-in"
            else apicurios(stack, 2)
        )
        yield made[0].url, made[1].url


def protobuf(package: str) -> Any:
    """A class of messages that have another file's in them."""
    pool = descriptor_pool.DescriptorPool()
    base = descriptor_pb2.FileDescriptorProto(name=f"{package}-base.proto", package=package, syntax="proto3")
    base.message_type.add(name="Base").field.add(name="a", number=1, type=3, label=1)
    uses = descriptor_pb2.FileDescriptorProto(
        name=f"{package}-uses.proto", package=package, syntax="proto3", dependency=[base.name]
    )
    # The second message of its file: so there are indexes behind the id.
    uses.message_type.add(name="Other").field.add(name="a", number=1, type=3, label=1)
    uses.message_type.add(name="Uses").field.add(
        name="b", number=1, type=11, label=1, type_name=f".{package}.Base"
    )
    pool.Add(base)
    pool.Add(uses)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Uses"))


@dataclass
class Kind:
    """How records of a topic are written at the source and read at the target. `made`: a value of a
    number."""

    made: Callable[[int], Any]
    write: Callable[[Any, SerializationContext], bytes | None]
    read: Callable[[bytes, SerializationContext], Any]


def kinds(topics: list[str], at: SchemaRegistryClient, to: SchemaRegistryClient) -> dict[str, Kind]:
    """One for each topic: Avro, JSON, Protobuf, whose schemas refer to others."""
    avros, jsons, protos = topics
    at.register_schema(f"{avros}-base", Schema(record("Base", "a"), "AVRO"))
    uses = {"type": "record", "name": "Uses", "fields": [{"name": "b", "type": "Base"}]}
    of_avro = Schema(json.dumps(uses), "AVRO", [SchemaReference("Base", f"{avros}-base", 1)])
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    at.register_schema(f"{jsons}-base", Schema(json.dumps({**draft, "title": "B"}), "JSON"))
    told = {**draft, "title": "J", "properties": {"n": {"type": "integer"}, "b": {"$ref": "b.json"}}}
    of_json = Schema(json.dumps(told), "JSON", [SchemaReference("b.json", f"{jsons}-base", 1)])
    package = "p" + protos.rpartition(".")[2].replace("-", "_")
    message = protobuf(package)
    base = message.DESCRIPTOR.fields_by_name["b"].message_type._concrete_class
    plain = {"use.deprecated.format": False}
    return {
        avros: Kind(lambda n: {"b": {"a": n}}, AvroSerializer(at, of_avro), AvroDeserializer(to)),
        jsons: Kind(
            lambda n: {"n": n, "b": {"x": n}},
            JSONSerializer(of_json, at),
            JSONDeserializer(None, schema_registry_client=to),
        ),
        protos: Kind(
            lambda n: message(b=base(a=n)),
            ProtobufSerializer(message, at, plain),
            ProtobufDeserializer(message, plain, to),
        ),
    }


def test_what_serializers_have_written_their_deserializers_read_at_the_target(
    source: Kafka,
    target: Kafka,
    names: Names,
    tmp_path: Path,
    urls: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Promise: Avro, JSON and Protobuf with references, keys too, are at the target what they were at the
    source, by the target's registry, whose ids are others; tombstones and null keys arrive; owners of staging
    that die in their transactions change nothing of it; `verify` finds nothing."""
    world = world_of(source, target, names, tmp_path / "pipeline.yaml", urls, "avro", "json", "proto")
    link = world.link
    for other in range(5):
        client(urls[1]).register(f"{names.link}-{other}", avro(f"Other{other}", "x"))
    at, to = (SchemaRegistryClient({"url": url}) for url in urls)
    of = kinds(world.topics, at, to)
    write_key = AvroSerializer(at, Schema('{"type": "string"}', "AVRO"))
    read_key = AvroDeserializer(to)
    dies_in_transactions(monkeypatch)

    def more(first: int, count: int) -> None:
        for topic, kind in of.items():
            records = [
                Record(
                    kind.write(kind.made(n), SerializationContext(topic, MessageField.VALUE)),
                    write_key(f"k{n}", SerializationContext(topic, MessageField.KEY)) if n % 2 else None,
                )
                for n in range(first, first + count)
            ]
            produce(link.source, topic, [*records, Record(None, records[1].key)])

    more(0, 20)
    with world.schemas(), link.running():
        eventually(lambda: all(link.arrived(topic) == [21] for topic in of), "the first records", 120)
        more(20, 20)
        eventually(lambda: all(link.arrived(topic) == [42] for topic in of), "the others", 60)
        eventually(lambda: not link.halted(), "no halt")
    for topic, kind in of.items():
        here, there = read_all(link.source, topic)[0], world.there(topic)
        numbers = [*range(20), None, *range(20, 40), None]
        assert len(here) == len(there) == len(numbers)
        for n, mine, theirs in zip(numbers, here, there, strict=True):
            context = SerializationContext(topic, MessageField.VALUE)
            if n is None:
                assert theirs.value is None
            else:
                assert theirs.value is not None and kind.read(theirs.value, context) == kind.made(n)
                assert mine.value is not None and id_of(mine.value) != id_of(theirs.value)
                assert mine.value[5:] == theirs.value[5:], "what is behind the id is as it was"
            if mine.key is None:
                assert theirs.key is None
            else:
                key = read_key(theirs.key, SerializationContext(topic, MessageField.KEY))
                assert key == f"k{n if n is not None else 1 if mine.offset < 21 else 21}"
    code, reports = verified(link)
    assert code == 0, reports
    assert sum(report["transformed"] for report in reports) >= 120


def test_a_registry_that_is_out_stops_new_schemas_alone(
    standing: tuple[World, StandIn, StandIn],
) -> None:
    """Promise: with the source's registry gone known ids go on, also after a restart of the applications; a
    new one waits, with what is behind it, is told, and nothing of it arrives; other partitions go on. As soon
    as the schema is at the target, it goes on by itself, with the right id, and the halt is taken back."""
    world, mine, theirs = standing
    orders, others = world.topics
    link = world.link
    client(theirs.url).register("taken", avro("Taken", "x"))
    first = client(mine.url).register(f"{orders}-value", avro("One", "a")).id
    for topic in (orders, others):
        produce(link.source, topic, [Record(framed(first, b"%d" % n)) for n in range(10)])
    away = False

    def before(method: str, path: str) -> None:
        if away:
            raise Refused(503, 50301, "away")

    with world.schemas():
        with link.running():
            eventually(lambda: link.arrived(orders) == link.arrived(others) == [10], "the first", 60)
        mine.before, away = before, True
        # As somebody else's registration, of which `schemas` can't hear any more.
        new = requests.register(f"{orders}-value", avro("One", "a", optional=("b",)))
        second = mine.answer("POST", new.path, {}, dict(new.body or {}))["id"]
        # Who is slow to write the first one down has had records wait for it.
        earlier = len(said(link))
        with link.running() as (replicator, _):
            produce(
                link.source,
                orders,
                [Record(framed(first, b"10")), Record(framed(second)), Record(framed(first))],
            )
            produce(link.source, others, [Record(framed(first, b"%d" % n)) for n in range(10, 20)])
            eventually(lambda: link.halted() == {(orders, 0): HaltReason.SCHEMA_UNKNOWN}, "the halt", 60)
            eventually(
                lambda: (link.arrived(orders), link.arrived(others)) == ([11], [20]), "what is known", 60
            )
            (halt,) = link.control().halts.values()
            assert (halt.next, halt.available) == (11, 12)
            assert halt.detail == (
                f"{orders}-0: record 11: stage 1 (schema-ids) waits: schema {second} of the value has no id at the"
                " target yet"
            )
            eventually(lambda: replicator.application.health.halted, "what the page shows")
            time.sleep(2)
            assert [r.value for r in world.there(orders)][10:] == [
                framed(id_of(world.there(orders)[0].value), b"10")
            ]
            away = False
            eventually(lambda: link.arrived(orders) == [13], "it to go on by itself", 60)
            eventually(lambda: not link.halted() and not replicator.application.health.halted, "no halt")
            assert sum(record["kind"] == "halted" for record in said(link)[earlier:]) == 1
    registry = client(theirs.url)
    of = {id_of(r.value): registry.by_id(".", id_of(r.value)) for r in world.there(orders)}
    assert [schema and schema.text for schema in of.values()] == [
        avro("One", "a").text,
        avro("One", "a", optional=("b",)).text,
    ]
    code, reports = verified(link)
    assert code == 0, reports


def test_a_schema_that_a_record_waits_for_is_looked_for_at_once(
    standing: tuple[World, StandIn, StandIn],
) -> None:
    """Promise: however long the interval of `schemas` is, a new schema takes seconds."""
    world, mine, _ = standing
    orders, _ = world.topics
    world.configure(interval="1h")
    with world.link.running(), world.schemas() as schemas:
        eventually(lambda: schemas.application.health.work.counts["rounds"] == 1, "a first round", 60)
        for n in range(2):
            made = client(mine.url).register(f"{orders}-value", avro("One", "a", optional=("b",) * n))
            produce(world.link.source, orders, [Record(framed(made.id))])
            eventually(lambda n=n: world.link.arrived(orders) == [n + 1], "the record", 90)  # type: ignore[misc]


def test_a_bounded_run_says_what_it_could_not_copy_and_an_operator_may_give_a_record_up(
    standing: tuple[World, StandIn, StandIn],
) -> None:
    """Promise: without `schemas`, and without its topic, a bounded run ends with 3 and names the schema; what
    was no schema's id is given up alone; what has no id in front halts as a stage that fails does, and passes
    where that is asked for; `verify` finds what got through without an id."""
    world, mine, _ = standing
    orders, others = world.topics
    link = world.link
    first = client(mine.url).register(f"{orders}-value", avro("One", "a")).id
    good = Record(framed(first))
    produce(link.source, orders, [good, Record(framed(77_777)), Record(framed(first), b"bad"), good])
    produce(link.source, others, [Record(b"plain")])
    assert link.copy() == (3, 0)
    details = sorted(halt.detail for halt in link.control().halts.values())
    assert "stage 1 (schema-ids) fails: the value has no schema's id in front of it" in details[1]
    assert f"{link.settings.schemas_topic} can't be read: it is not there: start `schemas`" in details[0]
    world.once()
    assert link.copy() == (3, 0)
    assert link.halted() == {
        (orders, 0): HaltReason.SCHEMA_UNKNOWN,
        (others, 0): HaltReason.STAGE_FAILED,
    }
    assert [link.arrived(topic) for topic in world.topics] == [[1], [0]]
    done = CliRunner().invoke(accept_loss, [orders, "0", "--yes"], env=link.variables)
    assert "the loss of [1, 2) is accepted" in done.output, done
    assert link.copy() == (3, 0)
    assert set(link.halted().values()) == {HaltReason.STAGE_FAILED}
    world.configure(onUnframed="keep")
    assert link.copy() == (0, 0)
    value = framed(map_of(link.settings).target(".", first) or 0)
    assert [(r.key, r.value) for r in world.there(orders)] == [(None, value), (b"bad", value), (None, value)]
    assert [r.value for r in world.there(others)] == [b"plain"]
    assert verified(link)[0] == 0
    # As a lane would have let it through that takes an id which it does not know for one that stays.
    for at in (link.source, link.target):
        produce(at, orders, [Record(framed(99_999))])
    code, reports = verified(link)
    (report,) = [report for report in reports if report["topic"] == orders]
    assert code == 1 and report["findings"], report


def test_with_kept_ids_batches_stay_whole_and_none_comes_before_its_schema(
    standing: tuple[World, StandIn, StandIn],
) -> None:
    """Promise: each large batch is at the target as its producer made it, to the byte; one with a schema that
    is not there yet waits, and then stays whole, too."""
    world, mine, theirs = standing
    orders, _ = world.topics
    link = world.link
    world.configure(ids="keep", wire_key=False)
    ids = [client(mine.url).register(f"{orders}-value", avro("One", "a")).id]
    ids.append(client(mine.url).register(f"{orders}-value", avro("One", "a", optional=("b",))).id)
    config = {"batch.size": 300_000, "linger.ms": 500, "compression.type": "lz4"}
    big, some = Producer({"bootstrap.servers": link.source, **config}), Random(1)

    def send(schema_id: int) -> None:
        for i in range(3000):
            key = b"k%d" % i if i % 2 else None
            big.produce(orders, framed(schema_id, some.randbytes(200)), key, 0)
        big.flush(20)

    send(ids[0])
    with link.running():
        eventually(lambda: link.halted() == {(orders, 0): HaltReason.SCHEMA_UNKNOWN}, "the halt", 60)
        with world.schemas():
            eventually(lambda: link.arrived(orders) == [3000], "all", 60)
            send(ids[1])
            eventually(lambda: link.arrived(orders) == [6000], "all of the second", 60)
    there, here = (batches_of(at, orders, 6000) for at in (link.source, link.target))
    wholes = [batch for header, batch in there if header.size >= 64 << 10]
    assert len(wholes) > 1 and set(wholes) <= {batch for _, batch in here}
    assert {v.id for of in theirs.subjects.values() for v in of} == set(ids)
    code, reports = verified(link)
    assert code == 0 and sum(report["transformed"] for report in reports) == 0


def test_a_schema_that_is_named_by_a_guid_is_refused_by_name_or_kept(
    standing: tuple[World, StandIn, StandIn],
) -> None:
    """As the client library's serializers write it into a header."""
    world, _, _ = standing
    orders, _ = world.topics
    link = world.link
    context = SerializationContext(orders, MessageField.VALUE, [])
    schema = SchemaId("AVRO", 7, "3e5d8b1c-0000-4000-8000-000000000007")
    value = header_schema_id_serializer(b"payload", context, schema)
    headers = cast("list[tuple[str, bytes | None]]", context.headers)
    assert headers[0][0] == "__value_schema_id" and (headers[0][1] or b"")[:1] == b"\1"
    produce(
        link.source, orders, [Record(value, headers=headers), Record(schema.guid_to_bytes() + b"payload")]
    )
    assert link.copy() == (3, 0) and link.halted() == {(orders, 0): HaltReason.STAGE_FAILED}
    world.configure(onUnframed="keep")
    assert link.copy() == (0, 0)
    assert [(r.value, r.headers) for r in world.there(orders)] == [
        (r.value, r.headers) for r in read_all(link.source, orders)[0]
    ]


def test_a_file_is_tried_with_the_links_map(standing: tuple[World, StandIn, StandIn]) -> None:
    world, mine, theirs = standing
    orders, _ = world.topics
    link = world.link
    client(theirs.url).register("taken", avro("Taken", "x"))
    first = client(mine.url).register(f"{orders}-value", avro("One", "a")).id
    produce(link.source, orders, [Record(framed(first, b"abc")), Record(framed(99, b"abc"))])
    world.once()
    sample = ["pipeline", "test", "-f", str(world.file), "--sample", "5", "--output", "json"]
    done = CliRunner().invoke(cli, sample, env=link.variables)
    assert done.exit_code == 0, done
    (told,) = json.loads(done.stdout)["topics"]
    assert told["outcomes"] == {"changed": 1, "waits": 1}
    done = CliRunner().invoke(cli, ["plan", "--output", "json"], env=link.variables)
    assert done.exit_code == 0, done.output


def said(link: Link) -> list[dict[str, Any]]:
    """The control topic's records."""
    return [json.loads(r.value) for r in read_all(link.target, link.settings.control_topic)[0] if r.value]
