"""The application `schemas` on real brokers, between stand-ins of registries: rounds, leaders, crashes,
commands."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from common.errors import LinkRefused, SchemaMismatch, SchemasFailed, SettingsError
from common.kafka.client import clients
from common.link.schema_map import SchemaId, SchemaMap, encode_id
from common.link.schema_map_log import SchemaMapReader
from common.ports import Deadline
from schemas.main import command
from schemas.service import Service
from tests.conftest import Kafka, Names
from tests.integration.test_plan import plan
from tests.support.brokers import Record, create_topic, produce, read_all
from tests.support.harness import Link, eventually
from tests.support.metrics import sample
from tests.support.registry import Refused, StandIn, stand_in
from tests.support.schemas import avro, client, clients_closed, mapped
from verbatim.local.applications import environment
from verbatim.main import cli

__all__ = ["clients_closed"]


@dataclass
class World:
    """A link that was made, and a registry at each end."""

    link: Link
    topic: str
    source: StandIn
    target: StandIn
    file: Path

    def configure(self, **config: object) -> None:
        said = {
            "version": 1,
            "registries": {"source": {"url": self.source.url}, "target": {"url": self.target.url}},
            "schemas": {"ids": "map", "interval": "200ms", **config},
        }
        self.file.write_text(json.dumps(said))

    def service(self, once: bool = True) -> Service:
        return Service(self.link.settings, once)

    def once(self) -> Service:
        service = self.service()
        assert service._run() == 0
        return service

    def run(self, *args: str, **variables: str) -> Result:
        """The command, as from a shell."""
        return CliRunner().invoke(command, list(args), env={**self.link.variables, **variables})

    def map(self) -> SchemaMap:
        found = SchemaMap()
        for record in read_all(self.link.target, self.link.settings.schemas_topic)[0]:
            found.apply(record.key, record.value)
        return found


@pytest.fixture
def world(source: Kafka, target: Kafka, names: Names, tmp_path: Path) -> Iterator[World]:
    topic = names.topic("orders")
    link = Link(source.bootstrap_servers, target.bootstrap_servers, names.link, topic)
    link.variables |= {
        "PIPELINE": str(tmp_path / "pipeline.yaml"),
        "KAFKA_CLUSTERS_DESTINATION_TOPIC": "eu.{topic}",
    }
    create_topic(source.bootstrap_servers, topic, 1)
    with stand_in() as mine, stand_in() as theirs:
        found = World(link, topic, mine, theirs, tmp_path / "pipeline.yaml")
        found.configure()
        assert link.replicate() == 0
        client(theirs.url).register("others-value", avro("Others", "x"))
        client(mine.url).register(f"{topic}-value", avro("Order", "a"))
        client(mine.url).register("not-ours-value", avro("N", "n"))
        yield found


def test_a_links_schemas_are_copied_and_their_ids_written_down_for_whoever_rewrites_records(
    world: World,
) -> None:
    """Promise: subjects of the link's topics, and no others, are at the target after a round, by the copy's
    name where that is asked for; a reader of the topic, without settings, learns each id."""
    world.configure(rename="topics")
    service = world.once()
    assert set(world.target.subjects) == {"others-value", f"eu.{world.topic}-value"}
    assert world.map().ids == dict([mapped(1, 2, avro("Order", "a"))])
    assert not world.map().restores
    s = world.link.settings
    config = s.client_config("destination", "consumer")
    admin = clients.admin(s.client_config("destination", "admin"))
    with closing(SchemaMapReader(s.schemas_topic, config, admin)) as reader:
        assert reader.catch_up(Deadline(30)).target(".", 1) == 2
        client(world.source.url).register(f"{world.topic}-key", avro("Key", "k"))
        world.once()
        assert reader.map.target(".", 3) is None
        assert reader.catch_up(Deadline(30)).target(".", 3) == 3
    assert service.health.work.counts["schemas_registered"] == 1


def test_a_running_leader_follows_the_source_and_another_takes_over(world: World) -> None:
    """Promise: while it runs, a new schema is at the target within its interval; a registry that is away for
    a while is waited for; a standby leads when the leader ends, and goes on with what is written down."""
    first, second = world.service(once=False), world.service(once=False)
    ended: dict[str, int] = {}

    def start(name: str, service: Service) -> threading.Thread:
        thread = threading.Thread(target=lambda: ended.update({name: service._run()}), daemon=True)
        thread.start()
        return thread

    def registered(what: str) -> None:
        client(world.source.url).register(f"{world.topic}-{what}", avro(what, "a"))
        eventually(lambda: f"{world.topic}-{what}" in world.target.subjects, what)

    running = [start("first", first)]
    eventually(lambda: f"{world.topic}-value" in world.target.subjects, "the first schema")
    running.append(start("second", second))
    registered("One")
    away = time.monotonic() + 1.0

    def before(method: str, path: str) -> None:
        if time.monotonic() < away:
            raise Refused(503, 50301, "away")

    world.source.before = before
    registered("Two")
    # Another file is followed; one that is no good changes nothing.
    world.file.write_text("version: 2")
    time.sleep(0.5)
    world.configure(subjects="all")
    eventually(lambda: "not-ours-value" in world.target.subjects, "all subjects")
    eventually(lambda: second.health.role == "standby", "a standby")
    first.stopping.set()
    running[0].join(20)
    registered("Three")
    assert second.health.role == "leader"
    # The round that has registered it ends a moment later.
    eventually(lambda: sample(second.health, "verbatim_schemas_registered_total") == 1, "the metric")
    assert sample(second.health, "verbatim_schema_subjects_failed") == 0
    second.stopping.set()
    running[1].join(20)
    assert ended == {"first": 0, "second": 0}
    assert world.map().ids.keys() == {SchemaId(".", n) for n in range(1, 6)}


def test_a_process_killed_between_setting_compatibility_aside_and_putting_it_back_is_made_good(
    world: World, tmp_path: Path
) -> None:
    """Promise: kill -9 while a subject of the target has compatibility NONE; the next start puts the source's
    level there before anything else, and finishes."""
    subject = f"{world.topic}-value"
    world.source.levels[subject] = "NONE"
    client(world.source.url).register(subject, avro("Order", "a", "b"))
    world.source.levels[subject] = "FULL"
    reached, go = threading.Event(), threading.Event()

    def before(method: str, path: str) -> None:
        if method == "POST" and len(world.target.subjects.get(subject, ())) == 1:
            reached.set()
            go.wait(30)

    world.target.before = before
    executable = str(Path(sys.executable).parent / "schemas")
    with open(tmp_path / "log", "wb") as log:
        killed = subprocess.Popen(
            [executable, "--once"], env=environment(world.link.variables, tmp_path), stdout=log, stderr=log
        )
        assert reached.wait(60), (tmp_path / "log").read_text()
        killed.kill()
        killed.wait()
    world.target.before = lambda method, path: None
    go.set()
    assert world.target.levels[subject] == "NONE" and subject in world.map().restores
    client(world.source.url).register(f"{world.topic}-key", avro("Key", "k"))
    order: list[str] = []
    world.target.before = lambda method, path: order.append(f"{method} {path}") if method != "GET" else None
    world.once()
    assert order[0] == f"PUT /config/{subject}"
    assert world.target.levels[subject] == "FULL" and not world.map().restores
    assert [v.content for v in world.target.subjects[subject]] == [
        v.content for v in world.source.subjects[subject]
    ]


def test_commands_show_what_is_there_and_end_as_they_are_to(world: World) -> None:
    """Promise: `--dry-run`, `describe` and `verify` write nothing; exit codes say whether all is in step."""
    topic = world.topic
    found = world.run("--dry-run")
    assert found.exit_code == 0 and f"{topic}-value version 1 (id 1) -> {topic}-value: due" in found.stdout
    found = world.run("verify")
    assert found.exit_code == 1 and "due" in found.stdout
    assert set(world.target.subjects) == {"others-value"}
    assert world.link.settings.schemas_topic not in read_topics(world)
    found = world.run("--once")
    assert (found.exit_code, found.stdout) == (0, "schemas: 1 subjects, 1 versions, 1 copied\n")
    found = world.run("verify")
    assert (found.exit_code, found.stdout) == (0, f"{topic}-value -> {topic}-value: 1 versions in step\n")
    (line,) = json.loads(world.run("describe", "--output", "json").stdout)
    assert (line["id"], line["target_id"], line["state"]) == (1, 2, "in-step")
    assert "TARGET-SUBJECT" in world.run("describe").stdout
    world.target.levels[f"{topic}-value"] = "FULL"
    found = world.run("verify")
    assert found.exit_code == 1 and "compatibility FULL -> BACKWARD" in found.stdout
    world.target.levels[f"{topic}-value"] = "BACKWARD"
    world.target.before = refuse_writes
    client(world.source.url).register(f"{topic}-key", avro("K", "k"))
    found = world.run("--once")
    assert isinstance(found.exception, SchemasFailed) and f"subject {topic}-key: registry" in str(
        found.exception
    )
    assert "1 subjects failed" in found.stdout


def refuse_writes(method: str, path: str) -> None:
    if method == "POST":
        raise Refused(403, 40301, "not yours")


def refuse_all(method: str, path: str) -> None:
    raise Refused(503, 50301, "away")


def read_topics(world: World) -> set[str]:
    from tests.support.brokers import topics

    return topics(world.link.target)


def test_a_plan_says_what_would_be_copied_and_what_not_before_anything_is(world: World) -> None:
    """Promise: with registries and no flows, a plan changes nothing in either, names a subject that can't be
    copied and a registry that can't be reached, and warns of no flow."""
    planned, code = plan(world.link)
    assert (code, planned["failures"]) == (0, []), planned
    assert planned["schemas"] == {"subjects": 1, "in_step": 0, "due": 2, "failed": 0, "probe": None}, (
        "its version and its level"
    )
    made = [(of["name"], of["by"]) for of in planned["changes"] if of["by"] == "schemas"]
    assert made == [(world.link.settings.schemas_topic, "schemas")]
    assert not any("no flow" in warning for warning in planned["warnings"])
    assert set(world.target.subjects) == {"others-value"}
    world.once()
    assert plan(world.link)[0]["schemas"] == {
        "subjects": 1,
        "in_step": 1,
        "due": 0,
        "failed": 0,
        "probe": None,
    }
    # Which has another id there by now.
    world.configure(ids="keep")
    planned, code = plan(world.link)
    (why,) = planned["failures"]
    assert code == 1 and why.startswith(f"schemas: subject {world.topic}-value: ")
    world.source.before = refuse_all
    planned, code = plan(world.link)
    (why,) = planned["failures"]
    assert code == 1 and why.startswith("schemas: registry ") and "(source)" in why and "503" in why


def test_a_plan_tries_the_targets_registry_where_it_is_asked_to(world: World) -> None:
    """Promise: `--probe` says whether ids are kept, and leaves nothing; a registry that does not keep them,
    or lets nobody write, stands against the link; without registries there is nothing to try."""
    world.configure(ids="keep")
    world.source.asked.clear()
    planned, code = plan(world.link, "--probe")
    assert (code, planned["failures"]) == (0, []), planned
    assert planned["schemas"]["probe"]["keeps_ids"] is True
    assert set(world.target.subjects) == {"others-value"} and not world.target.modes
    assert not any(asked.startswith(("POST", "PUT", "DELETE")) for asked in world.source.asked)
    told = CliRunner().invoke(cli.commands["plan"], ["--probe", "--seconds", "0"], env=world.link.variables)
    assert "schemas: the target's registry registers, reads back, deletes; ids are kept" in told.stdout
    world.target.has_modes = False
    planned, code = plan(world.link, "--probe")
    (why,) = planned["failures"]
    assert code == 1 and why.startswith("schemas, --probe: registry ") and why.endswith("use ids: map")
    assert planned["schemas"]["due"] == 2, "what else is planned is told"
    del world.link.variables["PIPELINE"]
    with pytest.raises(SettingsError, match="--probe: PIPELINE names no registries"):
        CliRunner().invoke(
            cli.commands["plan"], ["--probe"], env=world.link.variables, catch_exceptions=False
        )


def test_an_id_that_means_another_schema_now_ends_it_at_its_next_start(world: World) -> None:
    """Promise: `schema-mismatch` by name, exit 2, and nothing is copied then."""
    world.once()
    client(world.source.url).register(f"{world.topic}-key", avro("K", "k"))
    world.source.subjects[f"{world.topic}-value"][0].content = {"schema": '"string"'}
    with pytest.raises(
        SchemaMismatch, match="schema-mismatch: registry .* id 1 is another schema now"
    ) as caught:
        world.service()._run()
    assert caught.value.exit_code == 2 and f"{world.topic}-key" not in world.target.subjects
    assert isinstance(world.run("verify").exception, SchemaMismatch)


def test_the_first_mapping_of_an_id_outlives_compaction(world: World) -> None:
    """Promise: where a paused leader has written another target id, the first one is written again."""
    world.once()
    topic = world.link.settings.schemas_topic
    (key, value) = encode_id(*mapped(1, 99, avro("Order", "a")))
    produce(world.link.target, topic, [Record(value, key)])
    world.once()
    records = read_all(world.link.target, topic)[0]
    ids = [json.loads(r.value or b"{}")["target"] for r in records if r.key == key]
    assert ids == [2, 99, 2]


def test_what_can_not_be_run_is_refused_by_name(world: World, names: Names) -> None:
    with pytest.raises(SettingsError, match="PIPELINE: not set"):
        Service(world.link.settings.model_copy(update={"pipeline": None}), True)
    world.file.write_text("version: 1\nflows: [{topics: [a], stages: [{filter: {keep: {header.a: b}}}]}]")
    with pytest.raises(SettingsError, match="schemas is missing: there is nothing to keep in step"):
        world.service()
    world.configure()
    new = Link(world.link.source, world.link.target, f"{names.link}-new", world.topic)
    new.variables["PIPELINE"] = str(world.file)
    with pytest.raises(LinkRefused, match="start its replicator first"):
        Service(new.settings, True)._run()
    for args in (["describe", "--once"], ["--output", "json"]):
        assert isinstance(world.run(*args).exception, SettingsError)
