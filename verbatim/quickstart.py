"""The command `verbatim quickstart`: two real clusters, both applications, a load, a kill, a verdict; leaves nothing behind.

Clusters are verbatim.brokers', processes verbatim.applications', the load verbatim.loading's, the comparison verify_link's. Here
is what happens when.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import click

from common import jars, kafka, topics
from common.errors import SettingsError, VerbatimError
from common.kafka import Deadline
from common.settings import Settings
from verbatim.applications import Application
from verbatim.brokers import QUICK_START, Cluster
from verbatim.display import Display, Lines, Screen
from verbatim.loading import Loader
from verbatim.processes import HOST, free_ports
from verbatim.progress import Meter, Progress
from verbatim.records import Records, flights, json_lines
from verbatim.verify import Kind
from verbatim.verify_command import as_text
from verbatim.verify_link import LinkReport, Options, verify_link

LINK = "quickstart"
PARTITIONS = 4
APPLICATIONS = ("replicator", "deduplicator")
STALL_S = 180.0
"""So long without a record delivered, while some wait, and it is given up."""
COUNTERS_S = 8.0
"""Lanes write their counters every 5 s."""
_TURN_S = 0.1
_CALL_S = 30.0
_FOREVER_MS = str(2**63 - 1)


@click.command("quickstart")
@click.option(
    "--input",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Copy the lines of this file, each a JSON value, instead of the flights.",
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
    context: click.Context, file: Path | None, limit: int | None, keep: bool, no_kill: bool, folder: Path | None
) -> None:
    """See it work, on this machine, in a minute or two: needs nothing but Java 17.

    Starts two real Kafka clusters on 127.0.0.1, writes records to the first (the 336,776 flights that left New York in 2013, with keys,
    headers and timestamps), copies them to the second with both applications as they run in production, kills the replicator
    half-way (kill -9) and starts it again, waits until everything has arrived, and compares both sides record by record.

    Exit code: 0 everything arrived once and in order, 1 it did not.
    """
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise SettingsError(f"--folder: {folder} is not empty; name a new one")
    with _ended_by_signals() as ignore_more:
        run = Quickstart(folder, kill=not no_kill)
        try:
            good = run.copy_and_compare(lambda: json_lines(file, limit) if file else flights(limit))
            if keep:
                with contextlib.suppress(KeyboardInterrupt):
                    run.wait_for_the_end()
        finally:
            ignore_more()
            run.close()
    context.exit(0 if good else 1)


class Quickstart:
    """One run. Whatever it starts or makes is gone after `close`, but for a folder that was asked for."""

    def __init__(self, folder: Path | None, kill: bool = True) -> None:
        self._given = folder
        self._kill = kill
        self._killed = 0
        self._display: Display = Lines()
        self._folder = Path(tempfile.mkdtemp(prefix="verbatim-quickstart-")) if folder is None else folder.absolute()
        self._scratch = self._folder / "tmp"
        # Native libraries that a JVM unpacks, and its figures for jps, stay behind when it is killed.
        options = (*QUICK_START, f"-Djava.io.tmpdir={self._scratch}", "-XX:-UsePerfData")
        self._source = Cluster(data_folder=self._folder / "source", jvm_options=options)
        self._target = Cluster(data_folder=self._folder / "target", jvm_options=options)
        self._starting = ThreadPoolExecutor(2, thread_name_prefix="cluster")
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
        clusters = [self._starting.submit(cluster.start) for cluster in (self._source, self._target)]
        records = read()
        if records.count < 2:
            self._kill = False  # there is no half-way
        for cluster in clusters:
            cluster.result()
        self._display.event(
            f"two Kafka clusters run: source {self._source.bootstrap_servers}, target {self._target.bootstrap_servers}"
        )
        settings = self._start(records)
        if sys.stdout.isatty():
            self._display = Screen(records.count, self._display)
        self._copy(records)
        self._display.close()
        return self._verdict(records, settings)

    def wait_for_the_end(self) -> None:
        """Keep everything running until interrupted; say when something ends."""
        self._display.say("\n".join(self._next_steps()))
        ended: set[str] = set()
        while True:
            if self._meter is not None:
                self._display.show(self._meter.poll(_TURN_S))
            for name, application in self._applications.items():
                if name not in ended and (code := application.ended()) is not None:
                    ended.add(name)
                    self._display.event(f"the {name} has ended (exit code {code}); to start it again: {_prefix()}{name}")

    def close(self) -> None:
        """End everything that was started, and remove what was made. Bounded, and not to be interrupted."""
        self._display.close()
        temporary = self._given is None
        if self._loader is not None:
            self._loader.stop()
        if self._meter is not None:
            self._meter.close()
        for application in self._applications.values():
            # What is killed can't tidy up; but here its folder goes as well.
            _ = application.kill() if temporary else application.stop()
        for again in (False, True):
            # A cluster that is just starting fails of being stopped; after that there is nothing left that could be started.
            if again:
                self._starting.shutdown(wait=True, cancel_futures=True)
            for cluster in (self._source, self._target):
                with contextlib.suppress(KeyError):
                    cluster.stop(0.0 if temporary else 10.0)
        if temporary:
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._display.say(f"data and logs stay in {self._folder}")

    # one after the other

    def _fetch_jars(self) -> None:
        known = jars.cache_folder()
        if not all(any(known.glob(coordinate.replace(":", "_") + "*")) for coordinate in jars.ALL):
            self._display.event(f"fetching the jars of Kafka and Delta, this once, into {known}")
        for coordinate in jars.ALL:
            jars.resolve(coordinate)

    def _start(self, records: Records) -> Settings:
        """Make the source topic, start the applications, and write the backlog while they come up."""
        ports = free_ports(len(APPLICATIONS))
        self._ports = dict(zip(APPLICATIONS, ports, strict=True))
        self._variables = {
            "APPLICATION_NAME": LINK,
            "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": self._source.bootstrap_servers,
            "KAFKA_CLUSTERS_SOURCE_TOPIC": records.topic,
            "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": self._target.bootstrap_servers,
            "STATE_PATH": str(self._folder / "state"),
            "STAGING_PARTITIONS": str(PARTITIONS),
            "PARALLELISM": "2",
        }
        settings = Settings.load(environ=self._variables)
        admin = kafka.admin(settings.client_config("source", "admin"))
        # The flights are of 2013: by age they would be deleted at once, and each week of theirs would begin a segment.
        config = {"retention.ms": "-1", "segment.ms": _FOREVER_MS}
        topics.create(admin, records.topic, PARTITIONS, 1, config, Deadline(_CALL_S))
        for name in APPLICATIONS:
            # The same instance comes back after the kill, and with its name it leads again at once.
            own = {"HEALTH_PORT": str(self._ports[name]), "INSTANCE_ID": LINK}
            self._applications[name] = Application(name, {**self._variables, **own}, self._folder)
            self._applications[name].start()
        self._loader = Loader(records, PARTITIONS, settings.client_config("source", "producer"))
        self._loader.start()
        self._display.event(
            f"{records.count:,} {records.title} go to topic {records.topic} ({PARTITIONS} partitions); "
            + " and ".join(f"{name} (pid {a.pid})" for name, a in self._applications.items())
            + " start"
        )
        self._meter = Meter(settings, records.topic, self._loader.history.written_at)
        return settings

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
        assert self._meter is not None
        half = records.count // 2
        reached = self._until(lambda p: p.delivered >= half)
        replicator, tally = self._applications["replicator"], self._meter.tally
        term = tally.term("replicator")
        processes = replicator.kill()
        killed_at = time.monotonic()
        self._display.event(f"kill -9 of the replicator, all {processes} processes, at {reached.delivered:,} delivered; starting it again")
        replicator.start()
        self._killed = 1
        # The last tenth is written only now, so there is no end without a replicator that works.
        assert self._loader is not None
        self._loader.let_finish()
        self._until(lambda p: tally.term("replicator") > term)
        self._display.event(f"the replicator copies again, {time.monotonic() - killed_at:.1f} s after the kill")

    def _verdict(self, records: Records, settings: Settings) -> bool:
        assert self._meter is not None
        tally = self._meter.tally
        give_up = time.monotonic() + COUNTERS_S
        with contextlib.suppress(TimeoutError):
            self._until(lambda p: tally.counter("deduplicator", "records") >= records.count, give_up)
        duplicates = tally.counter("deduplicator", "duplicates")
        self._display.event("comparing both sides record by record (verbatim verify --complete)")
        report = verify_link(settings, Options())
        text, good = verdict(report, records.count, self._killed)
        if not good:
            self._display.say("\n".join(as_text(report, complete=True)))
        self._display.event(f"compared in {report.seconds:.1f} s; {duplicates:,} records came to staging again and were dropped")
        self._display.say(f"\n{text}")
        return good

    # while it runs

    def _until(self, reached: Callable[[Progress], bool], give_up: float | None = None) -> Progress:
        """Show progress until `reached`. Raises VerbatimError when something has ended or stands still, TimeoutError at `give_up`."""
        assert self._meter is not None and self._loader is not None
        moved_at, seen = time.monotonic(), (-1, -1)
        while True:
            progress = self._meter.poll(_TURN_S)
            self._display.show(progress)
            self._loader.finished()
            if reached(progress):
                return progress
            now = time.monotonic()
            if (progress.source_end, progress.delivered) != seen:
                moved_at, seen = now, (progress.source_end, progress.delivered)
            for application in self._applications.values():
                if (code := application.ended()) is not None:
                    raise self._failed(f"the {application.name} ended (exit code {code})")
            if now - moved_at > STALL_S:
                raise self._failed(f"nothing has moved for {STALL_S:.0f} s at {progress.delivered:,} records delivered")
            if give_up is not None and now > give_up:
                raise TimeoutError

    def _failed(self, what: str) -> VerbatimError:
        self._display.close()
        for application in self._applications.values():
            if tail := application.log_tail():
                self._display.say(f"\nthe end of the {application.name}'s log:\n{tail}")
        return VerbatimError(f"{what}; the ends of the logs are above, and --folder keeps the whole of them")

    def _next_steps(self) -> list[str]:
        topic = self._variables["KAFKA_CLUSTERS_SOURCE_TOPIC"]
        source, target = self._source.bootstrap_servers, self._target.bootstrap_servers
        python = f"{_prefix()}python -c"
        exports = {**self._variables, "HEALTH_PORT": "0"}
        return [
            "",
            "Everything keeps running until Ctrl-C. In another terminal, in this folder:",
            "",
            *(f"export {name}={value}" for name, value in exports.items()),
            "",
            "# write a record to the source, and read the last ones at the target",
            f'{python} "from confluent_kafka import Producer as P; p = P({{\'bootstrap.servers\': \'{source}\'}});'
            f" p.produce('{topic}', b'hello', b'me', partition=0); p.flush()\"",
            f'{python} "from confluent_kafka import Consumer as C, TopicPartition as T;'
            f" c = C({{'bootstrap.servers': '{target}', 'group.id': 'me'}}); t = T('{topic}', 0);"
            " t.offset = max(0, c.get_watermark_offsets(t)[1] - 5); c.assign([t]);"
            ' print([(m.offset(), m.key(), m.value()) for m in c.consume(5, 3)])"',
            "# compare both sides again",
            f"{_prefix()}verbatim verify --complete",
            "# how the applications are",
            *(f"curl -s http://{HOST}:{port}/readyz http://{HOST}:{port}/metrics   # {name}" for name, port in self._ports.items()),
            "# kill one, look, start it again",
            *(f"kill -9 {a.pid}; {_prefix()}{name}" for name, a in self._applications.items()),
            "",
            f"logs: {', '.join(str(a.log) for a in self._applications.values())}",
            "",
        ]


def verdict(report: LinkReport, records: int, kills: int) -> tuple[str, bool]:
    """The outcome in one line, and whether it is good: everything that was written is at the destination, once and in order."""
    count = {kind: sum(p.findings[kind].count for p in report.partitions if kind in p.findings) for kind in Kind}
    lost = count.pop(Kind.LOST) + sum(p.behind for p in report.partitions)
    twice, moved = count.pop(Kind.DUPLICATED), count.pop(Kind.REORDERED)
    equal = sum(p.equal for p in report.partitions)
    good = not report.failed(complete=True) and equal == records
    parts = [f"{lost:,} lost", f"{twice:,} twice", "order kept" if not moved else f"{moved:,} out of order"]
    parts += [f"{number:,} {kind.value}" for kind, number in count.items() if number]
    if equal != records:
        parts.append(f"only {equal:,} found equal")
    if kills:
        parts.append("one kill survived" if good else "one kill")
    return f"{'ok' if good else 'FAILED'}: {records:,} records: {', '.join(parts)}", good


def _prefix() -> str:
    # uv tells the commands that it runs where it is.
    return "uv run " if "UV" in os.environ else ""


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[Callable[[], None]]:
    """Ctrl-C, SIGTERM and a closed terminal interrupt, once: what is yielded makes them do nothing any more."""
    done = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal done
        if not done:
            done = True
            raise KeyboardInterrupt

    def ignore() -> None:
        nonlocal done
        done = True

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield ignore
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
