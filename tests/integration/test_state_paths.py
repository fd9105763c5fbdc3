"""Every kind of STATE_PATH holds the state table over a restart."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from common.errors import SettingsError, StateError
from common.spark.session import build_session, stop_session
from deduplicator.state.table import StateTable
from tests.integration.test_state import KEY, Mappings, history, mapping
from tests.support.s3 import s3, s3a_conf, s3a_jars

pytestmark = pytest.mark.whole

BUCKET = "state"
ODD = "of#it? gr\u00fc\u00dfe"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session that knows s3a."""
    with s3(BUCKET) as endpoint:
        conf = s3a_conf(endpoint) | {"spark.driver.extraClassPath": ":".join(map(str, s3a_jars()))}
        settings = SimpleNamespace(
            application_name="test",
            log_format="text",
            spark_master="local[1]",
            state_path=".",
            state_sharing="checked",
            spark_conf=conf,
        )
        session = build_session(settings, lanes=1, extra_slots=1, delta=True)  # type: ignore[arg-type]
        yield session
        stop_session(session)


@pytest.fixture
def mappings(target: Any) -> Mappings:
    return Mappings(target.bootstrap_servers)


def opened(spark: SparkSession, path: str, mappings: Mappings, sharing: str = "checked") -> StateTable:
    """The table as a driver that has just started has it: nothing is remembered of an earlier one."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    return StateTable(spark, path, config=mappings.config, topic=mappings.topic, sharing=sharing)


# Other spellings of these mean the same to Spark: tests/unit/common/config/test_state_path.py.
@pytest.mark.parametrize(
    "path", [f"./{ODD}", f"file:///{{folder}}/{ODD} 50%25", f"s3a://{BUCKET}//{ODD} 50%25/"]
)
def test_the_state_is_the_same_after_a_restart_wherever_it_lies(
    spark: SparkSession, mappings: Mappings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, path: str,
) -> None:  # fmt: skip
    """Promise: what STATE_PATH says is written, found and written on, by Spark and by the reader without it,
    in one place alone."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)
    given = path.replace("{folder}", str(tmp_path)) + "/link"
    mappings.write(mapping(0, 5))
    opened(spark, given, mappings).fold()
    again = opened(spark, given, mappings)
    assert again.load().states[KEY].next == 5
    mappings.write(mapping(5, 9))
    again.fold()
    last = opened(spark, given, mappings)
    state = last.load().states[KEY]
    assert (state.next, state.records, len(history(last))) == (9, 9, 2)
    in_store = given.startswith("s3a:")
    # By Spark only where it must be; and nothing lies anywhere else.
    assert ("is read by Spark" in caplog.text) is ("%" in path and not in_store)
    expected = [] if in_store else [path.rpartition("/")[2]]
    assert [folder.name for folder in tmp_path.iterdir()] == expected


def test_a_shared_volume_that_executors_do_not_have_is_refused(
    spark: SparkSession, mappings: Mappings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(spark, str(tmp_path / "volume"), mappings, "shared-volume").check()
    monkeypatch.setattr("deduplicator.state.table._where_missing", lambda _: lambda _: ["worker-7"])
    table = opened(spark, str(tmp_path / "volume"), mappings, "shared-volume")
    with pytest.raises(SettingsError, match="is not the same on executor worker-7"):
        table.check()
    with pytest.raises(StateError, match="is not the same on executor worker-7"):
        table.fold(attempts=1)
    assert [file.name for file in (tmp_path / "volume").iterdir()] == [".lock"]
