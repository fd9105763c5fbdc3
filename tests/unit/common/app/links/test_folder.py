"""A folder of links' settings: which files count, whose names links have, what a file may not say."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from common.app.links.folder import LinkFolder
from common.config import loading
from common.errors import SettingsError
from tests.support.made_up_links import LINK


def folder_of(path: Path, **flags: str) -> LinkFolder:
    return LinkFolder(path, functools.partial(loading.load, flags=flags), flags)


def test_a_link_has_its_files_name_unless_it_says_another(tmp_path: Path) -> None:
    (tmp_path / "east.yaml").write_text(LINK)
    (tmp_path / "west.yml").write_text(f"{LINK}APPLICATION_NAME: other\n")
    for name in (".hidden.yaml", "README.md", "east.yaml.bak"):
        (tmp_path / name).write_text("not: a link")
    folder = folder_of(tmp_path)
    files = folder.files()
    assert sorted(files) == ["east", "west"]
    assert [folder.load(file).application_name for file in files.values()] == ["east", "other"]
    assert folder.load(files["east"]).source_bootstrap_servers == "source:9092"


def test_what_is_given_for_all_counts_for_all_and_no_file_says_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "east.yaml"
    file.write_text(LINK)
    monkeypatch.setenv("STAGING_PARTITIONS", "7")
    folder = folder_of(tmp_path, TOPIC_REFRESH_INTERVAL="3s")
    found = folder.load(file)
    assert (found.staging_partitions, found.topic_refresh_interval_s) == (7, 3.0)
    for line in ("STAGING_PARTITIONS: 8", "TOPIC_REFRESH_INTERVAL: 4s"):
        file.write_text(f"{LINK}{line}\n")
        with pytest.raises(
            SettingsError, match=rf"^{line.partition(':')[0]} \(in .*east.yaml\): is given for all"
        ):
            folder.load(file)


@pytest.mark.parametrize(
    "line", ["SPARK_MASTER: local", "HEALTH_PORT: 1", "LOG_LEVEL: DEBUG", "INSTANCE_ID: a"]
)
def test_what_is_one_for_the_process_is_no_links_to_say(tmp_path: Path, line: str) -> None:
    file = tmp_path / "east.yaml"
    file.write_text(f"{LINK}{line}\n")
    with pytest.raises(
        SettingsError, match=rf"^{line.partition(':')[0]} \(in .*east.yaml\): is one for all links"
    ):
        folder_of(tmp_path).load(file)


def test_one_name_for_all_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"^APPLICATION_NAME: .*each link's own"):
        folder_of(tmp_path, APPLICATION_NAME="all")
    monkeypatch.setenv("APPLICATION_NAME", "all")
    with pytest.raises(SettingsError, match=r"^APPLICATION_NAME: "):
        folder_of(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^--links: can't read .*gone: No such file"):
        folder_of(tmp_path / "gone").files()
