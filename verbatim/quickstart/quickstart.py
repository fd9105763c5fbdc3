"""The command `verbatim quickstart`: two real clusters, both applications, a load, a kill, a verdict; leaves
nothing behind.

Clusters are verbatim.local.kafka_cluster', processes verbatim.local.applications', the load
verbatim.quickstart.loading's, the comparison verify_link's, the words display's. Here is what happens when,
and that it is undone.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import click

from common.config import loading
from common.config.settings import Settings
from common.errors import SettingsError, VerbatimError
from common.kafka.client import clients, topics
from common.ports import Deadline
from common.spark import class_archive, jars
from verbatim.commands.verify import as_text
from verbatim.local import kafka_cluster
from verbatim.local.applications import Application
from verbatim.local.kafka_cluster import QUICK_START, Cluster
from verbatim.local.processes import free_ports
from verbatim.quickstart.display import Display, Lines, Screen, command_prefix, next_steps, verdict
from verbatim.quickstart.interruption import Interruption
from verbatim.quickstart.loading import Loader
from verbatim.quickstart.progress import Meter, Progress
from verbatim.quickstart.records import Records, flights, flights_archive, json_lines
from verbatim.verify.link import Options, verify_link

LINK = "quickstart"
PARTITIONS = 4
APPLICATIONS = ("replicator", "deduplicator")
STALL_S = 180.0
"""So long without any progress, and it is given up."""
COUNTERS_S = 8.0
"""Lanes write their counters every 5 s."""
_TURN_S = 0.1
_CALL_S = 30.0
_LAST_S = 120.0
"""A JVM takes some ten seconds to write what it has loaded, and longer where others work."""
_FOREVER_MS = str(2**63 - 1)


@click.command("quickstart")
@click.option(
    "--input",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Copy the lines of this file, each a JSON value, instead of the flights. An object's member `key` or `id` is the record's key.",
)
@click.option("--records", "limit", type=click.IntRange(min=1), help="Copy only the first so many.")
@click.option("--keep", is_flag=True, help="Leave everything running until Ctrl-C, and say what to try next.")
@click.option("--no-kill", is_flag=True, help="Don't kill the replicator half-way.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the clusters' data and the applications' logs lie: a new or empty folder, which stays. Without it they lie in a"
    " temporary folder, which goes.",
)
@click.pass_context
def quickstart(
    context: click.Context,
    file: Path | None,
    limit: int | None,
    keep: bool,
    no_kill: bool,
    folder: Path | None,
) -> None:
    """See it work, on this machine, in a minute or two: needs nothing but Java 17.

    Starts two real Kafka clusters on 127.0.0.1, writes records to the first (the 336,776 flights that left
    New York in 2013, with keys, headers and timestamps), copies them to the second with both applications as
    they run in production, kills the replicator half-way (kill -9) and starts it again, waits until
    everything has arrived, and compares both sides record by record.

    Exit code: 0 everything arrived once and in order, 1 it did not.
    """
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise SettingsError(f"--folder: {folder} is not empty; name a new one")
    if file is None:
        flights_archive()  # before a minute is spent on clusters
    with Interruption() as interruption:
        run = Quickstart(folder, kill=not no_kill, later=interruption.later)
        try:
            good = run.copy_and_compare(lambda: json_lines(file, limit) if file else flights(limit))
            if keep:
                with contextlib.suppress(KeyboardInterrupt):
                    run.wait_for_the_end()
            elif good:
                run.lay_by_classes()
        finally:
            interruption.ignore()
            run.close()
    context.exit(0 if good else 1)


class Quickstart:
    """One run. Whatever it starts or makes is gone after `close`, but for a folder that was asked for."""

    def __init__(
        self,
        folder: Path | None,
        kill: bool = True,
        later: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """`later`: as an Interruption's."""
        self._temporary = folder is None
        self._later = later
        self._kill = kill
        self._kills = 0
        self._display: Display = Lines()
        self._undo = contextlib.ExitStack()
        self._folder = (
            Path(tempfile.mkdtemp(prefix="verbatim-quickstart-")) if folder is None else folder.absolute()
        )
        self._scratch = self._folder / "tmp"
        self._undo.callback(self._remove)
        self._classes = {name: self._scratch / f"{name}.jsa" for name in ("target", "deduplicator")}
        """What the JVMs that load most write at their end, where they were started without an archive of
        classes."""
        # Native libraries that a JVM unpacks, and its figures for jps, stay behind when it is killed.
        options = (*QUICK_START, f"-Djava.io.tmpdir={self._scratch}", "-XX:-UsePerfData")
        self._source = Cluster(data_folder=self._folder / "source", jvm_options=options)
        self._target = Cluster(
            data_folder=self._folder / "target", jvm_options=options, record_classes=self._classes["target"]
        )
        self._applications: dict[str, Application] = {}
        self._loader: Loader | None = None
        self._meter: Meter | None = None
        self._variables: dict[str, str] = {}
        self._ports: dict[str, int] = {}

    def copy_and_compare(self, read: Callable[[], Records]) -> bool:
        """The whole of it; whether the verdict is good. Raises VerbatimError where it can't come to one."""
        self._display.event(f"data and logs: {self._folder}")
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._fetch_jars()
        records = self._start_clusters(read)
        # There is no half-way of one record.
        self._kill = self._kill and records.count > 1
        settings = self._start_link(records)
        if sys.stdout.isatty():
            self._display = Screen(records.count, self._display)
            self._undo.callback(self._display.close)
        self._copy(records)
        self._display.close()
        return self._compare(records, settings)

    def wait_for_the_end(self) -> None:
        """Keep everything running until interrupted; say when something ends."""
        assert self._meter is not None
        pids = {name: application.pid for name, application in self._applications.items()}
        logs = [application.log for application in self._applications.values()]
        self._display.say("\n".join(next_steps(self._variables, pids, self._ports, logs)))
        ended: set[str] = set()
        while True:
            self._display.show(self._poll())
            for name, application in self._applications.items():
                if name not in ended and (code := application.ended()) is not None:
                    ended.add(name)
                    self._display.event(
                        f"the {name} has ended (exit code {code}); to start it again: {command_prefix()}{name}"
                    )

    def lay_by_classes(self) -> None:
        """Keep which classes the JVMs have loaded, for all that start later; ends both applications and the
        target. Once: later it does nothing."""
        kept = {
            "target": kafka_cluster.class_data_archive(),
            "deduplicator": class_archive.of_spark(jars.classpath(jars.DELTA)),
        }
        if all(archive.is_file() for archive in kept.values()):
            return
        self._display.event("laying by which classes were loaded, this once: later starts take less CPU")
        for application in self._applications.values():
            # A driver that stops gives its JVM no time; one whose driver has gone ends by itself.
            application.kill_driver(_LAST_S)
        self._target.stop(_LAST_S)
        for name, archive in kept.items():
            try:
                if not archive.is_file():
                    class_archive.keep(self._classes[name], archive)
            except OSError as error:
                self._display.event(f"they could not be kept: {error}")

    def close(self) -> None:
        """End everything that was started, and remove what was made, the last first, also when some of it
        fails."""
        self._undo.close()

    # one after the other

    def _fetch_jars(self) -> None:
        if not all(map(jars.known, jars.ALL)):
            self._display.event(
                f"fetching the jars of Kafka and Delta, this once, into {jars.cache_folder()}"
            )
        for coordinate in jars.ALL:
            jars.resolve(coordinate)

    def _start_clusters(self, read: Callable[[], Records]) -> Records:
        """Both at once; the input is looked through meanwhile."""
        both = ThreadPoolExecutor(2, thread_name_prefix="cluster")
        # Pushed in this order: stop what runs, which makes a cluster fail that is just starting; wait until
        # none can start any more; stop what had come up in between.
        self._undo.callback(self._stop_clusters)
        self._undo.callback(both.shutdown, wait=True, cancel_futures=True)
        self._undo.callback(self._stop_clusters)
        starting = [both.submit(cluster.start) for cluster in (self._source, self._target)]
        records = read()
        for cluster in starting:
            cluster.result()
        self._display.event(
            f"two Kafka clusters run: source {self._source.bootstrap_servers}, target {self._target.bootstrap_servers}"
        )
        return records

    def _start_link(self, records: Records) -> Settings:
        """Make the source topic, start the applications, and write the backlog while they come up. Returns
        settings for our clients."""
        self._ports = dict(zip(APPLICATIONS, free_ports(len(APPLICATIONS)), strict=True))
        self._variables = {
            "APPLICATION_NAME": LINK,
            "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": self._source.bootstrap_servers,
            "KAFKA_CLUSTERS_SOURCE_TOPIC": records.topic,
            "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": self._target.bootstrap_servers,
            "STATE_PATH": str(self._folder / "state"),
            "STAGING_PARTITIONS": str(PARTITIONS),
            "PARALLELISM": "1",
        }
        settings = _quiet(loading.load(environ=self._variables))
        admin = clients.admin(settings.client_config("source", "admin"))
        # The flights are of 2013: by age they would be deleted at once, and each week of theirs would begin a
        # segment.
        config = {"retention.ms": "-1", "segment.ms": _FOREVER_MS}
        with self._later():
            topics.create(admin, records.topic, PARTITIONS, 1, config, Deadline(_CALL_S))
        for name in APPLICATIONS:
            # The same instance comes back after the kill, and with a name of its own it leads again at once.
            own = {"HEALTH_PORT": str(self._ports[name]), "INSTANCE_ID": LINK}
            application = self._applications[name] = Application(
                name, {**self._variables, **own}, self._folder, options=self._spark_options(name)
            )
            # What is killed can't tidy up; but of a temporary folder nothing stays anyway.
            self._undo.callback(application.kill if self._temporary else application.stop)
            application.start()
        self._loader = Loader(records, PARTITIONS, settings.client_config("source", "producer"))
        self._undo.callback(self._loader.stop)
        self._loader.start()
        self._display.event(
            f"{records.count:,} {records.title} go to topic {records.topic} ({PARTITIONS} partitions); "
            + " and ".join(f"{name} (pid {a.pid})" for name, a in self._applications.items())
            + " start"
        )
        self._meter = Meter(settings, records.topic, self._loader.history.written_at)
        self._undo.callback(self._meter.close)
        return settings

    def _spark_options(self, name: str) -> list[str]:
        """For an application's command: its JVM is to record its classes, if there is no archive of them."""
        if name not in self._classes:
            return []
        found = class_archive.of_spark(jars.classpath(jars.DELTA))
        options = class_archive.recording(found, self._classes[name])
        return ["--conf", f"spark.driver.extraJavaOptions={' '.join(options)}"] if options else []

    def _copy(self, records: Records) -> None:
        assert self._loader is not None
        self._until(lambda p: p.delivered > 0)
        self._display.event("first record delivered; from now on records arrive live")
        self._loader.go_live()
        if self._kill:
            self._kill_replicator(records)
        self._loader.let_finish()
        finished = self._loader.finished
        self._until(lambda p: finished() and p.delivered >= records.count)
        self._display.event("everything is delivered")

    def _kill_replicator(self, records: Records) -> None:
        assert self._meter is not None and self._loader is not None
        replicator, tally = self._applications["replicator"], self._meter.tally
        half = records.count // 2
        reached = self._until(lambda p: p.delivered >= half)
        term = tally.term("replicator")
        processes = replicator.kill()
        self._kills += 1
        killed_at = time.monotonic()
        self._display.event(
            f"kill -9 of the replicator, all {processes} processes, at {reached.delivered:,} delivered; starting it again"
        )
        replicator.start()
        # The last tenth is written only now, so there is no end without a replicator that works.
        self._loader.let_finish()
        self._until(lambda p: tally.term("replicator") > term)
        self._display.event(
            f"the replicator copies again, {time.monotonic() - killed_at:.1f} s after the kill"
        )

    def _compare(self, records: Records, settings: Settings) -> bool:
        assert self._meter is not None
        tally = self._meter.tally
        with contextlib.suppress(TimeoutError):
            self._until(lambda p: tally.counter("deduplicator", "records") >= records.count, COUNTERS_S)
        duplicates = tally.counter("deduplicator", "duplicates")
        self._display.event("comparing both sides record by record, as `verbatim verify` does")
        report = verify_link(settings, Options())
        text, good = verdict(report, records.count, self._kills)
        if not good:
            self._display.say("\n".join(as_text(report)))
        self._display.event(
            f"compared in {report.seconds:.1f} s; {duplicates:,} records came to staging a second time, and were dropped"
        )
        self._display.say(f"\n{text}")
        return good

    # while it runs

    def _poll(self) -> Progress:
        assert self._meter is not None
        with self._later():
            return self._meter.poll(_TURN_S)

    def _until(self, reached: Callable[[Progress], bool], within_s: float | None = None) -> Progress:
        """Show progress until `reached`. Raises VerbatimError when something has ended or stands still,
        TimeoutError after `within_s`."""
        assert self._meter is not None and self._loader is not None
        began = moved_at = time.monotonic()
        seen = (-1, -1, -1)
        while True:
            progress = self._poll()
            self._display.show(progress)
            self._loader.finished()
            if reached(progress):
                return progress
            now = time.monotonic()
            if (progress.source_end, progress.staged, progress.delivered) != seen:
                moved_at, seen = now, (progress.source_end, progress.staged, progress.delivered)
            for application in self._applications.values():
                if (code := application.ended()) is not None:
                    raise self._failed(f"the {application.name} ended (exit code {code})")
            if now - moved_at > STALL_S:
                raise self._failed(
                    f"nothing has moved for {STALL_S:.0f} s, with {progress.delivered:,} records delivered"
                )
            if within_s is not None and now - began > within_s:
                raise TimeoutError

    def _failed(self, what: str) -> VerbatimError:
        self._display.close()
        for application in self._applications.values():
            if tail := application.log_tail():
                self._display.say(f"\nthe end of the {application.name}'s log:\n{tail}")
        return VerbatimError(f"{what}; the ends of the logs are above, and --folder keeps the whole of them")

    # at the end

    def _stop_clusters(self) -> None:
        for cluster in (self._source, self._target):
            with contextlib.suppress(KeyError):  # it ends a node that a thread is just starting
                cluster.stop(0.0 if self._temporary else 10.0)

    def _remove(self) -> None:
        if self._temporary:
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._display.say(f"data and logs stay in {self._folder}")


def _quiet(settings: Settings) -> Settings:
    """Clients that say nothing by themselves: those that are still there complain when the brokers go."""
    clients = {
        name: {**properties, "log_level": 0} for name, properties in settings.client_properties.items()
    }
    return settings.model_copy(update={"client_properties": clients})
