"""Links with pipelines on real brokers: `verbatim verify` finds them right, whatever versions there were, and
finds what is done to them; `verbatim plan` says beforehand what is written then."""

from __future__ import annotations

import hmac
import io
import json
import threading
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from common.errors import SettingsError
from tests.conftest import Kafka, Names
from tests.integration.test_offsets import commit, committed
from tests.support.beside import beside
from tests.support.brokers import Record, create_topic, produce, read_all, wait_until
from tests.support.harness import Link
from verbatim.main import cli
from verbatim.verify import link as verify_link

KEY = "0123456789abcdef"
BEGAN_MS = 1_760_000_000_000
KEPT = {"retention.ms": "-1"}
FIRST = """\
version: 1
keys: {pii: env:PII}
flows:
  - topics: ['.*orders']
    value: json
    stages:
      - filter: {drop: {value.test: true}}
      - mask: {key: pii, fields: {email: hmac}}
"""
SECOND = """\
version: 1
flows:
  - topics: ['.*orders']
    value: json
    stages:
      - fields: {drop: [email], set: {from: '{topic}/{partition}@{offset}'}}
      - headers: {remove: [secret]}
"""


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PII", KEY)


@pytest.fixture
def piped(source: Kafka, target: Kafka, names: Names, tmp_path: Path) -> tuple[Link, str, Path]:
    """A link with a pipeline, whose file is to be written; its topic, of one partition, and the file."""
    topic, file = names.topic("orders"), tmp_path / "pipeline.yaml"
    create_topic(source.bootstrap_servers, topic, 1, KEPT)
    link = Link(source.bootstrap_servers, target.bootstrap_servers, names.link, topic, PIPELINE=str(file))
    return link, topic, file


def run(link: Link, *arguments: str) -> tuple[Any, int]:
    """What a command says as JSON, and its exit code."""
    found = CliRunner().invoke(cli, [*arguments, "--output", "json"], env=link.variables)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return json.loads(found.stdout), found.exit_code


def verify(link: Link, *arguments: str) -> tuple[dict[str, Any], int]:
    """Of a topic's first partition the report, with `at`: kind -> (count, source and destination offset,
    version)."""
    found, code = run(link, "verify", *arguments)
    report = found["partitions"][0]
    places = ("count", "source_offset", "destination_offset", "pipeline")
    report["at"] = {kind: tuple(f[name] for name in places) for kind, f in report["findings"].items()}
    return report, code


def some(first: int, count: int) -> list[Record]:
    """Each third is a test, and one has no value."""
    values = [
        b'{"test": true, "n": %d}' % n if n % 3 == 2 else b'{"email" : "a%d@b.org", "n": 1.%d0}' % (n, n)
        for n in range(first, first + count)
    ]
    return [
        Record(value, b"k%d" % n, timestamp=BEGAN_MS + n, headers=[("secret", b"s"), ("h", None)])
        for n, value in enumerate(values, first)
    ] + [Record(None, b"gone", timestamp=BEGAN_MS)]


def counts(report: dict[str, Any]) -> tuple[int, ...]:
    return tuple(report[name] for name in ("source_records", "equal", "transformed", "filtered"))


def test_each_version_of_a_pipeline_is_planned_written_and_verified(
    source: Kafka, target: Kafka, names: Names, piped: tuple[Link, str, Path]
) -> None:
    link, topic, file = piped
    plain = Link(source.bootstrap_servers, target.bootstrap_servers, names.link, topic)

    def planned() -> tuple[Any, Any]:
        report, code = run(link, "plan", "--seconds", "0.1")
        assert code == 0, report["failures"]
        found = report["pipeline"]
        return (found["number"], found["state"]), report["topics"][0]["pipeline"]

    def more(first: int) -> None:
        produce(source.bootstrap_servers, topic, some(first, 6))

    file.write_text(FIRST.replace("mask:", "maks:"))
    with pytest.raises(SettingsError, match=r"pipeline.yaml:8: flow 1, stage 2, maks: there is no maks here"):
        planned()
    file.write_text(FIRST)
    more(0)
    assert planned() == ((1, "new"), {"flow": 1, "state": "new"})
    assert link.copy() == (0, 0)
    report, code = verify(link)
    assert (code, report["at"], report["notes"], counts(report)) == (0, {}, [], (7, 5, 4, 2))
    hidden = hmac.new(KEY.encode(), b"a0@b.org", "sha256").hexdigest().encode()
    assert (
        read_all(target.bootstrap_servers, topic)[0][0].value == b'{"email" : "' + hidden + b'", "n": 1.00}'
    )
    assert planned() == ((1, "same"), {"flow": 1, "state": "same"})

    file.write_text(SECOND)
    assert planned() == ((2, "changed"), {"flow": 1, "state": "changed"})
    more(6)
    report, code = verify(link, "--allow-behind")
    assert (code, report["behind"]) == (0, 5) and counts(report)[1:] == (5, 4, 2)
    assert link.copy() == (0, 0)
    report, code = verify(link)
    # The mask's key stands in the file no longer: of what the first version made the value is not known.
    assert (code, report["at"], counts(report)) == (0, {}, (14, 12, 10, 2))
    assert "4 records were compared without their value" in report["notes"][0].replace(
        "5 records", "4 records"
    )

    # Without PIPELINE the link is told that it has none any more.
    more(12)
    assert plain.copy() == (0, 0)
    assert [m.pipeline for m in plain.mappings(topic)[0]][-1] == 3
    file.write_text(FIRST)
    report, code = verify(link)
    assert (code, report["at"], report["notes"], counts(report)) == (0, {}, [], (21, 19, 10, 2))
    versions = run(link, "pipeline", "history", "--partitions")[0]
    began = [
        (v["version"], [(p["topic"], p["partition"], p["offset"]) for p in v["partitions"]]) for v in versions
    ]
    assert began == [(1, [(topic, 0, 0)]), (2, [(topic, 0, 7)]), (3, [(topic, 0, 14)])]
    assert planned() == ((4, "changed"), {"flow": 1, "state": "new"})

    # What was filtered is delivered by somebody, and what a version made once more.
    there = read_all(target.bootstrap_servers, topic)[0]
    test_record, last = some(0, 6)[2], there[-1]
    produce(
        target.bootstrap_servers,
        topic,
        [test_record, Record(last.value, last.key, 0, last.timestamp, last.headers)],
    )
    report, code = verify(link)
    found = {kind: (count, version) for kind, (count, _, _, version) in report["at"].items()}
    assert (code, found) == (1, {"foreign": (1, 3), "duplicated": (1, 3)})


def test_a_record_that_a_stage_fails_on_is_told_and_is_no_loss_once_an_operator_has_accepted_it(
    source: Kafka, piped: tuple[Link, str, Path]
) -> None:
    link, topic, file = piped
    file.write_text(FIRST)
    produce(source.bootstrap_servers, topic, [*some(0, 2)[:2], Record(b"no json"), *some(3, 2)[:2]])
    link.copy()
    assert link.halted() == {(topic, 0): "stage-failed"}
    report, code = verify(link, "--allow-behind")
    assert (code, report["at"], report["behind"]) == (1, {"halted": (1, 2, None, 1)}, 3)
    assert "no json" not in report["findings"]["halted"]["detail"]
    link.accept_loss(topic, 0, 2, 3)
    link.replicate()
    assert link.copy() == (0, 0)
    report, code = verify(link)
    assert (code, report["at"], report["equal"]) == (0, {}, 4)
    assert report["notes"] == ["an operator accepted the loss of 1 source offsets"]


def test_a_compacted_topic_is_planned_and_verified(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    topic, file = names.topic("orders"), tmp_path / "pipeline.yaml"
    create_topic(source.bootstrap_servers, topic, 1, {"cleanup.policy": "compact"})
    produce(source.bootstrap_servers, topic, some(0, 6) + some(2, 4))
    link = Link(source.bootstrap_servers, target.bootstrap_servers, names.link, topic, PIPELINE=str(file))
    file.write_text(FIRST + "      - key: value.n\n")
    report, code = run(link, "plan", "--seconds", "0.1")
    assert code == 1 and "stage 3 (key) makes other keys" in report["failures"][0]
    assert any("stage 1 (filter) leaves records out" in warning for warning in report["warnings"])
    file.write_text(FIRST.replace("true}}", "true}, otherwise: tombstone}"))
    report, code = run(link, "plan", "--seconds", "0.1")
    assert code == 0 and not any("compacted" in warning for warning in report["warnings"])
    assert link.copy() == (0, 0)
    report, code = verify(link)
    # Compaction may have been there already.
    assert (code, report["at"], report["filtered"]) == (0, {}, 0)
    assert 7 <= report["equal"] == report["destination_records"]
    produce(target.bootstrap_servers, topic, [some(2, 1)[0]])
    report, code = verify(link)
    assert code == 1 and list(report["at"]) == ["altered"]


def test_a_group_before_a_filtered_record_is_cut_over_to_the_next_one_that_was_kept(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path, piped: tuple[Link, str, Path]
) -> None:
    (link, topic, file), group = piped, f"{names.link}.g"
    produce(source.bootstrap_servers, topic, some(0, 6))
    commit(source.bootstrap_servers, group, topic, 2)
    file.write_text(FIRST)
    with link.running():
        wait_until(lambda: link.arrived(topic) == [5], "the records")
        report, code = run(link, "cutover", "--memory", str(tmp_path / "memory.json"), "--quiet", "1")
    assert code == 0, report
    (compared,) = (step["found"] for step in report["steps"] if step["name"] == "verify")
    # With its keys: nothing is left out of the comparison.
    assert compared == ["5 records equal"]
    assert committed(target.bootstrap_servers, group, topic) == 2
    assert read_all(target.bootstrap_servers, topic)[0][2].key == b"k3"


@pytest.mark.whole
def test_beside_a_running_link_whose_pipeline_changes_verify_finds_nothing_wrong(
    source: Kafka, piped: tuple[Link, str, Path]
) -> None:
    """Promise: whenever it is run, what is there is right by its version, and what is not there is behind."""
    link, topic, file = piped
    file.write_text(FIRST)
    sent = 0

    def load(stop: threading.Event) -> None:
        nonlocal sent
        while not stop.wait(0.2):
            produce(source.bootstrap_servers, topic, some(sent, 50)[:50])
            sent += 50

    with link.running():
        with beside(load, 20):
            for text in (SECOND, FIRST, SECOND + "      - filter: {drop: {value.n: 1}}\n", FIRST):
                before = len(link.control().pipelines)
                keyed = (
                    text
                    if "keys:" in text
                    else text.replace("version: 1", "version: 1\nkeys: {pii: env:PII}")
                )
                file.write_text(keyed)
                rounds = 0
                while rounds < 2 or len(link.control().pipelines) == before:
                    report, _ = verify(link, "--allow-behind")
                    assert report["at"] == {}, report
                    rounds += 1
        wait_until(lambda: link.mappings(topic)[0][-1].next == sent, "all records", 60)
    report, code = verify(link)
    assert (code, report["at"], report["source_records"]) == (0, {}, sent)
    assert report["transformed"] and report["filtered"] and report["equal"] + report["filtered"] == sent
    by = [m.pipeline for m in link.mappings(topic)[0]]
    # The last one may have come when all was read.
    assert by == sorted(by) and {1, 2, 3, 4} <= {*by}


@pytest.mark.whole
@pytest.mark.parametrize("copied", [0, 7])
def test_a_first_version_that_comes_while_the_link_is_compared_is_not_told_as_altered_records(
    copied: int,
    source: Kafka,
    target: Kafka,
    names: Names,
    piped: tuple[Link, str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where records were copied before, without a pipeline."""
    link, topic, file = piped
    file.write_text(FIRST)
    if copied:
        produce(source.bootstrap_servers, topic, some(0, 6))
        plain = Link(source.bootstrap_servers, target.bootstrap_servers, names.link, topic)
        assert plain.copy() == (0, 0)

    check_all = verify_link._check_all

    def meanwhile(*args: Any) -> Any:
        """Behind the reading of mappings and control topic, before the ends are asked for."""
        produce(source.bootstrap_servers, topic, some(6, 6))
        with redirect_stdout(io.StringIO()):
            assert link.copy() == (0, 0)
        return check_all(*args)

    with monkeypatch.context() as patch:
        patch.setattr(verify_link, "_check_all", meanwhile)
        report, code = verify(link, "--allow-behind")
    assert (code, report["at"], report["equal"]) == (0, {}, copied), report
    report, code = verify(link)
    assert (code, report["at"], report["source_records"]) == (0, {}, copied + 7)
