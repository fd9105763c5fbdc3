"""The Spark session: how master, slots and settings turn into properties, and that the JVM lives exactly as
long as asked."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import SettingsError
from common.spark import class_archive, session
from common.spark.master import available_cpus, parse_master
from common.spark.session import effective_conf, spark_defaults

ROOT = Path(__file__).parents[4]


def conf(
    master: str = "local[2]", *, lanes: int | None = None, extra: int = 1, **more: Any
) -> dict[str, str]:
    settings = SimpleNamespace(
        application_name="link",
        spark_master=master,
        state_path=more.pop("state_path", "./state"),
        state_sharing=more.pop("state_sharing", "checked"),
        spark_conf=more.pop("spark_conf", {}),
    )
    return effective_conf(
        settings,  # type: ignore[arg-type]
        lanes=lanes,
        extra_slots=extra,
        jars=more.pop("jars", []),
        delta=more.pop("delta", False),
        environ=more.pop("environ", {"_SPARK_AUTH_SECRET": "s"}),
    )


@pytest.mark.parametrize(
    ("master", "lanes", "extra", "expected"),
    [
        ("local[2]", None, 1, "local[3]"),
        ("local", None, 0, "local[1]"),
        ("local", None, 1, "local[2]"),
        ("local[2]", 5, 1, "local[6]"),
        ("local[4]", 2, 0, "local[2]"),
        ("local[2,3]", None, 1, "local[3,3]"),
        ("local[*]", None, 1, f"local[{available_cpus() + 1}]"),
        ("spark://host:7077", 5, 1, "spark://host:7077"),
        ("local-cluster[1,2,512]", None, 1, "local-cluster[1,2,512]"),
    ],
)
def test_a_local_master_gets_a_slot_for_each_lane_and_the_extra_ones(
    master: str, lanes: int | None, extra: int, expected: str
) -> None:
    assert conf(master, lanes=lanes, extra=extra)["spark.master"] == expected


def test_the_driver_of_a_local_master_listens_on_loopback_only() -> None:
    assert conf()["spark.driver.bindAddress"] == conf()["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in conf("spark://host:7077")


@pytest.mark.parametrize("master", ["local[0]", "local[x]", "local[", "localhost"])
def test_an_ill_formed_local_master_is_refused_by_name(master: str) -> None:
    with pytest.raises(SettingsError, match="^SPARK_MASTER"):
        parse_master(master)


def test_speculation_is_refused_wherever_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="^spark.speculation"):
        conf(spark_conf={"spark.speculation": "TRUE"})
    (tmp_path / "spark-defaults.conf").write_text("spark.speculation true\n")
    with pytest.raises(SettingsError, match="^spark.speculation"):
        conf(environ={"SPARK_CONF_DIR": str(tmp_path)})
    off = conf(environ={"SPARK_CONF_DIR": str(tmp_path)}, spark_conf={"spark.speculation": "false"})
    assert off["spark.speculation"] == "false"


def test_no_lanes_at_all_is_refused() -> None:
    with pytest.raises(SettingsError, match="^PARALLELISM"):
        conf(lanes=0)


def test_settings_win_over_the_conf_directory_which_wins_over_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# comment\n\nspark.driver.memory\t1g\nspark.ui.enabled = true\nspark.a: b c\nspark.driver.extraJavaOptions -Da=1\n"
    )
    environ = {"SPARK_CONF_DIR": str(tmp_path)}
    assert spark_defaults(environ)["spark.a"] == "b c"
    found = conf(environ=environ, spark_conf={"spark.driver.memory": "2g"})
    assert found["spark.driver.memory"] == "2g" and found["spark.ui.enabled"] == "true"
    assert found["spark.driver.extraJavaOptions"].endswith(" -Da=1")
    assert "-XX:+UseSerialGC" in found["spark.driver.extraJavaOptions"]
    assert conf()["spark.driver.memory"] == "512m" and conf()["spark.ui.enabled"] == "false"


def test_delta_joins_what_the_user_has_set_and_its_jars_travel_as_the_master_needs() -> None:
    jars = [Path("/jars/delta.jar"), Path("/jars/storage.jar")]
    local = conf(
        jars=jars,
        delta=True,
        spark_conf={"spark.sql.extensions": "my.Ext", "spark.driver.extraClassPath": "/mine"},
    )
    assert local["spark.sql.extensions"] == "my.Ext,io.delta.sql.DeltaSparkSessionExtension"
    assert local["spark.driver.extraClassPath"] == "/mine:/jars/delta.jar:/jars/storage.jar"
    assert local["spark.databricks.delta.snapshotPartitions"] == "1"
    cluster = conf("spark://host:7077", jars=jars, delta=True, state_path="hdfs://host/state")
    assert cluster["spark.jars"] == "/jars/delta.jar,/jars/storage.jar"
    without = conf(jars=jars)
    assert "spark.sql.extensions" not in without
    assert without["spark.driver.extraClassPath"] == "/jars/delta.jar:/jars/storage.jar"
    assert "spark.jars" not in conf("spark://host:7077", jars=jars)


def test_spark_speaks_to_python_through_sockets_where_their_paths_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = conf()
    folder = session._use_sockets(short)
    assert folder is not None
    with folder:
        assert short["spark.python.unix.domain.socket.enabled"] == "true"
        assert short["spark.python.unix.domain.socket.dir"] == folder.name
        assert Path(folder.name).stat().st_mode & 0o777 == 0o700
    for other in (
        conf("spark://host:7077"),
        conf(spark_conf={"spark.python.unix.domain.socket.enabled": "false"}),
        conf(spark_conf={"spark.python.unix.domain.socket.dir": "/theirs"}),
    ):
        assert_left_as_it_is(other)
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert_left_as_it_is(conf())
    assert not list(long.iterdir())


def assert_left_as_it_is(properties: dict[str, str]) -> None:
    before = dict(properties)
    assert session._use_sockets(properties) is None
    assert properties == before


def test_a_containers_cpu_quota_bounds_the_slots(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert available_cpus(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert available_cpus(tmp_path) == len(os.sched_getaffinity(0))
    assert available_cpus(tmp_path / "none") == len(os.sched_getaffinity(0))


def test_the_jvm_uses_an_archive_of_classes_that_fits_its_class_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what Python workers of this machine import is the installed pyspark."""
    written: list[str] = []

    def launch(**_: Any) -> None:
        found = re.search(r"--properties-file (\S+)", os.environ["PYSPARK_SUBMIT_ARGS"])
        assert found
        written.append(Path(found[1]).read_text())

    archives = {"/jars/delta.jar": tmp_path / "classes.jsa"}
    monkeypatch.setattr(session, "launch_gateway", launch)
    monkeypatch.setattr(class_archive, "of_spark", lambda path: archives.get(path, tmp_path / "none"))
    with_delta = conf(jars=[Path("/jars/delta.jar")], delta=True)
    session._launch(with_delta, "text")
    archives["/jars/delta.jar"].touch()
    session._launch(with_delta, "text")
    session._launch(conf(), "text")
    assert [f"-XX\\:SharedArchiveFile\\={tmp_path}/classes.jsa" in text for text in written] == [
        False,
        True,
        False,
    ]


DRIVER = textwrap.dedent(
    """
    import os, signal, sys, threading, time
    from types import SimpleNamespace
    from common.spark.session import build_session, lanes_of
    from common.spark.usage import usage
    settings = SimpleNamespace(application_name="t", spark_master="local[1]", state_path=".", log_format="text",
                               spark_conf={"spark.hadoop.fs.s3a.secret.key": "swordfish", "spark.x": "a\\\\b c=d:é"})
    signals = []
    signal.signal(signal.SIGINT, lambda *_: signals.append("int"))
    signal.signal(signal.SIGTERM, lambda *_: signals.append("term"))
    spark = build_session(settings, lanes=None, extra_slots=1, delta=False)
    assert lanes_of(spark) == 1
    assert usage(spark) == (2, 1, 0)
    assert spark.conf.get("spark.x") == "a\\\\b c=d:é"
    jvm = spark.sparkContext._gateway.proc.pid
    def lane(batches):
        import pyarrow as pa
        print("lane", os.getpid(), flush=True, file=open(os.environ["LANE_FILE"], "w"))
        time.sleep(3600)
        yield pa.RecordBatch.from_pydict({"x": [1]})
    threading.Thread(daemon=True, target=lambda: spark.range(1, numPartitions=1).mapInArrow(lane, "x long").collect()).start()
    while not os.path.exists(os.environ["LANE_FILE"]) or not open(os.environ["LANE_FILE"]).read().strip():
        time.sleep(0.05)
    while usage(spark) != (2, 1, 1):
        time.sleep(0.05)
    print(jvm, flush=True)
    while len(signals) < 2:
        time.sleep(0.05)
    spark.range(3).count()
    print("still there", flush=True)
    time.sleep(3600)
    """
)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_jvm_outlives_signals_to_the_group_but_never_the_driver(tmp_path: Path) -> None:
    """A terminal's or a supervisor's signal reaches the driver only; a killed driver leaves neither JVM nor
    lane behind."""
    lane_file = tmp_path / "lane"
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        env={**os.environ, "LANE_FILE": str(lane_file), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        assert driver.stdout is not None
        jvm = int(driver.stdout.readline())
        lane = int(lane_file.read_text().split()[1])
        assert b"swordfish" not in Path(f"/proc/{jvm}/cmdline").read_bytes()
        os.killpg(driver.pid, signal.SIGINT)
        os.killpg(driver.pid, signal.SIGTERM)
        assert driver.stdout.readline() == "still there\n"
        assert alive(jvm) and alive(lane)
        driver.kill()
        driver.wait()
        killed = time.monotonic()
        while (alive(jvm) or alive(lane)) and time.monotonic() - killed < 15:
            time.sleep(0.05)
        took = time.monotonic() - killed
        print(f"gone after {took:.1f} s")
        assert not alive(jvm) and not alive(lane)
    finally:
        driver.kill()


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("s3a://bucket/state", {}),
        ("s3://bucket/state", {}),
        ("s3a://bucket/state", {"state_sharing": "shared-volume"}),
        # Delta's own, said once more.
        (
            "s3a://b/s",
            {"spark_conf": {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore"}},
        ),
        # For another scheme.
        (
            "s3a://b/s",
            {"spark_conf": {"spark.delta.logStore.s3.impl": "io.delta.storage.S3DynamoDBLogStore"}},
        ),
    ],
)
def test_state_on_s3_that_two_drivers_could_spoil_is_refused_before_spark_starts(
    path: str, more: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError, match=r"^STATE_PATH: s3.* STATE_SHARING=one-driver"):
        conf(delta=True, state_path=path, **more)


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (
            "s3a://b/s",
            {"spark_conf": {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3DynamoDBLogStore"}},
        ),
        ("s3a://bucket/state", {"state_sharing": "one-driver"}),
        ("abfss://c@a.dfs.core.windows.net/state", {}),
        ("gs://bucket/state", {}),
        ("hdfs:///state", {}),
        ("./state", {}),
    ],
)
def test_state_that_any_number_of_drivers_may_write_is_taken(path: str, more: dict[str, Any]) -> None:
    conf(delta=True, state_path=path, **more)


def test_a_session_without_tables_does_not_ask_where_they_are() -> None:
    conf(delta=False, state_path="s3a://bucket/state")


CLUSTERS = ["yarn", "k8s://https://host:6443", "spark://host:7077"]


@pytest.mark.parametrize("master", CLUSTERS)
def test_on_several_machines_spark_authenticates_and_encrypts(master: str) -> None:
    secret = {"spark.authenticate.secret": "s"} if master.startswith("spark:") else {}
    found = conf(master, spark_conf=secret)
    assert (found["spark.authenticate"], found["spark.network.crypto.enabled"]) == ("true", "true")
    # Spark's own TLS instead.
    assert "spark.network.crypto.enabled" not in conf(
        master, spark_conf=secret | {"spark.ssl.rpc.enabled": "true"}
    )


@pytest.mark.parametrize("master", CLUSTERS)
def test_an_operator_may_leave_spark_unprotected(master: str) -> None:
    found = conf(master, spark_conf={"spark.authenticate": "false"})
    # Encryption without authentication is no conf that Spark takes.
    assert found["spark.authenticate"] == "false" and "spark.network.crypto.enabled" not in found
    found = conf("yarn", spark_conf={"spark.network.crypto.enabled": "false"})
    assert (found["spark.authenticate"], found["spark.network.crypto.enabled"]) == ("true", "false")


def test_a_standalone_cluster_is_not_gone_to_without_its_secret() -> None:
    with pytest.raises(
        SettingsError, match=r"^spark.authenticate.secret: not set; drivers of spark://host:7077 "
    ):
        conf("spark://host:7077", environ={})
    assert conf("spark://host:7077", environ={"_SPARK_AUTH_SECRET": "s"})["spark.authenticate"] == "true"


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]", "spark://127.0.0.1:7077"])
def test_on_one_machine_spark_is_left_as_it_is(master: str) -> None:
    assert not [key for key in conf(master) if key.startswith(("spark.authenticate", "spark.network.crypto"))]
