"""Fetching jars: what is cached needs no network, half a fetch is never taken for a whole one, errors are one
line."""

from __future__ import annotations

import hashlib
import multiprocessing
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from common.spark import jars
from common.spark.jars import JarsMissing, cache_folder, resolve

ALPHA = "org.example:alpha:1.0"
BETA_JAR = "org.example_beta-2.0.jar"


def publish(repository: Path, artifact: str, version: str, needs: str = "") -> None:
    """Put a module into a Maven repository on disk, as Maven lays it out."""
    folder = repository / "org/example" / artifact / version
    folder.mkdir(parents=True)
    dependency = ""
    if needs:
        name, wanted = needs.split(":")
        dependency = (
            "<dependencies><dependency><groupId>org.example</groupId>"
            f"<artifactId>{name}</artifactId><version>{wanted}</version></dependency></dependencies>"
        )
    pom = (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>org.example</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"{dependency}</project>"
    )
    for suffix, content in (("pom", pom.encode()), ("jar", f"jar of {artifact}".encode())):
        file = folder / f"{artifact}-{version}.{suffix}"
        file.write_bytes(content)
        file.with_name(file.name + ".sha1").write_text(hashlib.sha1(content).hexdigest())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache beside a repository on disk that holds alpha 1.0, which needs beta 2.0."""
    repository = tmp_path / "repository"
    publish(repository, "alpha", "1.0", needs="beta:2.0")
    publish(repository, "beta", "2.0")
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", repository.as_uri())
    monkeypatch.setenv("VERBATIM_JARS", str(tmp_path / "cache"))
    return tmp_path / "cache"


def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on nothing can be fetched: the repository is gone, and there is no Java."""
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "file:///nowhere")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")


def test_resolved_once_needs_neither_network_nor_java(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = resolve(ALPHA)
    assert [jar.name for jar in found] == ["org.example_alpha-1.0.jar", BETA_JAR]
    assert found[1].read_bytes() == b"jar of beta"
    cut_off(monkeypatch)
    assert resolve(ALPHA) == found


def test_excluded_artifact_is_left_out_and_cached_apart(cache: Path) -> None:
    assert [jar.name for jar in resolve(ALPHA, exclude=["*:beta"])] == ["org.example_alpha-1.0.jar"]
    assert len(resolve(ALPHA)) == 2


def test_nothing_but_the_jars_stays_in_the_cache(cache: Path) -> None:
    resolve(ALPHA)
    assert {path.name for path in cache.iterdir()} == {".lock", "org.example_alpha_1.0"}


@pytest.mark.parametrize("damage", ["marker", "jar", "size"])
def test_incomplete_folder_is_fetched_again(cache: Path, damage: str) -> None:
    first = resolve(ALPHA)
    if damage == "marker":
        (first[0].parent / "complete.json").unlink()
    elif damage == "jar":
        first[1].unlink()
    else:
        first[1].write_bytes(b"half")
    assert resolve(ALPHA) == first
    assert first[1].read_bytes() == b"jar of beta"


def _resolve_in_child(barrier: Barrier, answers: Queue[int]) -> None:
    barrier.wait()
    answers.put(len(resolve(ALPHA)))


def test_two_processes_at_once_both_get_everything(cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(2), context.Queue()
    children = [context.Process(target=_resolve_in_child, args=(barrier, answers)) for _ in range(2)]
    for child in children:
        child.start()
    assert [answers.get(timeout=60) for _ in children] == [2, 2]
    for child in children:
        child.join()


def test_unknown_coordinate_is_one_line_that_names_it(cache: Path) -> None:
    with pytest.raises(JarsMissing) as caught:
        resolve("org.example:gamma:3.0")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("org.example:gamma:3.0 could not be fetched: ")
    assert "not found" in message
    assert {path.name for path in cache.iterdir()} == {".lock"}


def test_missing_dependency_fails_the_whole(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "repository/org/example/beta/2.0/beta-2.0.jar").unlink()
    with pytest.raises(JarsMissing, match="beta"):
        resolve(ALPHA)


def test_no_java_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(JarsMissing, match="install Java"):
        resolve(ALPHA)


def test_java_home_without_java_is_an_error_not_a_crash(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(JarsMissing, match="/nowhere/bin/java"):
        resolve(ALPHA)


@pytest.mark.parametrize("wrong", ["", "kafka", "a:b", "a:b:c:d", "../a:b:c", "a:b:c d"])
def test_what_is_no_coordinate_is_refused(cache: Path, wrong: str) -> None:
    with pytest.raises(JarsMissing, match="no Maven coordinate"):
        resolve(wrong)


def test_cache_follows_the_xdg_rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VERBATIM_JARS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "verbatim/jars"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home/.cache/verbatim/jars"


def test_delta_leaves_out_what_spark_ships() -> None:
    shipped = set(jars.shipped_by_spark())
    assert {"*:hadoop-client-api", "*:scala-library", "*:parquet-hadoop", "*:jackson-databind"} <= shipped
    assert not {name for name in shipped if "delta" in name or (name[-1].isdigit() and name.endswith(".0"))}
