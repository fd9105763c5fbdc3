"""What STATE_PATH means to Spark and to this machine's disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.config.state_path import parse
from common.errors import SettingsError
from deduplicator.state import local_reader


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ("/data/state", "/data/state"),
        ("/data//state/", "/data/state"),
        ("/data/../state", "/state"),
        ("state", "/here/state"),
        ("./a:b", "/here/a:b"),
        ("/a b#c?d%25 gr\u00fc\u00dfe", "/a b#c?d%25 gr\u00fc\u00dfe"),
        ("file:/data/state", "/data/state"),
        ("file:///data/state/", "/data/state"),
        ("FILE:///data//state", "/data/state"),
        # Hadoop decodes nothing.
        ("file:///a%20b#c?d", "/a%20b#c?d"),
        ("/", "/"),
    ],
)
def test_every_spelling_of_a_folder_is_one_folder(
    monkeypatch: pytest.MonkeyPatch, given: str, folder: str
) -> None:
    monkeypatch.setattr("os.getcwd", lambda: "/here")
    place = parse(given)
    assert (place.hadoop, place.local) == (f"file:{folder}", Path(folder))
    state = place.child("state")
    assert state.hadoop == f"file:{state.local}" == f"file:{folder.rstrip('/')}/state"


@pytest.mark.parametrize(
    ("given", "hadoop"),
    [
        ("s3a://bucket/verbatim/", "s3a://bucket/verbatim"),
        ("s3a://bucket", "s3a://bucket/"),
        ("s3a://bucket//a b#c?d%25", "s3a://bucket/a b#c?d%25"),
        # As Hadoop spells a URL without an authority: Delta compares.
        ("hdfs:///state", "hdfs:/state"),
        ("hdfs://name:8020/state", "hdfs://name:8020/state"),
    ],
)
def test_a_url_of_another_file_system_is_spelt_as_hadoop_spells_it(given: str, hadoop: str) -> None:
    place = parse(given)
    assert (place.hadoop, place.local) == (hadoop, None)
    assert place.child("state").hadoop == f"{hadoop.rstrip('/')}/state"


@pytest.mark.parametrize("given", ["file://host/state", "s3a:bucket/state", "file:state"])
def test_what_is_neither_a_path_nor_a_url_is_refused(given: str) -> None:
    with pytest.raises(SettingsError, match="^STATE_PATH: "):
        parse(given)


def test_no_password_is_shown() -> None:
    assert "hunter2" not in parse("s3a://key:hunter2@bucket/state").shown


@pytest.mark.parametrize("name", ["50%25", "50%", "a\\b"])
def test_a_path_that_the_reader_without_spark_would_take_for_another_is_left_to_spark(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(ValueError, match="its path has"):
        local_reader.rows(tmp_path / name)
