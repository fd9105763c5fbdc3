"""`verbatim pipeline`: tests of a file are run offline, and the exit code says how they went."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from common.errors import SettingsError
from common.kafka.wire.records import encode_rows
from common.pipeline import loading
from common.pipeline.batch import Origin
from common.pipeline.engine import Engine
from verbatim.main import cli

TEXT = """\
version: 1
keys: {k: file:/nowhere/key}
flows:
  - topics: [customers]
    value: json
    stages:
      - filter: {drop: {value.test: true}}
      - mask: {key: k, fields: {email: hmac, phone: {partial: {last: 4}}}}
      - fields: {drop: [ssn]}
      - headers: {set: {from: '{topic}@{offset}'}}
tests:
  - name: personal data
    given: {topic: customers, offset: 7, key: a, value: {email: a@b.org, phone: '+491234567', ssn: 1, n: [1, 2]}}
    expect:
      key: a
      value: {email: {matches: '[0-9a-f]{64}'}, phone: '******4567', ssn: {exists: false}, n: [1, 2]}
      headers: {from: customers@7}
  - given: {topic: customers, value: {test: true}}
    expect: left-out
  - given: {topic: customers, value: {phone: {}}}
    expect: failed
"""


def run(tmp_path: Path, text: str, *more: str) -> Result:
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    return CliRunner().invoke(cli, ["pipeline", "test", "-f", str(file), *more])


@pytest.mark.parametrize(("function", "how"), [("drawn", "once more"), ("counted", "once more")])
def test_a_function_that_is_not_pure_is_caught_by_the_double_run(
    tmp_path: Path, function: str, how: str
) -> None:
    text = f"""\
version: 1
flows: [{{topics: [a], stages: [python: 'tests.support.own_stages:{function}']}}]
tests: [{{given: {{topic: a, value: x}}, expect: {{key: null}}}}]
"""
    with pytest.raises(
        SettingsError, match=f"a/0 offset 0: comes out otherwise when it is run {how}"
    ) as refused:
        raise run(tmp_path, text).exception or AssertionError
    assert "tests.support.own_stages" in str(refused.value)
    assert run(tmp_path, text.replace(function, "unchanged")).exit_code == 0


def test_a_sound_file_passes(tmp_path: Path) -> None:
    result = run(tmp_path, TEXT)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[:3] == ["ok  personal data", "ok  test 2", "ok  test 3"]
    assert result.stdout.endswith("sound; 3 of 3 tests passed\n")
    assert "/nowhere/key" in result.stderr and "made-up keys" in result.stderr


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("drop: [ssn]", "drop: [other]", "value.ssn: expected nothing, found 1"),
        ("last: 4", "last: 3", 'value.phone: expected "******4567", found "*******567"'),
        ("email: hmac", "email: redact", 'value.email: "***" does not match [0-9a-f]{64}'),
        ("n: [1, 2]}}", "n: [1, 3]}}", "value.n[1]: expected 2, found 3"),
        ("ssn: 1, n: [1, 2]}}", "ssn: 1}}", "value.n: is not there"),
        ("{from: '{topic}", "{for: '{topic}", "headers.from: is not there"),
        ("offset: 7", "offset: 8", 'headers.from: expected "customers@7", found "customers@8"'),
        ("key: a, value: {e", "key: b, value: {e", 'key: expected "a", found "b"'),
        ("value: {test: true}}", "value: {test: 1}}", "expected left-out, but the record is kept"),
        ("phone: {}", "phone: '1'", "expected failed, but the record is kept"),
        ("n: [1, 2]}}", "test: true}}", "expected kept or tombstone, but the record is left-out"),
        ("phone: '+491234567', ssn", "phone: [], ssn", "stage 2 (mask): value.phone is neither text"),
        ("topics: [customers]", "topics: [others]", "no flow takes the topic customers"),
    ],
)  # fmt: skip
def test_what_is_otherwise_than_expected_is_told(tmp_path: Path, old: str, new: str, difference: str) -> None:
    assert old in TEXT
    result = run(tmp_path, TEXT.replace(old, new, 1))
    assert result.exit_code == 1 and difference in result.stdout, result.output


ROUTED = """\
version: 1
flows:
  - topics: [events]
    value: json
    stages: [{route: {cases: [{when: {country: DE}, topic: events.de}, {when: {country: FR}, topic: '{topic}.fr'}]}}]
tests:
  - given: {topic: events, value: {country: DE}}
    expect: {topic: events.de}
  - given: {topic: events, value: {country: FR}}
    expect: {topic: {matches: '.*\\.fr'}}
  - given: {topic: events, value: {}}
    expect: {topic: null, value: {}}
"""


def test_where_a_record_is_routed_to_can_be_expected(tmp_path: Path) -> None:
    result = run(tmp_path, ROUTED, "--show")
    assert result.exit_code == 0, result.output
    assert "events/0 offset 0: kept, to events.fr" in result.stdout
    result = run(tmp_path, ROUTED.replace("topic: null", "topic: events"))
    assert result.exit_code == 1 and 'topic: expected "events", found null' in result.stdout
    result = run(tmp_path, ROUTED.replace("{country: FR}, topic", "{country: IT}, topic"))
    assert result.exit_code == 1 and "topic: null does not match" in result.stdout


def test_the_partition_of_a_key_can_be_expected(tmp_path: Path) -> None:
    text = """\
version: 1
flows: [{topics: [events], stages: [{route: {topic: '{topic}.k', partition: {hash: 6}}}]}]
tests: [{given: {topic: events, key: foobar, value: x}, expect: {topic: events.k/0}}]
"""
    assert run(tmp_path, text).exit_code == 0
    result = run(tmp_path, text.replace("hash: 6", "hash: 5"))
    assert result.exit_code == 1 and 'topic: expected "events.k/0", found "events.k/1"' in result.stdout


EIGHT = """\
version: 1
registries: {source: {url: 'http://source'}, target: {url: 'http://target'}}
schemas: {}
flows:
  - topics: [customers]
    wire: {key: confluent, value: apicurio}
    stages: [schema-ids]
tests:
  - given: {topic: customers, ids: {key: 8, value: 5000000000}, key: k, value: v}
    map: {'8': 80, '5000000000': 6000000000}
    expect: {key: k, value: v, ids: {key: 80, value: 6000000000}}
"""


def test_ids_of_eight_bytes_are_given_and_expected(tmp_path: Path) -> None:
    assert run(tmp_path, EIGHT).exit_code == 0, run(tmp_path, EIGHT).output
    result = run(tmp_path, EIGHT.replace("ids: {key: 8,", "ids: {key: 5000000000,"))
    assert result.exit_code != 0 and "given.ids.key has no place in 4 bytes" in result.output


AVRO = """\
version: 1
registries: {source: {url: 'http://source'}, target: {url: 'http://target'}}
schemas: {}
flows:
  - topics: [customers]
    key: avro
    value: avro
    wire: {value: confluent}
    stages: [{mask: {fields: {email: redact}}}, {when: {key: k}, headers: {set: {is: k}}}, schema-ids]
tests:
  - given: {topic: customers, ids: {key: 8, value: 7}, key: k, value: {email: a@b.org, n: 1}}
    schemas:
      '7': {type: record, name: C, fields: [{name: email, type: ['null', string]}, {name: n, type: long}]}
      '8': string
    map: {'7': 70}
    expect: {key: k, value: {email: '***', n: 1}, headers: {is: k}, ids: {key: 8, value: 70}}
"""


def test_avro_is_given_and_expected_as_json(tmp_path: Path) -> None:
    result = run(tmp_path, AVRO)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("n: 1}, h", "n: 2}, h", "value.n: expected 2, found 1"),
        ("n: 1}}", "n: x}}", "given.value is no Avro of its schema: n, is no whole number"),
        ("n: 1}}", "m: 1}}", "given.value is no Avro of its schema: n, is not there, and has no default"),
        ("key: 8, v", "key: 9, v", "schema 9 is not among its schemas"),
        ("{key: 8, value: 7}", "{value: 7}", "Avro is given: say which schema it is of"),
        ("'8': string", "'8': strong", "schema 8 refers to another one"),
        ("    map: {'7': 70}\n", "", "expected kept or tombstone, but the record is waits"),
        ("value: 70}", "value: 7}", "ids.value: expected 7, found 70"),
    ],
)
def test_what_is_otherwise_in_avro_is_told(tmp_path: Path, old: str, new: str, difference: str) -> None:
    assert old in AVRO
    result = run(tmp_path, AVRO.replace(old, new, 1))
    assert result.exit_code == 1 and difference in result.stdout, result.output


def test_the_same_as_json(tmp_path: Path) -> None:
    result = run(tmp_path, TEXT.replace("last: 4", "last: 3"), "--output", "json")
    told = json.loads(result.stdout)
    assert result.exit_code == 1 and len(told["sha256"]) == 64
    assert [bool(test["differences"]) for test in told["tests"]] == [True, False, False]


def test_a_wrong_file_is_an_error_of_settings(tmp_path: Path) -> None:
    result = run(tmp_path, TEXT.replace("mask:", "maks:"))
    assert isinstance(result.exception, SettingsError) and result.exception.exit_code == 2


def test_the_schema_is_printed() -> None:
    result = CliRunner().invoke(cli, ["pipeline", "schema"])
    assert result.exit_code == 0 and "flows" in json.loads(result.stdout)["properties"]


ENCRYPTING = """\
version: 1
keys: {k: env:PII, hmac: env:SHORT, gone: env:NOT_THERE}
flows: [{topics: [t], value: json, stages: [{mask: {key: k, fields: {email: encrypt, n: encrypt}}}]}]
"""
ITS_KEY = "0123456789abcdef" * 8


def decrypt(tmp_path: Path, given: bytes, text: str = ENCRYPTING, key: str = ITS_KEY) -> Result:
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    env = {"PII": key, "SHORT": "0123456789abcdef"}
    return CliRunner().invoke(cli, ["pipeline", "decrypt", "-f", str(file)], input=given, env=env)


def test_what_was_encrypted_is_put_back_by_who_has_the_key(tmp_path: Path) -> None:
    values = [b'{"email":"a@b.org","n": 1.10,"x":"y"}', b'{"email":null}', b"\xff no json"]
    flow = Engine(loading.parse(ENCRYPTING, tmp_path), {"k": ITS_KEY.encode()}).flow_of("t")
    assert flow is not None
    rows = encode_rows(range(3), [0] * 3, [1] * 3, [None] * 3, values, [None] * 3)
    hidden = flow.apply(rows, Origin("link", "t", 0)).rows.column(4).to_pylist()
    given = b"\n".join([*hidden, values[2]])
    assert b"a@b.org" not in given and b"1.10" not in given
    done = decrypt(tmp_path, given)
    assert (done.exit_code, done.stdout_bytes) == (0, b"\n".join(values)), done.output
    assert done.stderr == "2 put back\n"
    other = decrypt(tmp_path, given, key="f" * 64)
    assert (other.exit_code, other.stdout_bytes) == (3, given)
    assert other.stderr.startswith("0 put back\n2 not: no key that can be read here has the id ")
    flipped = given.replace(b'","n"', b'A","n"')
    assert decrypt(tmp_path, flipped).exit_code == 3
    assert "1 not: made with another key, or changed since" in decrypt(tmp_path, flipped).stderr


def test_without_a_key_nothing_can_be_put_back(tmp_path: Path) -> None:
    done = decrypt(tmp_path, b"x", key="short")
    assert isinstance(done.exception, SettingsError) and done.stdout_bytes == b""
    assert "none of its keys that can be read here is one for encrypt" in str(done.exception)


def test_a_test_of_a_file_that_encrypts_has_a_made_up_key(tmp_path: Path) -> None:
    tests = (
        "tests: [{given: {topic: t, value: {email: a}}, expect: {value: {email: {matches: 'siv1[.].*'}}}}]\n"
    )
    assert run(tmp_path, ENCRYPTING + tests).exit_code == 0
