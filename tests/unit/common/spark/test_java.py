"""Java that Spark can't run on is one line, before any broker is tried; so is a JVM that has ended."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.errors import SettingsError
from common.spark import java


def launcher(folder: Path, script: str) -> dict[str, str]:
    """An environment whose JAVA_HOME has a java of this script."""
    path = folder / "bin" / "java"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"JAVA_HOME": str(folder), "PATH": os.environ["PATH"]}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'openjdk version \"11.0.22\" 2024-01-16' >&2", "is Java 11.0.22, and Spark needs 17 or newer"),
        ("echo 'java version \"1.8.0_401\"' >&2", "is Java 8.0_401, and Spark needs 17 or newer"),
        (
            "echo 'libjli.so: cannot open shared object' >&2; exit 127",
            r"can't be run \(libjli.so: cannot open",
        ),
        ("exit 1", r"can't be run \(it says nothing\)"),
    ],
)
def test_a_java_that_spark_cannot_run_on_is_refused(tmp_path: Path, script: str, said: str) -> None:
    with pytest.raises(SettingsError, match=rf"^JAVA_HOME: {tmp_path}/bin/java {said}"):
        java.check(launcher(tmp_path, script))


def test_no_java_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=f"^JAVA_HOME: {tmp_path}/gone/bin/java can't be run; it must be the folder"
    ):
        java.check({"JAVA_HOME": f"{tmp_path}/gone", "PATH": os.environ["PATH"]})
    with pytest.raises(SettingsError, match="^JAVA_HOME: not set, and there is no java on the PATH"):
        java.check({"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    "version", ['openjdk version "17.0.12" 2024-07-16', 'openjdk version "21" 2023-09-19']
)
def test_what_spark_runs_on_passes(tmp_path: Path, version: str) -> None:
    java.check(launcher(tmp_path, f"echo '{version}' >&2"))
    java.check()


def test_where_sparks_own_script_chooses_java_it_is_left_to_that(tmp_path: Path) -> None:
    (tmp_path / "spark-env.sh").touch()
    java.check({"JAVA_HOME": "/gone", "SPARK_CONF_DIR": str(tmp_path)})
    java.check({"JAVA_HOME": "/gone", "PYSPARK_GATEWAY_PORT": "1"})


def test_a_wrong_java_home_is_one_line_before_any_broker_is_tried(tmp_path: Path) -> None:
    """Promise: at once, not after a minute of brokers; no traceback."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(tmp_path),
        "APPLICATION_NAME": "l",
        "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "KAFKA_CLUSTERS_SOURCE_TOPIC": "orders",
        "HEALTH_PORT": "0",
    }
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", "from verbatim_kafka.scripts import deduplicator; deduplicator()"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"error: JAVA_HOME: {tmp_path}/bin/java can't be run; it must be the folder of Java 17 or newer, or not be set where the PATH has one"
    ]
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 3", "ran out of memory; raise spark.driver.memory"),
        ("kill -9 $$", "was ended by SIGKILL; by the kernel, if memory is short"),
        ("kill -15 $$", "was ended by SIGTERM"),
        ("exit 1", r"ended by itself \(exit code 1\)"),
    ],
)
def test_what_became_of_a_jvm_is_told(script: str, why: str) -> None:
    process = subprocess.Popen(["sh", "-c", script])
    process.wait()
    found = java.ended(SimpleNamespace(proc=process))
    assert found is not None and found.startswith("Spark's JVM ") and re.search(why, found)


def test_a_jvm_that_runs_or_is_not_ours_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "ENDS_S", 0.1)
    with subprocess.Popen(["sleep", "20"]) as process:
        assert java.ended(SimpleNamespace(proc=process)) is None
        process.kill()
    assert java.ended(SimpleNamespace()) is None
    assert java.ended(None) is None
