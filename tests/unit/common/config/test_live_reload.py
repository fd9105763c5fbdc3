"""The settings file while a process runs: what is taken over, what is only named, and what a bad or
half-written file does: nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common import ports
from common.config import live_reload, loading
from common.config.fields import FIELDS, LIVE
from common.config.live_reload import LiveFile
from common.config.settings import Settings

REQUIRED = """\
KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS: s:1
KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS: t:1
"""
TOPIC, EXCLUDE = "KAFKA_CLUSTERS_SOURCE_TOPIC", "KAFKA_CLUSTERS_SOURCE_TOPIC_EXCLUDE"


class Process:
    """One that looks at its file; `turn` is a look, LOOK_S after the last."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch, **flags: str) -> None:
        self.now = 100.0
        monkeypatch.setattr(ports, "monotonic", lambda: self.now)

        def load() -> Settings:
            return loading.load({"OFFSETS_INTERVAL": "7s"}, file, flags)

        self.live = LiveFile(file, load)
        self.settings = load()

    def turn(self) -> bool:
        self.now += live_reload.LOOK_S
        found = self.live.look(self.settings)
        self.settings = found or self.settings
        return found is not None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "link.yaml"
    path.write_text(f"{REQUIRED}{TOPIC}: orders\n")
    return path


@pytest.fixture
def process(file: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(file, monkeypatch)


def test_what_is_live_is_taken_over_and_the_rest_is_named_once(
    file: Path, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    assert not process.turn()
    changed = f"{REQUIRED}{TOPIC}: orders,payments\nLOG_LEVEL: DEBUG\nSTAGING_PARTITIONS: 4\nKAFKA_CLUSTERS_SOURCE_CONSUMER_SASL_PASSWORD: s3cret\n"
    file.write_text(changed)
    caplog.set_level("INFO")
    assert [process.turn() for _ in range(4)] == [False, True, False, False]
    assert process.settings.selects("payments") and process.settings.log_level == "DEBUG"
    assert process.settings.staging_partitions == 8
    assert [record.getMessage() for record in caplog.records] == [
        f"{file} has changed, but takes a restart: STAGING_PARTITIONS, client properties (source.consumer)",
        f"{file} has changed: {TOPIC}, LOG_LEVEL",
    ]
    caplog.clear()
    file.write_text(changed.replace("DEBUG", "INFO"))
    assert [process.turn() for _ in range(2)] == [False, True]
    assert [record.getMessage() for record in caplog.records] == [f"{file} has changed: LOG_LEVEL"]


def test_a_file_that_is_no_good_is_one_warning_and_the_old_settings_stay(
    file: Path, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    before = process.settings
    for text in (
        "- no mapping",
        f"{REQUIRED}{TOPIC}: 'broken('\nLOG_LEVEL: DEBUG\n",
        f"{REQUIRED}{TOPIC}: a\nLOUD: 1\n",
    ):
        caplog.clear()
        file.write_text(text)
        assert not any(process.turn() for _ in range(4))
        assert process.settings is before
        assert len(caplog.records) == 1 and "is not taken over" in caplog.text
    caplog.clear()
    file.unlink()
    assert not any(process.turn() for _ in range(4))
    assert "can't read" in caplog.text and len(caplog.records) == 1
    file.write_text(f"{REQUIRED}{TOPIC}: payments\n")
    assert [process.turn() for _ in range(2)] == [False, True]
    assert process.settings.selects("payments")


def test_a_file_that_is_being_written_is_not_believed(file: Path, process: Process) -> None:
    file.write_text(f"{REQUIRED}{TOPIC}: orders,pay")
    assert not process.turn()
    file.write_text(f"{REQUIRED}{TOPIC}: orders,payments\n")
    assert not process.turn()
    assert process.turn()
    assert process.settings.source_topic == "orders,payments"


def test_a_mounted_config_map_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes makes a new folder and swaps the link to it; the file's own path is a link into that."""
    for number, topic in enumerate(("orders", "payments")):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "link.yaml").write_text(f"{REQUIRED}{TOPIC}: {topic}\n")
    (tmp_path / "..data").symlink_to("..0")
    file = tmp_path / "link.yaml"
    file.symlink_to("..data/link.yaml")
    process = Process(file, monkeypatch)
    (tmp_path / "..tmp").symlink_to("..1")
    os.replace(tmp_path / "..tmp", tmp_path / "..data")
    assert [process.turn() for _ in range(2)] == [False, True]
    assert process.settings.source_topic == "payments"


def test_flags_and_variables_still_win(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(file, monkeypatch, LOG_LEVEL="WARNING")
    file.write_text(f"{REQUIRED}{TOPIC}: orders\nLOG_LEVEL: DEBUG\nOFFSETS_INTERVAL: 1s\n{EXCLUDE}: x\n")
    assert [process.turn() for _ in range(2)] == [False, True]
    s = process.settings
    assert (s.log_level, s.offsets_interval_s, s.source_topic_exclude) == ("WARNING", 7.0, "x")


def test_whoever_takes_over_does_not_wait_for_a_second_look(file: Path, process: Process) -> None:
    file.write_text(f"{REQUIRED}{TOPIC}: payments\n")
    found = process.live.look(process.settings, at_once=True)
    assert found is not None and found.source_topic == "payments"


def test_nothing_is_live_that_a_link_is_made_with() -> None:
    assert set(FIELDS) >= LIVE
    assert not LIVE & {
        "APPLICATION_NAME",
        "STAGING_PARTITIONS",
        "CONTROL_TOPIC",
        "STATE_PATH",
        "START_OFFSETS",
        "HEALTH_PORT",
    }
