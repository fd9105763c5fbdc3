"""Starts Spark for either application: master, slots, heap, jars and the JVM's own session; knows no Kafka
and no table.

The JVM is kept small and quiet, and out of the process group: a SIGINT or SIGTERM sent to the group reaches
only the Python driver, which can then end its lanes before it stops Spark. The JVM still dies with the
driver, whatever ends that, because it reads end-of-file from the pipe that is its standard input.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from common import log_lines
from common.config import state_path
from common.errors import SettingsError, VerbatimError
from common.spark import class_archive, jars, java, jvm_log, worker_daemon, worker_python
from common.spark.master import parse_master
from common.spark.protection import protect
from common.spark.usage import usage

if TYPE_CHECKING:
    from common.config.settings import Settings

EXECUTORS_TIMEOUT_S = 60.0
"""How long a cluster gets to register its first executors."""

_SETTLED_S = 5.0
"""Executors register one by one: without a wanted number of lanes, the count must have stood still this
long."""

DAEMON = "verbatim_kafka.worker_daemon"
"""The module that Spark's Python workers are forked from, by the name that a wheel's users import it by."""

_CLASS_PATH = "spark.driver.extraClassPath"
_LANES_KEY = "spark.verbatim.lanes"
_JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # the JVM carries plans, not records: compiling them harder only costs memory
    "-XX:MaxMetaspaceSize=320m",
    "-XX:ReservedCodeCacheSize=96m",
    "-XX:MaxDirectMemorySize=128m",
    "-XX:MinHeapFreeRatio=10",
    "-XX:MaxHeapFreeRatio=30",
    "-Xss1m",
    "-XX:-UsePerfData",
    java.OUT_OF_MEMORY,
)
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # At the default of 50, every tenth commit of a tiny table (its checkpoint) takes seconds.
    "spark.databricks.delta.snapshotPartitions": "1",
    # A MERGE copies a source that might change between its passes; committed mappings of a given range can't.
    "spark.databricks.delta.merge.materializeSource": "none",
}
_DEFAULTS = {
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "5",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": DAEMON,
    # Frames and fetched batches of a megabyte come and go: given back to the system each time, every page of
    # the next one faults again. Measured with 200 B records: 12 % of all CPU.
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    # Arrow's own allocator gives back what is free after 10 ms, whatever is said to malloc. With 1 KB
    # records, 8,000 faults/s become 1,500.
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.adaptive.enabled": "false",
    # Generating and compiling Java costs more than it saves on plans of a few rows, and fills the metaspace.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
}
_SOCKETS = "spark.python.unix.domain.socket"
_SOCKET_NAME = "/.00000000-0000-0000-0000-000000000000.sock"
_SOCKET_PATH = 103
"""Bytes that the path of a Unix socket may have on any system."""


def spark_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """The properties of SPARK_CONF_DIR/spark-defaults.conf ({} without one), read as spark-submit reads
    them."""
    directory = environ.get("SPARK_CONF_DIR")
    path = Path(directory) / "spark-defaults.conf" if directory else None
    if path is None or not path.is_file():
        return {}
    found = {}
    for line in path.read_text().splitlines():
        line = line.strip()
        if line and line[0] not in "#!":
            key, value = re.fullmatch(r"(\S+?)(?:\s*[=:]\s*|\s+|$)(.*)", line).groups()  # type: ignore[union-attr]
            found[key] = value.strip()
    return found


def effective_conf(
    settings: Settings,
    *,
    lanes: int | None,
    extra_slots: int,
    jars: list[Path],
    delta: bool,
    environ: Mapping[str, str],
) -> dict[str, str]:
    """Every Spark property of the session: built-in defaults < SPARK_CONF_DIR < `settings.spark_conf` < what
    slots demand.

    `jars` are Delta's; a session without Delta has them on a local class path too, so that one archive of
    classes serves both. Raises SettingsError for speculation, for a PARALLELISM below one, and for a state
    path that two drivers would spoil. Pure, but for reading spark-defaults.conf and finding the temporary
    folder.
    """
    given = _given(settings, environ)
    if given.get("spark.speculation", "false").strip().lower() == "true":
        raise SettingsError(
            "spark.speculation: a second copy of a lane would fence the first, for ever; leave speculation off"
        )
    if lanes is not None and lanes < 1:
        raise SettingsError(f"PARALLELISM: {lanes} lanes copy nothing; set at least 1")
    if delta:
        check_state_writers(settings, environ)
    master = parse_master(settings.spark_master)
    conf = {**_DEFAULTS, "spark.app.name": settings.application_name}
    # Nothing is kept there, but Spark makes it, by default where the process was started.
    conf["spark.sql.warehouse.dir"] = f"{tempfile.gettempdir()}/verbatim-warehouse"
    if master.local:
        assert master.threads is not None
        lanes = lanes or master.threads
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        failures = f",{master.failures}" if master.failures else ""
        url = f"local[{lanes + extra_slots}{failures}]"
    else:
        url = master.url
    joined = {"spark.sql.extensions": ",", "spark.jars": ",", _CLASS_PATH: os.pathsep}
    added = {}
    if delta:
        conf |= _DELTA
        added["spark.sql.extensions"] = _DELTA["spark.sql.extensions"]
    if master.local and jars:
        # Put on the class path at launch: spark.jars would copy each file and load it through one more class
        # loader.
        added[_CLASS_PATH] = os.pathsep.join(map(str, jars))
    elif delta:
        added["spark.jars"] = ",".join(map(str, jars))
    conf |= given
    for key, value in added.items():
        theirs = given.get(key)
        conf[key] = f"{theirs}{joined[key]}{value}" if theirs and value not in theirs else value
    conf["spark.driver.extraJavaOptions"] = " ".join(
        [*_JVM_FLAGS, given.get("spark.driver.extraJavaOptions", "")]
    ).strip()
    conf["spark.master"] = url
    protect(conf, environ)
    if lanes is not None:
        conf[_LANES_KEY] = str(lanes)
    return conf


def check_state_writers(settings: Settings, environ: Mapping[str, str]) -> None:
    """Raise SettingsError for a state path that two drivers would spoil."""
    state_path.check_writers(settings.state_path, settings.state_sharing, _given(settings, environ))


def _given(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    return {**spark_defaults(environ), **settings.spark_conf}


def build_session(
    settings: Settings, *, lanes: int | None, extra_slots: int, delta: bool, worker_imports: str | None = None
) -> SparkSession:
    """Start the application's only Spark session, whose Python workers find the module `worker_imports`
    imported.

    `lanes`: how many lanes are wanted (PARALLELISM), None for as many as the slots allow. `extra_slots`:
    slots kept for other queries: a local master gets that many more threads, a cluster that many fewer lanes.
    Ask `lanes_of(session)` for the outcome. Raises SettingsError; takes about 5 s, on a cluster up to
    EXECUTORS_TIMEOUT_S longer.
    """
    if SparkContext._active_spark_context is not None:
        raise RuntimeError("a Spark session is already running in this process")
    found = jars.resolve(jars.DELTA) if delta else jars.known(jars.DELTA)
    conf = effective_conf(
        settings, lanes=lanes, extra_slots=extra_slots, jars=found, delta=delta, environ=os.environ
    )
    if worker_imports is not None:
        conf[f"spark.executorEnv.{worker_daemon.IMPORTS}"] = worker_imports
    sockets = _use_sockets(conf)
    # An executor of a cluster has its own Python; a local one must have this one, with these packages.
    if conf["spark.master"].startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", worker_python.executable())
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", worker_python.executable())
    worker_python.look_in_our_folder_first()
    os.environ.setdefault(
        "MALLOC_ARENA_MAX", "2"
    )  # glibc gives each of the JVM's threads 64 MB of arena otherwise
    jvm_log.listen_to_accumulators()
    with java.starting():
        gateway, relay = _launch(conf, settings.log_format)
    gateway.sockets, gateway.relay = sockets, relay
    try:
        spark_conf = SparkConf(_jvm=gateway.jvm)
        for key, value in conf.items():
            spark_conf.set(key, value)
        # SparkContext puts its own SIGINT handler in: it would cancel the lanes' job and raise
        # KeyboardInterrupt.
        handler = signal.getsignal(signal.SIGINT)
        context = SparkContext(conf=spark_conf, gateway=gateway)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)
        session = SparkSession(context)
        if not parse_master(conf["spark.master"]).local:
            count = _await_lanes(session, lanes, extra_slots)
            session.conf.set(_LANES_KEY, str(count))
        return session
    except BaseException as error:
        why = java.ended(gateway) if isinstance(error, Exception) else None
        stop_session(gateway=gateway)
        if why is not None:
            raise VerbatimError(why) from None
        raise


def lanes_of(spark: SparkSession) -> int:
    """How many lanes this session has slots for, extra slots left out."""
    return int(spark.conf.get(_LANES_KEY))  # type: ignore[arg-type]


def jvm_ended() -> str | None:
    """Why this process' session can't be used any more, if its JVM has ended."""
    return java.ended(SparkContext._gateway)


def stop_session(spark: SparkSession | None = None, *, gateway: Any = None, timeout_s: float = 8.0) -> None:
    """Stop Spark and its JVM, by force after `timeout_s`. Safe to call twice; lanes must have ended
    before."""
    gateway = gateway or SparkContext._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    context = SparkContext._active_spark_context
    with contextlib.suppress(Exception):
        if spark is not None:
            spark.stop()
        elif context is not None:
            context.stop()
    with contextlib.suppress(Exception):
        gateway.shutdown()
    if process is not None:
        with contextlib.suppress(Exception):
            process.stdin.close()  # type: ignore[union-attr]
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if isinstance(relay := getattr(gateway, "relay", None), jvm_log.Relay):
        relay.join(1.0)
    if (sockets := getattr(gateway, "sockets", None)) is not None:
        sockets.cleanup()
    # Where the JVM was gone already, Spark's own stop has left the context behind.
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def _await_lanes(spark: SparkSession, lanes: int | None, extra_slots: int) -> int:
    """Wait until the cluster's executors give the slots wanted; return the number of lanes."""
    deadline = time.monotonic() + EXECUTORS_TIMEOUT_S
    count, since = 0, time.monotonic()
    while time.monotonic() < deadline:
        found = usage(spark)
        now = found.slots if found is not None else 0
        if now != count:
            count, since = now, time.monotonic()
        if lanes is not None and count >= lanes + extra_slots:
            return lanes
        if lanes is None and count > extra_slots and time.monotonic() - since >= _SETTLED_S:
            return count - extra_slots
        time.sleep(0.2)
    if lanes is None and count > extra_slots:
        return count - extra_slots
    master = spark.sparkContext.master
    if count <= extra_slots:
        raise SettingsError(
            f"SPARK_MASTER: {master} gave {count} slots within {EXECUTORS_TIMEOUT_S:.0f} s; "
            f"at least {extra_slots + 1} are needed"
        )
    raise SettingsError(
        f"PARALLELISM: {lanes} lanes and {extra_slots} more slots are wanted, but {master} gave {count} slots within "
        f"{EXECUTORS_TIMEOUT_S:.0f} s; set PARALLELISM to at most {count - extra_slots} or add executors"
    )


def _use_sockets(conf: dict[str, str]) -> tempfile.TemporaryDirectory[str] | None:
    """Have Spark speak to its Python processes through Unix sockets, in a folder that only we can enter, and
    return that.

    Through TCP, with Nagle's algorithm, what Spark tells them in several pieces waits for an acknowledgement
    delayed by 40 ms. Left as it is where the settings say anything of it, on a cluster, whose machines have
    folders of their own, and where a socket's path would be too long.
    """
    if any(key.startswith(_SOCKETS) for key in conf) or not parse_master(conf["spark.master"]).local:
        return None
    folder = tempfile.TemporaryDirectory(prefix="verbatim-", ignore_cleanup_errors=True)
    if len(os.fsencode(folder.name + _SOCKET_NAME)) > _SOCKET_PATH:
        folder.cleanup()
        return None
    conf |= {f"{_SOCKETS}.enabled": "true", f"{_SOCKETS}.dir": folder.name}
    return folder


def _launch(conf: Mapping[str, str], log_format: str) -> tuple[Any, jvm_log.Relay | None]:
    """Start the JVM in a session of its own, its properties in a private file so that no secret shows in
    `ps`."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # under spark-submit: the JVM is there already
        return launch_gateway(), None
    with tempfile.TemporaryDirectory(prefix="verbatim-spark-") as directory:
        properties = dict(conf)
        options = properties["spark.driver.extraJavaOptions"]
        using = class_archive.options(class_archive.of_spark(conf.get(_CLASS_PATH, "")), options)
        properties["spark.driver.extraJavaOptions"] = " ".join([options, *map(shlex.quote, using)])
        if not jvm_log.is_given(os.environ):
            log4j = Path(directory, "log4j2.properties")
            log4j.write_text(jvm_log.configuration(log_format))
            properties["spark.driver.extraJavaOptions"] += (
                f" -Dlog4j2.configurationFile={shlex.quote(log4j.as_uri())}"
            )
        file = Path(directory, "spark.properties")
        file.touch(mode=0o600)
        file.write_text("".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in properties.items()))
        theirs = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
        with _environment("PYSPARK_SUBMIT_ARGS", f"--properties-file {shlex.quote(str(file))} {theirs}"):
            return _launch_heard(log_format)


def _launch_heard(log_format: str) -> tuple[Any, jvm_log.Relay | None]:
    own_session = {"start_new_session": True}
    if log_format != log_lines.JSON:
        return launch_gateway(popen_kwargs=own_session), None
    relay = jvm_log.Relay()
    try:
        return launch_gateway(popen_kwargs=own_session | relay.arguments()), relay
    finally:
        relay.started()


def _escaped(text: str) -> str:
    """Text for a Java properties file."""
    units = struct.unpack(f">{len(text.encode('utf-16-be')) // 2}H", text.encode("utf-16-be"))
    return "".join(
        f"\\u{unit:04x}"
        if not 0x20 <= unit <= 0x7E
        else f"\\{chr(unit)}"
        if chr(unit) in "\\=:#! "
        else chr(unit)
        for unit in units
    )


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
