"""A pipeline's file: what it may say, and that each error names line, stage and option."""

from __future__ import annotations

import hmac
import json
from pathlib import Path

import pytest

from common.errors import SettingsError
from common.link import control_records, provenance
from common.pipeline import definition, loading, options
from common.pipeline.paths import EACH, parse

TEXT = """\
version: 1
keys: {pii: file:/run/secrets/pii}
flows:
  - topics: [customers, 'a-.*']
    value: json
    onError: dead-letter
    stages:
      - filter: {keep: [{value.type: {in: [order, refund]}, header.test: {exists: false}}, {value: {is: tombstone}}]}
      - mask: {key: pii, fields: {email: hmac, phone: {partial: {last: 4}}, 'cards[*].iban': redact}}
      - headers: {remove: ['x-.*'], set: {origin: '{topic}/{partition}'}}
      - when: {value.n: 1.5}
        fields: {drop: [a, b], set: {x: 1}}
      - key: value.id
tests:
  - given: {topic: customers, value: {type: order}}
    expect: left-out
"""
FILE = Path("pipeline.yaml")


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("mask:", "maks:", 9, "flow 1, stage 2, maks: there is no maks here; did you mean mask?"),
        ("redact", "redcat", 9, "flow 1, stage 2, mask.fields.cards[*].iban: input should be"),
        ("key: pii, f", "f", 9, "mask.fields: hmac takes a key"),
        ("key: pii, fields: {email: hmac", "fields: {email: encrypt", 9, "mask.fields: encrypt takes a key"),
        ("key: pii, f", "key: other, f", 9, "mask.key: there is no key other"),
        ("phone:", "email.x:", 9, "mask.fields.email.x: email.x and email lie in one another"),
        ("last: 4", "last: -4", 9, "partial.last: input should be greater than or equal to 0"),
        ("cards[*]", "cards[0]", 9, "mask.fields.cards[0].iban: 'cards[0].iban' is no path"),
        ("dead-letter", "tolerate", 6, "flow 1, onError: input should be 'halt', 'skip' or 'dead-letter'"),
        ("dead-letter", "{tolerate: {per: 9}}", 6, "flow 1, onError.tolerate.records: is missing"),
        ("dead-letter", "{tolerate: {records: 9, per: 9}}", 6, "onError.tolerate.per: is no more than records"),
        ("dead-letter", "{tolerate: {records: 0, per: 9}}", 6, "tolerate.records: input should be greater than or"),
        ("dead-letter", "{tolerate: {records: 1001, per: 9000}}", 6, "tolerate.records: input should be less than or"),
        ("dead-letter", "{}", 6, "flow 1, onError: say dead-letter, tolerate, or both"),
        ("dead-letter", "{dead-letter: {payload: 1}}", 6, "onError.dead-letter.payload: input should be a valid"),
        ("dead-letter", "{dead-letter: {paylod: true}}", 6, "paylod here; did you mean payload?"),
        ("version: 1", "version: 2", 1, "version: input should be 1"),
        ("version: 1\n", "", 1, "version: is missing"),
        ("version: 1", "version: 1\nschemas: {}", 1, "registries: is missing: say where the schemas are"),
        ("version: 1", "version: 1\nschemas: {ids: maps}", 2, "schemas.ids: input should be 'auto', 'keep' or 'map'"),
        ("version: 1", "version: 1\nschemas: {subjects: ['a(']}", 2, "'a(' is no regular expression"),
        ("version: 1", "version: 1\nschemas: {interval: 0s}", 2, "schemas.interval: expected up to an hour"),
        ("version: 1", "version: 1\nregistries: {source: {url: 'http://a'}}", 2, "registries.target: is missing"),
        *(
            ("version: 1", f"version: 1\nregistries: {{target: {{url: 'http://a'}}, source: {{{of}}}}}", 2, message)
            for of, message in (
                ("url: 'ftp://a'", "registries.source.url: expected http://host:port"),
                ("url: 'http://a:b'", "registries.source.url: expected http://host:port"),
                ("url: 'http://u:p@a'", "registries.source.url: a URL has neither a login nor parameters here"),
                ("url: 'http://a', auth: {}", "registries.source.auth: say basic or bearer"),
                ("url: 'http://a', auth: {basic: 'u:p'}", "registries.source.auth.basic: string should match"),
            )
        ),
        ("- key: value.id", "- schema-ids", 13, "flow 1, stage 5, schema-ids: say where ids are, in the flow"),
        ("- key: value.id", "- python: acme.stages", 13, "flow 1, stage 5, python: string should match pattern"),
        ("- key: value.id", "- python: 'acme:f()'", 13, "flow 1, stage 5, python: string should match pattern"),
        *(
            ("- key: value.id", f"- route: {{{given}}}", 13, f"flow 1, stage 5, route{message}")
            for given, message in (
                ("", ": give topic or cases"),
                ("topic: a, cases: [{when: {value.a: 1}, topic: b}]", ": give topic or cases"),
                ("topic: a, else: b", ".else: stands beside cases"),
                ("topic: 'a/b'", ".topic: 'a/b' is not a legal name"),
                ("topic: 'a.{partition}'", ".topic: 'a.{partition}': {partition} is none of {topic}, {link}"),
                ("topic: a, partition: hash", ".partition: say of how many partitions: {hash: 6}"),
                ("topic: a, partition: {hash: 0}", ".partition.hash: input should be greater than or equal to 1"),
                ("cases: [" + ", ".join(f"{{when: {{a: {n}}}, topic: t{n}}}" for n in range(4)) + "], partition: {hash: 9000}", ".partition: more than 32767 partitions of all topics"),
                ("topic: a, partition: any", ".partition: input should be 'same'"),
                ("cases: []", ".cases: nothing is in it"),
                ("cases: [{when: {size: a}, topic: b}]", ".cases.1.when.size.in: size is a number"),
                ("cases: [{topic: b}]", ".cases.1.when: is missing"),
            )
        ),
        ("- when: {v", "- route: {topic: a}\n      - when: {v", 11, "stage 4, route: comes last: no stage stands"),
        ("- key: value.id", "- {}", 13, "flow 1, stage 5: which stage?"),
        ("- key: value.id", "- {key: a, timestamp: b}", 13, "one stage an entry, not key and timestamp"),
        ("- key: value.id", "- key: 'a[*]'", 13, "flow 1, stage 5, key: takes a field or a header"),
        ("value: json", "value: xml", 5, "flow 1, value: input should be 'bytes', 'json' or 'avro'"),
        ("value: json", "value: json\n    wire: {value: confluent}", 6, "flow 1, wire: only the stage schema-ids asks for it"),
        ("    value: json\n", "", 7, "filter.keep.1.value.type: value.type looks into the value: say value: json"),
        ("{in: [order", "{inn: [order", 8, "value.type.inn: there is no inn here; did you mean in?"),
        ("a-.*", "a-(", 4, "flow 1, topics.2: 'a-(' is no regular expression"),
        ("{topic}", "{topc}", 10, "headers.set.origin: '{topc}/{partition}': {topc} is none of {topic},"),
        ("{topic}", "{topic", 10, "headers.set.origin: '{topic/{partition}'"),
        ("origin:", "verbatim.x:", 10, "headers.set.verbatim.x: headers that begin with verbatim."),
        ("value.n: 1.5", "header.n: 5", 11, "stage 4, when.header.n.in: header.n is text: put 5 in quotes"),
        ("value.n: 1.5", "size: '5'", 11, "when.size.in: size is a number"),
        ("value.n: 1.5", "timestamp: {prefix: a}", 11, "when.timestamp.prefix: timestamp is a number"),
        ("value.n: 1.5", "key: {is: tombstone}", 11, "when.key.is: only a value is a tombstone"),
        ("value.n: 1.5", "value.n: {exists: false, gt: 5}", 11, "when.value.n.exists: exists stands alone"),
        ("value.n: 1.5", "value.n: {}", 11, "when.value.n: no operator is given"),
        ("value.n: 1.5", "value.n: [1]", 11, "when.value.n: expected one value"),
        ("value.n: 1.5", "value.n: {gt: true}", 11, "when.value.n.gt: expected one value"),
        ("value.n: 1.5", "value.n: 1.50000000000000000001", 11, "has more digits than"),
        ("value.n: 1.5", "value.n: 1, value.n: 2", 11, "value.n is given twice"),
        ("version: 1", "version: 1: 2", 1, "mapping values are not allowed here"),
        ("drop: [a, b]", "drop: a", 12, "stage 4, fields.drop: expected a list"),
        ("drop: [a, b]", "drop: [key.a]", 12, "fields.drop.key.a: key.a is no field of the value"),
        ("drop: [a, b]", "drop: ['a[*]']", 12, "fields.drop.a[*]: value.a[*] has no name"),
        ("set: {x: 1}", "set: {'x[*].y': 1}", 12, "fields.set.x[*].y: one field is meant"),
        ("set: {x: 1}", "set: {x: '{a}'}", 12, "fields.set.x: '{a}': {a} is none of"),
        ("set: {x: 1}", "rename: {x: ''}", 12, "fields.rename: '' is no name for a field"),
        ("file:/run", "run", 2, "keys.pii: string should match pattern"),
        ("{topic: customers", "{tpic: customers", 15, "test 1, given.tpic: there is no tpic here; did you mean topic?"),
        ("- key: value.id", "- validate: {schema: none.json}", 13, "can't read none.json"),
        ("- key: value.id", "- validate: {schema: {$ref: 'http://x/y'}}", 13, "validate.schema: the schema refers to http"),
    ],
)  # fmt: skip
def test_an_error_is_one_line_with_file_line_and_option(old: str, new: str, line: int, message: str) -> None:
    assert old in TEXT
    with pytest.raises(SettingsError) as error:
        loading.parse(TEXT.replace(old, new, 1), FILE)
    text = str(error.value)
    assert text.startswith(f"pipeline.yaml:{line}: ") and message in text and "\n" not in text


@pytest.mark.parametrize("text", ["", "[]", "version", "a: &a [*a]", "\x00", "[" * 5000])
def test_what_is_no_pipeline_at_all_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^pipeline\.yaml") as error:
        loading.parse(text, FILE)
    assert "\n" not in str(error.value)


def test_scalars_are_those_of_json() -> None:
    text = TEXT.replace("value.n: 1.5", "value.n: {in: [NO, 0x10, 010, 2024-01-01, yes, 1e3, true, ~, '1']}")
    when = json.loads(definition.definition(loading.parse(text, FILE), {}))["flows"][0]["stages"][3]["when"]
    assert when["value.n"]["in"] == ["NO", "0x10", "010", "2024-01-01", "yes", 1000.0, True, None, "1"]


def test_a_definition_is_the_same_for_the_same_pipeline_and_holds_no_secret() -> None:
    made, keys = loading.parse(TEXT, FILE), {"pii": b"0123456789abcdef"}
    told = definition.definition(made, keys)
    rewritten = json.dumps(json.loads(told) | {"keys": {"pii": "env:PII"}})
    assert definition.definition(loading.parse(rewritten, FILE), keys) == told
    its_id = hmac.digest(keys["pii"], b"verbatim pipeline key", "sha256").hex()[:16]
    assert json.loads(told)["keys"] == {"pii": its_id}
    assert not any(secret in told for secret in (b"secrets", b"tests", keys["pii"]))
    for old, new in (("last: 4", "last: 3"), ("key: value.id", "key: value.ID"), ("dead-letter", "halt")):
        assert definition.definition(loading.parse(TEXT.replace(old, new), FILE), keys) != told


def test_another_key_under_the_same_name_is_another_pipeline() -> None:
    made, keys = loading.parse(TEXT, FILE), {"pii": b"0123456789abcdef"}
    told = definition.definition(made, keys)
    others = {"pii": b"0123456789abcdeF"}
    assert definition.definition(made, others) != told
    definition.must_be_its_keys(told.decode(), keys)
    with pytest.raises(SettingsError, match="key pii has another id here") as error:
        definition.must_be_its_keys(told.decode(), others)
    assert "0123" not in str(error.value)
    where = {"pii": made.keys["pii"]}
    assert definition.defined(told.decode(), where) == definition.defined(
        definition.definition(made, others).decode(), where
    )


def test_what_on_error_says_in_two_ways_is_one_pipeline() -> None:
    def told(said: str) -> object:
        made = loading.parse(TEXT.replace("onError: dead-letter", f"onError: {said}"), FILE)
        (flow,) = made.flows
        as_told = json.loads(definition.definition(made, {}))["flows"][0].get("onError")
        return (
            as_told,
            flow.failed,
            flow.payload,
            flow.tolerate and (flow.tolerate.records, flow.tolerate.per),
        )

    rate, few = "tolerate: {records: 1, per: 9}", {"records": 1, "per": 9}
    assert told("dead-letter") == ("dead-letter", "dead-letter", False, None)
    assert told("{dead-letter: {}}") == told("{dead-letter: {payload: false}}") == told("dead-letter")
    assert told("halt") == (None, "halt", False, None) and told("skip") == ("skip", "skip", False, None)
    assert told(f"{{{rate}}}") == ({"tolerate": few}, "skip", False, (1, 9))
    both = told(f"{{{rate}, dead-letter: {{}}}}")
    assert both == ({"tolerate": few, "dead-letter": {}}, "dead-letter", False, (1, 9))
    assert told(f"{{dead-letter: {{payload: false}}, {rate}}}") == both
    payload = {"tolerate": few, "dead-letter": {"payload": True}}
    assert told(f"{{{rate}, dead-letter: {{payload: true}}}}") == (payload, "dead-letter", True, (1, 9))


def test_a_schema_in_a_file_is_part_of_the_definition(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "object"}')
    file = tmp_path / "pipeline.yaml"
    file.write_text(TEXT.replace("- key: value.id", "- validate: {schema: s.json}"))
    assert b'{"schema":{"type":"object"}}' in definition.definition(loading.load(file), {})


def test_keys_are_read_from_files_and_the_environment_and_are_never_shown(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("0123456789abcdef\n")
    text = TEXT.replace("file:/run/secrets/pii", f"file:{tmp_path}/k, other: env:OTHER")
    made = loading.parse(text, FILE)
    keys = definition.read_keys(made, {"OTHER": "fedcba9876543210"})
    assert keys == {"pii": b"0123456789abcdef", "other": b"fedcba9876543210"}
    with pytest.raises(SettingsError, match="key other: the environment has no OTHER"):
        definition.read_keys(made, {})
    with pytest.raises(SettingsError, match="key other: env:OTHER has 5 bytes; 16 are the least"):
        definition.read_keys(made, {"OTHER": "short"})


def test_the_json_schema_takes_the_file() -> None:
    import jsonschema
    import yaml

    schema = definition.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(TEXT), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(TEXT.replace("mask:", "maks:")), schema)


def test_headers_of_the_program_itself_are_out_of_reach() -> None:
    assert provenance.NAME.startswith(options.OWN_HEADERS)


@pytest.mark.parametrize(
    ("text", "root", "steps"),
    [
        ("a.b", "value", ("a", "b")),
        ("value.a", "value", ("a",)),
        ("value", "value", ()),
        ("values.a", "value", ("values", "a")),
        ("key.id", "key", ("id",)),
        ("value[*].a[*][*]", "value", (EACH, "a", EACH, EACH)),
        ('"a.b".c', "value", ("a.b", "c")),
        ('"value".c', "value", ("value", "c")),
        ("header.x.y-z", "header", ("x.y-z",)),
    ],
)
def test_paths(text: str, root: str, steps: tuple[str | None, ...]) -> None:
    path = parse(text)
    assert (path.root, path.steps) == (root, steps) and parse(str(path)) == path


@pytest.mark.parametrize(
    "text", ["", "a.", ".a", "a..b", "value.", "a[1]", 'a"b', "header.", "timestamp.x", "a\\b", '"a']
)
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"path|header|timestamp"):
        parse(text)


def test_a_file_of_schemas_needs_no_flows_and_is_no_other_pipeline() -> None:
    more = "registries: {source: {url: 'http://a'}, target: {url: 'https://b/c', auth: {bearer: file:/t}}}\nschemas: {}\n"
    made = loading.parse("version: 1\n" + more, FILE)
    assert made.schemas is not None and made.schemas.ids == "auto" and made.schemas.deleted
    assert definition.definition(made, {}).decode() == control_records.NO_FLOWS
    one, other = (definition.definition(loading.parse(text, FILE), {}) for text in (TEXT + more, TEXT))
    assert one == other
    with pytest.raises(SettingsError, match="flows: is missing, or nothing is in it"):
        loading.parse("version: 1", FILE)


WIRED = """\
version: 1
registries: {source: {url: 'http://a'}, target: {url: 'http://b'}}
schemas: {ids: map}
flows:
  - topics: [orders]
    wire: {key: confluent, value: confluent}
    stages:
      - headers: {set: {a: b}}
      - schema-ids: {onUnknown: wait, onUnframed: keep}
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("    wire: {key: confluent, value: confluent}\n", "", 8, "flow 1, stage 2, schema-ids: say where ids are"),
        ("{key: confluent, value: confluent}", "{}", 6, "flow 1, wire: say key or value, or both"),
        ("key: confluent", "key: karapace", 6, "flow 1, wire.key: input should be 'confluent' or 'apicurio'"),
        ("wire: {key: confluent", "key: avro\n    wire: {key: apicurio", 7, "flow 1, wire.key: no Avro is read behind ids of 8 bytes"),
        ("schemas: {ids: map}\n", "", 8, "flow 1, stage 2, schema-ids: takes what `schemas` writes down: say schemas"),
        ("schemas: {ids: map}\nflows:\n  - topics: [orders]", "flows:\n  - topics: [orders]\n    value: avro", 5, "flow 1, value: is read by what"),
        ("onUnframed: keep}", "}\n      - timestamp: header.a", 9, "schema-ids: comes last, but for route; timestamp"),
        ("- headers: {set: {a: b}}", "- schema-ids", 9, "stage 2, schema-ids: is there twice"),
        ("wire:", "value: json\n    wire:", 6, "flow 1, value: an id stands in front of it, so it is no json"),
        ("wait", "pass", 9, "flow 1, stage 2, schema-ids.onUnknown: input should be 'wait'"),
        ("keep", "skip", 9, "flow 1, stage 2, schema-ids.onUnframed: input should be 'halt' or 'keep'"),
        ("onUnframed: keep", "context: a", 9, "schema-ids.context: a context's name begins with a dot"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_schema_ids_is_refused_where_it_stands(
    old: str, new: str, line: int, message: str
) -> None:
    assert old in WIRED
    with pytest.raises(SettingsError) as error:
        loading.parse(WIRED.replace(old, new, 1), FILE)
    assert str(error.value).startswith(f"pipeline.yaml:{line}: ") and message in str(error.value)


def test_a_definition_says_wire_and_stage_and_nothing_of_registries() -> None:
    """How ids are kept is not a record's: the map tells. And a lane has no registries."""
    made = loading.parse(WIRED.replace("{onUnknown: wait, onUnframed: keep}", "{}"), FILE)
    told = definition.definition(made, {})
    assert json.loads(told) == {
        "version": 1,
        "keys": {},
        "flows": [
            {
                "topics": ["orders"],
                "wire": {"key": "confluent", "value": "confluent"},
                "stages": [{"headers": {"set": {"a": "b"}}}, {"schema-ids": {}}],
            }
        ],
    }
    assert definition.defined(told.decode(), {}).flows == made.flows
    assert definition.definition(loading.parse(WIRED.replace("map}", "keep}"), FILE), {}) != told
    bare = WIRED.replace("schema-ids: {onUnknown: wait, onUnframed: keep}", "schema-ids")
    assert definition.definition(loading.parse(bare.replace("map}", "keep}"), FILE), {}) == told
