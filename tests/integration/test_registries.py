"""What `schemas` counts on of a registry: the same of a real one, Apicurio's, and of the stand-in for
Confluent's; and that copies are read at the target, by the client library's own deserializers."""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from common.errors import RegistryError
from common.link.schema_map import Reference
from schemas.model import Schema
from schemas.probing import probe
from schemas.registry import Registry
from tests.support.apicurio import apicurios
from tests.support.registry import stand_in
from tests.support.schemas import Pair, avro, client, clients_closed, record, told

__all__ = ["clients_closed"]


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, list[str]]]:
    """Two of each kind, started when they are first asked for."""
    with ExitStack() as stack:
        found: dict[str, list[str]] = {
            "stand-in": [stack.enter_context(stand_in()).url for _ in range(2)],
        }

        class Lazy(dict[str, list[str]]):
            def __missing__(self, kind: str) -> list[str]:
                self[kind] = [registry.url for registry in apicurios(stack, 2)]
                return self[kind]

        yield Lazy(found)


@pytest.fixture(params=["stand-in", "apicurio"])
def two(request: pytest.FixtureRequest, urls: dict[str, list[str]]) -> list[str]:
    return urls[request.param]


@pytest.fixture
def registry(two: list[str]) -> Registry:
    return client(two[0])


@pytest.fixture
def subject() -> str:
    return f"t{secrets.token_hex(4)}-value"


def test_what_is_registered_is_there_by_its_version_and_its_id(registry: Registry, subject: str) -> None:
    assert registry.versions(subject) == {}
    made = registry.register(subject, avro("A", "a"))
    assert (made.subject, made.version, made.deleted) == (subject, 1, False)
    assert registry.by_id(".", made.id) is not None and subject in registry.subjects()
    second = registry.register(subject, avro("A", "a", optional=("b",)))
    assert second.version == 2 and second.id != made.id
    # Again: the same.
    assert registry.register(subject, avro("A", "a", optional=("b",))) == second
    assert registry.versions(subject) == {1: False, 2: False}
    assert registry.by_id(".", 1 << 30) is None


def test_references_of_each_type(registry: Registry, subject: str) -> None:
    schemas = {
        "AVRO": (record("Base", "a"), record("Uses", "b"), "Base"),
        "JSON": (
            '{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","title":"B"}',
            '{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"b":{"$ref":"b.json"}}}',
            "b.json",
        ),
        "PROTOBUF": (
            'syntax = "proto3";\npackage t;\n\nmessage Base {\n  int64 a = 1;\n}\n',
            'syntax = "proto3";\npackage t;\n\nimport "base.proto";\n\nmessage Uses {\n  .t.Base b = 1;\n}\n',
            "base.proto",
        ),
    }
    for kind, (base, uses, name) in schemas.items():
        at = f"{subject}-{kind}"
        first = registry.register(f"{at}-base", Schema(base, kind))
        reference = Reference(name, f"{at}-base", first.version)
        made = registry.register(f"{at}-uses", Schema(uses, kind, (reference,)))
        assert made.schema.type == kind and made.schema.references == (reference,)
        found = registry.by_id(".", made.id)
        assert found is not None and found.references == (reference,)


def test_what_is_soft_deleted_is_told_as_such_and_read_by_its_id(registry: Registry, subject: str) -> None:
    one, two = registry.register(subject, avro("A", "a")), registry.register(subject, avro("A"))
    registry.delete(subject, 1)
    assert registry.versions(subject) == {1: True, 2: False}
    registry.delete(subject, 1)
    assert registry.by_id(".", one.id) == one.schema
    assert registry.version(subject, 1, deleted=True).schema == one.schema
    registry.delete(subject, 2)
    assert registry.versions(subject) == {1: True, 2: True} and subject in registry.subjects()
    assert registry.by_id(".", two.id) == two.schema
    # Registered again, it is another version with the same id.
    again = registry.register(subject, avro("A", "a"))
    assert (again.version, again.id) == (3, one.id)
    assert registry.versions(subject) == {1: True, 2: True, 3: False}


def test_compatibility_is_a_subjects_own_or_the_registrys(registry: Registry, subject: str) -> None:
    general = registry.level(subject)
    assert registry.own_level(subject) is None
    registry.register(subject, avro("A", "a"))
    registry.set_level(subject, "BACKWARD")
    assert registry.own_level(subject) == registry.level(subject) == "BACKWARD"
    with pytest.raises(RegistryError, match=f"subject {subject}: POST answers 409") as caught:
        registry.register(subject, avro("A", "a", "b"))
    assert not caught.value.retriable
    registry.set_level(subject, "NONE")
    assert registry.register(subject, avro("A", "a", "b")).version == 2
    assert registry.level(f"other-{subject}") == general


@pytest.mark.parametrize("ids", ["auto", "map"])
def test_a_probe_leaves_nothing(registry: Registry, two: list[str], ids: Any) -> None:
    """Promise: it is told of a real registry too what it does, and that one is as it was: subjects, and what
    is found by the ids."""
    there = registry.subjects()
    found = probe(registry, ids, ())
    apicurio = "/apis/" in two[0]
    assert found.keeps_ids is (None if ids == "map" else not apicurio)
    assert registry.subjects() == there and registry.versions(found.subject) == {}
    assert registry.own_level(found.subject) is None and registry.own_mode(found.subject) is None


# copies, and who reads them


def framed(schema_id: int, payload: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + payload


def mapped(value: bytes, ids: dict[int, int]) -> bytes:
    """As a record's value is to be at the target."""
    (source_id,) = struct.unpack(">I", value[1:5])
    return framed(ids[source_id], value[5:])


def protobuf_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="p.proto", package="t", syntax="proto3")
    message = file.message_type.add(name="P")
    message.field.add(name="a", number=1, type=3, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.P"))


def test_copies_are_read_at_the_target_as_originals_are_at_the_source(two: list[str]) -> None:
    """Promise: what producers have written with the source's ids is, with the ids of the map, read at the
    target by the client library's own deserializers as what it was."""
    topic = f"t{secrets.token_hex(4)}"
    source, target = (client(url) for url in two)
    # The target's ids are others.
    target.register(f"{topic}-x", avro(topic, "x"))
    base = source.register(f"{topic}-base", avro("Base", "a"))
    uses = json.dumps(
        {
            "type": "record",
            "name": "Uses",
            "fields": [{"name": "b", "type": "Base"}, {"name": "c", "type": "string"}],
        }
    )
    source.register(
        f"{topic}-value", Schema(uses, references=(Reference("Base", base.subject, base.version),))
    )
    source.register(
        f"{topic}-json",
        Schema(
            '{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","title":"J","properties":{"n":{"type":"integer"}}}',
            "JSON",
        ),
    )
    proto = 'syntax = "proto3";\npackage t;\n\nmessage P {\n  int64 a = 1;\n}\n'
    kept = source.register(f"{topic}-proto", Schema(proto, "PROTOBUF"))
    pair = Pair(two[0], two[1])
    lines = pair.round({topic: topic}, subjects=[f"{topic}-(value|json|proto)"])
    assert {state for *_, state in told(lines)} == {"copied"} and len(lines) == 4
    assert {state for *_, state in told(pair.round(subjects=[f"{topic}-.*"], write=False))} <= {"in-step"}
    pair.copying().check_fingerprints()

    at, to = (SchemaRegistryClient({"url": url}) for url in two)
    config = {"auto.register.schemas": False, "use.latest.version": True}

    def context(subject: str) -> SerializationContext:
        return SerializationContext(topic, MessageField.VALUE, {"subject": subject})

    def named(ctx: SerializationContext | None, _: str | None) -> str:
        assert ctx is not None and isinstance(ctx.headers, dict)
        return str(ctx.headers["subject"])

    config["subject.name.strategy"] = named  # type: ignore[assignment]
    record_of = {"b": {"a": 5}, "c": "x"}
    value = AvroSerializer(at, None, conf=config)(record_of, context(f"{topic}-value"))
    assert value is not None
    for registry, bytes_ in ((at, value), (to, mapped(value, pair.log.ids))):
        assert AvroDeserializer(registry)(bytes_, context(f"{topic}-value")) == record_of
    value = JSONSerializer(None, at, conf=config)({"n": 3}, context(f"{topic}-json"))
    assert value is not None
    for registry, bytes_ in ((at, value), (to, mapped(value, pair.log.ids))):
        assert JSONDeserializer(None, schema_registry_client=registry)(bytes_, context(f"{topic}-json")) == {
            "n": 3
        }
    message = protobuf_class()(a=7)
    value = framed(kept.id, b"\0" + message.SerializeToString())
    for bytes_ in (value, mapped(value, pair.log.ids)):
        read = ProtobufDeserializer(type(message), {"use.deprecated.format": False})(
            bytes_, context(f"{topic}-proto")
        )
        assert read == message


def test_a_history_arrives_as_it_was(two: list[str]) -> None:
    """Promise: incompatible versions, soft-deleted ones and one that was registered again come in their
    order, and the compatibility is the source's."""
    subject = f"t{secrets.token_hex(4)}-value"
    source, target = (client(url) for url in two)
    source.register(subject, avro("A", "a"))
    source.set_level(subject, "NONE")
    source.register(subject, avro("A", "a", "b"))
    source.delete(subject, 1)
    source.register(subject, avro("A", "a"))
    source.set_level(subject, "FULL_TRANSITIVE")
    pair = Pair(two[0], two[1])
    pair.round(subjects=[subject], ids="auto")
    assert target.versions(subject) == source.versions(subject) == {1: True, 2: False, 3: False}
    for number in (1, 2, 3):
        assert target.version(subject, number).schema == source.version(subject, number).schema
    assert target.own_level(subject) == "FULL_TRANSITIVE" and target.own_mode(subject) is None
    assert not pair.log.map.restores
    assert {state for *_, state in told(pair.round(subjects=[subject], ids="auto"))} == {"in-step"}


def test_apicurio_does_not_keep_ids_by_mode_import_and_that_is_said(urls: dict[str, list[str]]) -> None:
    subject, two = f"t{secrets.token_hex(4)}-value", urls["apicurio"]
    client(two[0]).register(subject, avro(f"K{secrets.token_hex(4)}", "a"))
    (line,) = Pair(two[0], two[1]).round(subjects=[subject], ids="keep")
    assert line.state == "failed" and "there is no mode IMPORT" in line.detail
    assert client(two[1]).versions(subject) == {}


def test_a_subject_of_which_all_is_soft_deleted_is_not_shown_by_apicurio_and_that_is_said(
    urls: dict[str, list[str]],
) -> None:
    """Promise: at the source the subject fails by name, the others go on; at the target it stays in step, by
    the ids that are written down, whoever leads."""
    subject = f"t{secrets.token_hex(4)}-value"
    plain, real = urls["stand-in"][0], urls["apicurio"][0]
    for url, other in ((plain, real), (real, plain)):
        client(url).register(subject, avro("Gone", "a"))
        client(url).delete(subject, 1)
        pair = Pair(url, other)
        (line,) = pair.round(subjects=[subject])
        if url == real:
            assert (line.version, line.state) == (1, "failed") and "does not show" in line.detail
            assert pair.round(subjects=[subject], deleted=False) == []
        else:
            assert line.state == "copied" and client(other).versions(subject) == {1: True}
            (line,) = pair.round(subjects=[subject])
            assert line.state == "in-step" and client(other).versions(subject) == {1: True}
            pair.copying().check_fingerprints()
            client(other).register(subject, avro("X", "x"))
        subject = f"t{secrets.token_hex(4)}-value"
