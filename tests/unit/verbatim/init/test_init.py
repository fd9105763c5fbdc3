"""A link's files from a scan: they load, say why, hold no secret and overwrite nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from common.config import loading
from common.config.settings import Settings
from common.errors import SettingsError
from tests.support.env_files import variables_of
from verbatim.init import files
from verbatim.init.choices import LEAST_STAGING, MOST_STAGING, choose
from verbatim.init.reading import read
from verbatim.main import cli
from verbatim.scan.scan import FORM

GIB = 1 << 30
SIZING = Path(__file__).parents[4] / "docs" / "operations" / "sizing.md"


def topic(name: str, rate: float | None = 0.0, **more: Any) -> dict[str, Any]:
    known = {"topic": name, "partitions": 3, "replication_factor": 3, "bytes": GIB, "bytes_per_second": rate}
    return {**known, "batch_bytes": None, "config": {}, "lacking": [], **more}


def scan(*topics: dict[str, Any], **more: Any) -> dict[str, Any]:
    asked = {"bootstrap_servers": "a:9092, b:9092", "topic": ".*", "topic_exclude": "", "properties": {}}
    return {
        "form": FORM,
        "cluster": "c1",
        "asked": asked | more.pop("asked", {}),
        "topics": list(topics or [topic("orders"), topic("paid")]),
        "groups": [{"group": "billing", "type": "classic"}],
        "unread": [],
        "moving": {"line_mbit": None},
        **more,
    }


def run(folder: Path, found: Any, *options: str, out: str = "out") -> Result:
    file = folder / "scan.json"
    file.write_text(found if isinstance(found, str) else json.dumps(found))
    options = ("--link", "eu", "--target", "t:9092", "--out", str(folder / out), *options)
    return CliRunner().invoke(cli, ["init", str(file), *options], standalone_mode=False)


def written(folder: Path, found: Any, *options: str) -> str:
    done = run(folder, found, *options)
    assert done.exception is None, done.exception
    return (folder / "out" / files.SETTINGS).read_text()


def loaded(text: str) -> Settings:
    settings = loading.load(variables_of(text))
    assert settings.warnings == []
    return settings


def refusal(folder: Path, found: Any, *options: str) -> str:
    error = run(folder, found, *options).exception
    assert isinstance(error, SettingsError) and "\n" not in str(error), error
    assert not (folder / "out").exists()
    return str(error)


def test_the_settings_are_those_of_the_scanned_topics_and_load(tmp_path: Path) -> None:
    found = scan(asked={"topic": "orders, pay.*", "topic_exclude": "payroll"})
    settings = loaded(written(tmp_path, found))
    assert settings.application_name == "eu"
    assert settings.source_bootstrap_servers == "a:9092,b:9092"
    assert settings.destination_bootstrap_servers == "t:9092"
    names = ("orders", "paid", "payroll", "payments", "other")
    assert [name for name in names if settings.selects(name)] == ["orders", "payments"]
    assert (settings.staging_partitions, settings.parallelism) == (LEAST_STAGING, 2)
    assert settings.start_offsets == "earliest"
    assert settings.selects_group("billing")


def test_topics_that_are_named_are_copied_instead(tmp_path: Path) -> None:
    settings = loaded(written(tmp_path, scan(), "--topics", "orders", "--topics", "x.*"))
    assert [name for name in ("orders", "paid", "x1") if settings.selects(name)] == ["orders", "x1"]


def test_what_cant_be_copied_is_left_out_and_the_reason_said(tmp_path: Path) -> None:
    groups = [{"group": "billing", "type": "classic"}, {"group": "shared", "type": "share"}]
    groups.append({"group": "two\nlines=1", "type": "share"})
    unread = [{"what": "topic hidden", "why": "it may not be described"}, {"what": "quotas", "why": "no"}]
    found = scan(topic("orders"), topic("locked", lacking=["READ"]), groups=groups, unread=unread)
    text = written(tmp_path, found)
    settings = loaded(text)
    assert settings.selects("orders") and not settings.selects("locked")
    assert "# Can't be copied: locked: READ not allowed at the source." in text
    assert "# Not seen by the scan: topic hidden: it may not be described" in text and "quotas" not in text
    assert settings.selects_group("billing") and not settings.selects_group("shared")
    assert settings.consumer_groups_exclude == "shared"


def test_offsets_runs_where_the_scan_saw_groups(tmp_path: Path) -> None:
    for number, (groups, told) in enumerate(
        [
            (None, "could not be read"),
            ([], "has no consumer groups"),
            ([{"group": "g", "type": "share"}], "no con"),
        ]
    ):
        here = tmp_path / str(number)
        here.mkdir()
        text = written(here, scan(groups=groups))
        assert told in text and "CONSUMER_GROUPS=" not in text
        assert not (here / "out" / "offsets.yaml").exists()
        assert "offsets" not in (here / "out" / files.COMPOSE).read_text()
    written(tmp_path, scan())
    assert (tmp_path / "out" / "offsets.yaml").exists()


def test_cpus_go_by_rates_and_by_how_large_batches_are() -> None:
    """Sizing's example of 1 GB/s comes to two cores, in small batches to three times as many."""

    def of(rate: float, *batches: int | None) -> int:
        topics = [topic(f"t{n}", rate / len(batches), batch_bytes=size) for n, size in enumerate(batches)]
        return choose(read(json.dumps(scan(*topics)).encode(), "s"), "eu", "t:9092", []).cpus

    assert "two cores for either application" in SIZING.read_text()
    assert [of(1e9, None), of(1e9, 1 << 20), of(1.0, 100)] == [2, 2, 2]
    assert of(1e9, 16 << 10) == 6 and of(1e9, 16 << 10, 1 << 20) == 4


def test_staging_and_lanes_go_by_rates_as_sizing_says() -> None:
    """The example of 1 GB/s: its partitions, and twice its lanes for reserve."""
    partitions, lanes = (
        int(re.search(rf"^\| {what} \| (\d+) \|", SIZING.read_text(), re.MULTILINE)[1])  # type: ignore[index]
        for what in ("`STAGING_PARTITIONS`", "lanes of either application")
    )

    def of(rate: float, line: float | None = None) -> tuple[int, int]:
        found = scan(topic("a", rate), moving={"line_mbit": line})
        chosen = choose(read(json.dumps(found).encode(), "s"), "eu", "t:9092", [])
        return chosen.staging_partitions, chosen.lanes

    assert of(1e9)[0] == partitions == MOST_STAGING
    assert lanes <= of(1e9)[1] <= 2 * lanes
    assert of(0.0) == (LEAST_STAGING, 2) and of(1e10) == (MOST_STAGING, 58)
    assert of(1e6, 2000.0) == (32, 2), "what lies there comes by the line"


@given(st.floats(0, 1e12))
def test_staging_never_has_fewer_partitions_than_lanes(rate: float) -> None:
    chosen = choose(read(json.dumps(scan(topic("a", rate))).encode(), "s"), "eu", "t:9092", [])
    assert LEAST_STAGING <= chosen.staging_partitions <= MOST_STAGING
    assert 2 <= chosen.lanes <= chosen.staging_partitions
    assert chosen.memory_limit_mib >= chosen.memory_mib + 96 * chosen.lanes


def test_a_link_larger_than_any_that_was_tried_is_told(tmp_path: Path) -> None:
    done = run(tmp_path, scan(topic("a", partitions=5000)))
    assert "note: 5,000 source partitions" in done.output
    assert "# NOTE: 5,000 source partitions" in (tmp_path / "out" / files.SETTINGS).read_text()
    assert "memory: 1280Mi" in (tmp_path / "out" / files.KUSTOMIZATION).read_text()


def test_what_the_scan_does_not_tell_is_a_file_that_the_settings_name(tmp_path: Path) -> None:
    properties = {
        "sasl.mechanism": "PLAIN",
        "sasl.password": None,
        "sasl.username": "reader",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": None,
    }
    text = written(tmp_path, scan(asked={"properties": properties}))
    (tmp_path / "out" / "secrets" / "source.sasl.password").write_text("s3cret\n")
    text = text.replace(files.MOUNTED, str(tmp_path / "out" / "secrets"))
    config = loaded(text).client_config("source", "consumer")
    assert config["sasl.password"] == "s3cret" and config["sasl.username"] == "reader"
    assert config["ssl.ca.location"] == str(tmp_path / "out" / "secrets" / "source.ssl.ca")
    kustomization = (tmp_path / "out" / files.KUSTOMIZATION).read_text()
    assert (
        "- secrets/source.sasl.password\n" in kustomization and "- secrets/source.ssl.ca\n" in kustomization
    )
    assert (tmp_path / "out" / ".gitignore").read_text() == "secrets/\n"


def test_nothing_is_written_over(tmp_path: Path) -> None:
    here = tmp_path / "out"
    here.mkdir()
    (here / "mine").write_text("mine")
    error = run(tmp_path, scan()).exception
    assert (
        isinstance(error, SettingsError) and str(error) == f"--out: {here} is not empty; nothing was written"
    )
    assert [file.name for file in here.iterdir()] == ["mine"] and (here / "mine").read_text() == "mine"
    (here / "mine").unlink()
    assert run(tmp_path, scan()).exception is None, "an empty folder will do"
    first = {file: file.read_text() for file in here.rglob("*") if file.is_file()}
    assert isinstance(run(tmp_path, scan(topic("other"))).exception, SettingsError)
    assert first == {file: file.read_text() for file in here.rglob("*") if file.is_file()}


def test_the_same_scan_gives_the_same_files(tmp_path: Path) -> None:
    found = scan(topic("a", 3.0), topic("b", bytes=None), topic("c", lacking=["READ"]))
    for out in ("one", "two"):
        assert run(tmp_path, found, out=out).exception is None
    one, two = (
        {str(file.relative_to(tmp_path / out)): file.read_text() for file in (tmp_path / out).rglob("*.*")}
        for out in ("one", "two")
    )
    assert one == two and len(one) > 8


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ("", "no JSON"),
        ("[" * 2000, "no JSON"),
        ("[]", "not what `verbatim scan"),
        ('{"cluster": "c1", "topics": []}', "not what `verbatim scan"),
        (scan(form="1"), "not what `verbatim scan"),
        (scan(form=FORM + 1), f"of form {FORM + 1}; this version reads {FORM}"),
        (scan(topics=None), "topics: "),
        (scan(topic("a b")), "topics.0.topic: "),
        (scan(topic("a\nLOG_LEVEL=DEBUG")), "topics.0.topic: "),
        (scan(asked={"bootstrap_servers": "a:9092\nLOG_LEVEL=DEBUG"}), "asked.bootstrap_servers: "),
        (scan(asked={"properties": {"sasl.username": "$HOME"}}), "asked.properties.sasl.username: "),
        (scan(asked={"properties": {"a=b\nc": None}}), "asked.properties."),
        (scan(cluster="c\n1"), "cluster: "),
        (scan(topic("a", -1.0)), "topics.0.bytes_per_second: "),
        (scan(topic("a", 1e308), topic("b", 1e308)), "topics.0.bytes_per_second: "),
        (scan(topic("a", lacking=["READ"])), "no topic of the scan is selected"),
    ],
)
def test_what_is_no_scan_or_a_newer_one_is_refused_in_a_line(tmp_path: Path, found: Any, why: str) -> None:
    assert why in refusal(tmp_path, found)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--topics", "nope"], "--topics: nope is not in the scan"),
        (["--topics", "nope.+"], "--topics: no topic of the scan is selected"),
        (["--topics", "a$"], "--topics: a blank, a quote, a $"),
        (["--topics", "("], "--topics: entry '('"),
        (["--link", "a b"], "APPLICATION_NAME: "),
        (["--target", "t:9092\nLOG_LEVEL=DEBUG"], "--target: "),
        (["--target", "t:port"], "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS: "),
    ],
)
def test_an_option_that_would_make_no_link_is_refused(tmp_path: Path, options: list[str], why: str) -> None:
    assert refusal(tmp_path, scan(), *options).startswith(why)


def test_a_scan_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        cli, ["init", str(tmp_path / "none"), "--link", "eu", "--target", "t:1"], standalone_mode=False
    )
    assert isinstance(done.exception, SettingsError) and "No such file" in str(done.exception)
