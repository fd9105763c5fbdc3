"""Which archive of classes belongs to which JVM, and that one is kept whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.spark import class_archive, jars


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VERBATIM_JARS", str(tmp_path / "jars"))
    path = tmp_path / "a.jar"
    path.write_bytes(b"1")
    os.utime(path, (1000, 1000))
    return path


def test_an_archive_belongs_to_the_jars_as_they_are_and_to_their_order(jar: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.jar"
    other.write_bytes(b"2")
    before = class_archive.archive(f"{jar}:{other}")
    assert before.parent == jars.cache_folder() and before == class_archive.archive(f"{jar}:{other}")
    assert class_archive.archive(f"{other}:{jar}") != before
    jar.write_bytes(b"11")
    os.utime(jar, (1000, 1000))
    larger = class_archive.archive(f"{jar}:{other}")
    os.utime(jar, (1001, 1001))
    assert len({before, larger, class_archive.archive(f"{jar}:{other}")}) == 3


def test_another_java_has_another_archive(jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes = []
    for name in ("17", "21"):
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").touch(mode=0o755)
        (home / "release").write_text("JAVA_VERSION=17")
        homes.append(home)
    found = set()
    for home in homes:
        monkeypatch.setenv("JAVA_HOME", str(home))
        found.add(class_archive.archive(str(jar)))
    (homes[1] / "release").write_text("JAVA_VERSION=21")
    found.add(class_archive.archive(str(jar)))
    assert len(found) == 3


def test_sparks_own_jars_count_and_of_the_rest_what_is_there(jar: Path) -> None:
    own = [str(path) for path in sorted(jars.spark_jars().glob("*.jar"))]
    assert len(own) > 100
    assert (
        class_archive.of_spark("")
        == class_archive.archive(":".join(own))
        == class_archive.of_spark("/nowhere.jar")
    )
    assert class_archive.of_spark(f"{jar}") == class_archive.archive(":".join([str(jar), *own]))


def test_an_archive_is_used_where_it_is_there_and_nobody_has_said_otherwise(tmp_path: Path) -> None:
    found = tmp_path / "classes.jsa"
    assert class_archive.options(found, "") == ()
    to_record = class_archive.recording(found, tmp_path / "recorded")
    found.touch()
    assert class_archive.recording(found, tmp_path / "recorded") == ()
    assert class_archive.options(found, "-Da=b")[0] == f"-XX:SharedArchiveFile={found}"
    for theirs in ("-XX:SharedArchiveFile=/mine", "-Xshare:off", " ".join(to_record)):
        assert class_archive.options(found, f"-Da=b {theirs}") == ()


def test_an_archive_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    recorded, at = tmp_path / "recorded", tmp_path / "jars" / "classes.jsa"
    with pytest.raises(FileNotFoundError):
        class_archive.keep(recorded, at)
    assert not list(at.parent.iterdir())
    recorded.write_bytes(b"classes")
    recorded.chmod(0o400)
    class_archive.keep(recorded, at)
    assert at.read_bytes() == b"classes" and [*at.parent.iterdir()] == [at]
    assert at.stat().st_mode & 0o777 == 0o644
