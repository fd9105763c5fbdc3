"""The pipeline that a link is to have: read once at the start, followed while its file changes, and numbered
in the control topic before a lane hears of it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from common.config import live_reload, loading
from common.config.settings import Settings
from common.errors import SettingsError
from common.link.control_kinds import ControlRecord, encode
from common.link.control_records import NO_FLOWS
from common.link.control_state import Control
from common.ports import Deadline
from replicator.driver.pipeline_file import PipelineFile
from replicator.lane.flows import Flows, ready
from replicator.lane.schema_ids import SchemaIds
from replicator.lane_plan import PipelinePlan
from replicator.main import Replicator

ROOT = Path(__file__).parents[4]

TEXT = """\
version: 1
keys: {pii: file:key}
flows:
  - topics: [orders]
    value: json
    stages:
      - mask: {key: pii, fields: {email: hmac}}
"""
OTHER = TEXT.replace("email", "phone")
WAIT: Any = Deadline(1)
IDS = SchemaIds("link.schemas", {}, {})


class Log:
    """A control topic in memory. `others`: what another leader writes just before each record."""

    def __init__(self) -> None:
        self.state = Control(link="link")
        self.written: list[ControlRecord] = []
        self.others: list[ControlRecord] = []

    def append(self, record: ControlRecord, deadline: Deadline) -> None:
        self.written += [*self.others, record]
        self.others = []

    def refresh(self, deadline: Deadline) -> Control:
        while self.state.position < len(self.written):
            self.state.apply(self.state.position, encode(self.written[self.state.position], "link"))
        return self.state


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(live_reload, "LOOK_S", 0.0)
    (tmp_path / "key").write_text("0123456789abcdef")
    path = tmp_path / "pipeline.yaml"
    path.write_text(TEXT)
    return path


def settings(file: Path | None, **more: str) -> Settings:
    given = {
        "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "a:1",
        "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "b:1",
        "KAFKA_CLUSTERS_SOURCE_TOPIC": "orders",
        **more,
    }
    return loading.load(environ=given | ({} if file is None else {"PIPELINE": str(file)}))


def newest(file: PipelineFile, log: Log) -> PipelinePlan | None:
    return file.plan(file.make_newest(log, WAIT))  # type: ignore[arg-type]


def test_a_link_that_never_had_a_pipeline_has_no_record_of_one() -> None:
    log = Log()
    assert newest(PipelineFile(settings(None)), log) is None and log.written == []


def test_a_file_that_has_schemas_and_no_flows_is_no_pipeline(file: Path) -> None:
    url = "{url: 'http://a'}"
    file.write_text(f"version: 1\nregistries: {{source: {url}, target: {url}}}\nschemas: {{}}\n")
    found, log = PipelineFile(settings(file)), Log()
    found.make_newest(log, WAIT)  # type: ignore[arg-type]
    assert log.written == [] and found.plan(log.state) is None


def test_another_key_under_its_name_is_another_pipeline_and_no_lane_masks_with_one_that_is_not_its_own(
    file: Path,
) -> None:
    """Promise: what is masked with another key is of another version, also where the link's files say the
    same."""
    log, of = Log(), PipelineFile(settings(file))
    first = newest(of, log)
    assert first is not None and Flows(first, "link", IDS).of("orders", 0) is not None
    (file.parent / "key").write_text("another-key-of-16-bytes\n")
    with pytest.raises(SettingsError, match="key pii has another id here"):
        Flows(first, "link", IDS)
    assert [of.changed() for _ in range(3)] == [False, True, False]
    second = newest(of, log)
    assert second is not None and second.n == 2 and second.keys == first.keys
    assert Flows(second, "link", IDS).of("orders", 0) is not None


def test_another_text_of_a_module_is_another_pipeline_and_no_lane_runs_one_that_is_not_its_own(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: what is made by another text is of another version; who has the old text does not run the new
    version, nor the other way round."""
    monkeypatch.syspath_prepend(file.parent)
    module = file.parent / "module_of_a_pipeline.py"
    module.write_text("def f(rows):\n    return rows\n")
    file.write_text("version: 1\nflows: [{topics: [orders], stages: [python: 'module_of_a_pipeline:f']}]\n")
    log, of = Log(), PipelineFile(settings(file))
    first = newest(of, log)
    assert first is not None and Flows(first, "link", IDS).of("orders", 0) is not None
    module.write_text("def f(rows):\n    return rows  \n")
    with pytest.raises(
        SettingsError, match=r"module_of_a_pipeline is another one here .*: sha256 \w+ here, sha256"
    ):
        Flows(first, "link", IDS)
    assert [of.changed() for _ in range(3)] == [False, True, False]
    second = newest(of, log)
    assert second is not None and second.n == 2 and second.definition != first.definition
    assert Flows(second, "link", IDS).of("orders", 0) is not None
    module.unlink()
    with pytest.raises(
        SettingsError, match="flow 1, stage 1 .python.: module module_of_a_pipeline can't be imp"
    ):
        Flows(second, "link", IDS)


def test_each_other_pipeline_gets_the_next_number_and_the_same_one_none(file: Path) -> None:
    log, of = Log(), PipelineFile(settings(file))
    first = newest(of, log)
    assert first is not None
    assert (first.n, first.keys) == (1, {"pii": f"file:{file.parent}/key"})
    assert newest(PipelineFile(settings(file)), log) == first and len(log.written) == 1
    file.write_text("# rewritten\n" + TEXT)
    assert [of.changed() for _ in range(3)] == [False, False, False]
    file.write_text(OTHER)
    assert [of.changed() for _ in range(3)] == [False, True, False]
    assert not of.is_newest(log.state)
    second = newest(of, log)
    assert second is not None and second.n == 2 and second.definition != first.definition
    off = newest(PipelineFile(settings(None)), log)
    assert (
        off == PipelinePlan(n=3, definition=NO_FLOWS, keys={})
        and Flows(off, "link", IDS).of("orders", 0) is None
    )
    assert newest(PipelineFile(settings(None)), log) == off, "written once"
    told = [(v.definition, v.sha256) for v in log.state.pipelines.values()]
    assert [text for text, _ in told] == [first.definition, second.definition, NO_FLOWS]
    assert all(sha == hashlib.sha256(text.encode()).hexdigest() for text, sha in told)
    assert not any("0123456789abcdef" in json.dumps(vars(r)) for r in log.written)


def test_a_number_that_another_leader_has_taken_is_not_ours(file: Path) -> None:
    log, of = Log(), PipelineFile(settings(file))
    file.write_text(OTHER)
    other = PipelineFile(settings(file))
    newest(other, elsewhere := Log())
    log.others = elsewhere.written
    found = newest(of, log)
    assert found is not None and found.n == 2
    assert [log.state.pipelines[n].definition for n in (1, 2)] == [
        other.configured.definition,
        of.configured.definition,
    ]


def test_a_lane_makes_of_the_plan_what_the_driver_has_checked(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = newest(PipelineFile(settings(file)), Log())
    assert plan is not None
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    flows = Flows(plan, "link", IDS)
    assert flows.number == 1 and flows.of("orders", 0) is not None and flows.of("other", 0) is None
    (tmp_path / "key").unlink()
    with pytest.raises(SettingsError, match="key pii: can't read"):
        ready(plan, IDS.target, IDS.avro)


def test_a_file_that_becomes_no_good_is_one_warning_and_the_old_one_stays(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of = PipelineFile(settings(file))
    before = of.configured
    file.write_text(TEXT.replace("hmac", "hmca"))
    assert not any(of.changed() for _ in range(4))
    assert of.configured is before
    (line,) = [record.getMessage() for record in caplog.records]
    assert "is not taken over" in line and "pipeline.yaml:7: flow 1, stage 1, mask.fields.email" in line


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("email: hmac", "email: encrypts", r"pipeline\.yaml:7: flow 1, stage 1, mask.fields.email: input should"),
        ("email: hmac", "email: encrypt", r"flow 1, stage 1 \(mask\): key pii is none for encrypt: 64, 96 or 128 hex"),
        ("value: json", "value: json\n    onError: {tolerate: {records: 9, per: 9}}", r"yaml:6: .*per: is no more than rec"),
        ("file:key", "file:nowhere", "key pii: can't read nowhere"),
        ("file:key", "env:NOT_THERE", "key pii: the environment has no NOT_THERE"),
        ("value: json", "value: json\n    onError: tolerate", "onError: input should be 'halt'"),
        ("- mask:", "- headers: {remove: []}\n      - mask:", "is not understood"),
    ],
)  # fmt: skip
def test_what_can_not_be_run_is_refused_at_the_start(file: Path, old: str, new: str, why: str) -> None:
    file.write_text(TEXT.replace(old, new))
    with pytest.raises(SettingsError, match=why) as refused:
        PipelineFile(settings(file))
    assert "\n" not in str(refused.value)


def test_a_definition_that_no_control_record_could_hold_is_refused(file: Path) -> None:
    file.write_text(TEXT.replace("[orders]", json.dumps([f"t{n:0200}" for n in range(2000)])))
    with pytest.raises(SettingsError, match="400000 are the most"):
        PipelineFile(settings(file))


def test_a_link_of_two_directions_has_no_pipeline(file: Path) -> None:
    with pytest.raises(SettingsError, match="PIPELINE: does not go with PROVENANCE_HEADERS"):
        settings(file, PROVENANCE_HEADERS="true")


def test_a_lane_without_a_pipeline_imports_nothing_for_one(file: Path) -> None:
    """Half a second of each start of a lane's process; with one, Spark's daemon does it for all of them."""
    code = "import sys, replicator.lane.lane; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"pydantic", "common.pipeline.engine"} & {*done.stdout.split()}
    assert Replicator.lane_modules(settings(None)) == []
    (*ahead,) = map(import_module, Replicator.lane_modules(settings(file)))
    assert {of.__name__ for of in ahead} == {"common.pipeline.definition", "common.pipeline.engine"}
