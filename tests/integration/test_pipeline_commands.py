"""`verbatim pipeline show`, `history` and `test --sample`, `--against`, on real brokers: they tell what is
there, and change nothing. The control records are written by hand."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from common.errors import SettingsError
from common.link import control_kinds as kinds
from common.link.control_records import NO_FLOWS
from common.pipeline import loading
from common.pipeline.definition import definition
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, produce
from tests.support.harness import Link
from tests.support.unchanged import assert_unchanged, everything
from verbatim.main import cli

KEY = "0123456789abcdef"


def text(topic: str, method: str) -> str:
    return (
        f"version: 1\nkeys: {{pii: env:PII}}\nflows:\n  - topics: [{topic}]\n    value: json\n    stages:\n"
        f"      - filter: {{drop: {{value.test: true}}}}\n      - mask: {{key: pii, fields: {{email: {method}}}}}\n"
    )


class World:
    """A link of one topic with records, whose pipelines are said by hand."""

    def __init__(self, source: Kafka, target: Kafka, names: Names, folder: Path) -> None:
        self.topic, self.file = names.topic(), folder / "pipeline.yaml"
        create_topic(source.bootstrap_servers, self.topic, 2, {"retention.ms": "-1"})
        values = [
            b'{"email": "a@b.org", "n": 1.10}',
            b'{"test": true}',
            b'{"email": "\\u001b[2J"}',
            b'{"n": 4}',
        ]
        produce(
            source.bootstrap_servers,
            self.topic,
            [
                Record(v, b"k%d" % n, n % 2, 1_760_000_000_000 + n, [("h", b"1")])
                for n, v in enumerate(values)
            ],
        )
        self.link = Link(source.bootstrap_servers, target.bootstrap_servers, names.link, self.topic)
        assert self.link.copy() == (0, 0)

    def say(self, n: int, told: str) -> None:
        record = kinds.Pipeline(n, told, hashlib.sha256(told.encode()).hexdigest())
        settings = self.link.settings
        produce(
            self.link.target,
            settings.control_topic,
            [Record(kinds.encode(record, settings.application_name))],
        )

    def defined(self, method: str) -> str:
        made = loading.parse(text(self.topic, method), self.file)
        return definition(made, {"pii": KEY.encode()}).decode()

    def run(self, *arguments: str) -> Result:
        environ = {**self.link.variables, "PII": KEY}
        found = CliRunner().invoke(cli, ["pipeline", *arguments], env=environ)
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        return found

    def told(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)


@pytest.fixture
def world(source: Kafka, target: Kafka, names: Names, tmp_path: Path) -> World:
    return World(source, target, names, tmp_path)


def test_the_versions_of_a_link_are_shown(world: World) -> None:
    name = world.link.settings.application_name
    assert world.run("show").stdout == f"link {name} has had no pipeline\n" and world.told("show") is None
    with pytest.raises(
        SettingsError, match="--number: there is no version 1 of the pipeline; the link has had none"
    ):
        world.run("show", "--number", "1")
    world.say(1, world.defined("redact"))
    world.say(2, world.defined("hmac"))
    world.say(3, NO_FLOWS)
    lines = world.run("history").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["VERSION", "1", "2", "3"]
    assert [line.split()[2] for line in lines] == ["FLOWS", "1", "1", "none"]
    first = world.told("history")[0]
    assert first["sha256"] == hashlib.sha256(world.defined("redact").encode()).hexdigest()
    assert first["since_ms"] > 1_760_000_000_000 and first["version"] == 1
    assert world.told("show")["version"] == 3
    shown = world.run("show", "--number", "2").stdout
    assert shown.startswith("# version 2, since 2") and KEY not in shown
    assert (
        yaml.safe_load(shown)
        == json.loads(world.defined("hmac"))
        == world.told("show", "--number", "2")["definition"]
    )
    with pytest.raises(SettingsError, match="there is no version 4 of the pipeline; there are 1, 2, 3"):
        world.run("show", "--number", "4")


def test_a_sample_shows_the_newest_records_before_and_after_and_changes_nothing(world: World) -> None:
    world.file.write_text(text(world.topic, "redact"))
    ends = {at: everything(at) for at in (world.link.source, world.link.target)}
    found = world.run("test", "-f", str(world.file), "--sample", "3")
    for at, before in ends.items():
        assert_unchanged(at, before)
    lines = found.stdout.splitlines()
    assert found.exit_code == 0 and f"{world.topic}/0 offset 0" not in found.stdout
    assert lines[1:4] == [
        f"{world.topic}/0 offset 1: changed", '  - value {"email": "\\u001b[2J"}', '  + value {"email": "***"}',
    ]  # fmt: skip
    assert f"{world.topic}/1 offset 0: left-out" in lines and f"{world.topic}/1 offset 1: kept" in lines
    assert lines[-1].startswith(f"{world.topic}: 3 records: 1 changed, 1 left-out, 1 kept; ")
    (told,) = world.told("test", "-f", str(world.file), "--sample", "9")["topics"]
    assert (told["records"], told["outcomes"]) == (4, {"changed": 2, "left-out": 1, "kept": 1})
    assert told["shown"][0]["before"]["headers"] == [["h", "1"]] and told["us_a_record"] > 0


def test_a_stage_that_fails_where_that_halts_is_an_exit_code(world: World) -> None:
    world.file.write_text(text(world.topic, "redact") + "      - key: value.email\n")
    found = world.run("test", "-f", str(world.file), "--sample", "9")
    assert found.exit_code == 1 and "failed (stage 3 (key): " in found.stdout
    world.file.write_text(
        world.file.read_text().replace("    value: json", "    value: json\n    onError: skip")
    )
    assert world.run("test", "-f", str(world.file), "--sample", "9").exit_code == 0


def test_against_a_version_what_comes_out_differently_is_counted_and_shown_only_if_asked(
    world: World,
) -> None:
    world.say(1, world.defined("redact"))
    world.say(2, NO_FLOWS)
    world.file.write_text(text(world.topic, "redact").replace("test: true", "test: false"))
    file = ("test", "-f", str(world.file))
    counted = world.run(*file, "--against", "1").stdout.splitlines()
    assert (
        counted[-1] == f"{world.topic}: 1 of these come out differently: 1 left-out -> kept"
        and len(counted) == 3
    )
    shown = world.run(*file, "--against", "1", "--sample", "9").stdout
    assert f"{world.topic}/1 offset 0: left-out -> kept\n" in shown and "offset 1" not in shown
    (told,) = world.told(*file, "--against", "2")["topics"]
    assert (told["differently"], told["ways"]) == (2, {"kept -> changed": 2}) and "shown" not in told
    with pytest.raises(SettingsError, match="--against: there is no version 3"):
        world.run(*file, "--against", "3")
    assert "no source topic is selected" in world.run(*file, "--sample", "1", "--topic", "other").stdout
