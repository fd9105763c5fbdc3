"""`verbatim quickstart` as a user runs it: real clusters, real processes, a real kill; and that nothing of it
is left, whatever happens.

Each run starts two brokers and both applications, which takes a minute on a busy machine.
"""

from __future__ import annotations

import os
import pty
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.brokers import Record, produce, topics, wait_until

COMMAND = [str(Path(sys.executable).with_name("verbatim")), "quickstart"]
RUN_S = 280.0

pytestmark = pytest.mark.timeout(600)


class Run:
    """One quick start in a process of its own, with its output as it comes; on a terminal if wanted."""

    def __init__(self, *arguments: str, terminal: bool = False) -> None:
        output: int = subprocess.PIPE
        if terminal:
            reader, output = pty.openpty()
        environment = {**os.environ, "COLUMNS": "200", "TERM": "xterm"}
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        if terminal:
            os.close(output)
        else:
            assert self.process.stdout is not None
            reader = self.process.stdout.fileno()
        self.said = ""
        self._came: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(reader,), daemon=True)
        self._reader.start()

    def _read(self, reader: int) -> None:
        while True:
            try:
                piece = os.read(reader, 65536)
            except OSError:  # a terminal that nobody writes to any more
                piece = b""
            if not piece:
                break
            self._came.put(piece.decode(errors="replace"))
        self._came.put(None)

    def until(self, pattern: str, timeout_s: float = RUN_S) -> re.Match[str]:
        """Wait until the output has a match."""
        deadline = time.monotonic() + timeout_s
        while (found := re.search(pattern, self.said)) is None:
            try:
                piece = self._came.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                piece = None
            assert piece is not None, f"{pattern!r} was never said:\n{self.said[-3000:]}"
            self.said += piece
        return found

    def code(self, timeout_s: float = RUN_S) -> int:
        """Wait for the end; the exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join(10)
        if self.process.stdout is not None:
            self.process.stdout.close()
        while not self._came.empty():
            self.said += self._came.get() or ""
        return code

    def folder(self) -> Path:
        return Path(self.until(r"data and logs: (\S+)\s", 30)[1])

    def address(self, cluster: str) -> str:
        return self.until(rf"{cluster} (127\.0\.0\.1:\d+)")[1]

    def pid(self, application: str) -> int:
        return int(self.until(rf"{application} \(pid (\d+)\)")[1])


Start = Callable[..., Run]


@pytest.fixture
def start() -> Iterator[Start]:
    runs: list[Run] = []

    def make(*arguments: str, terminal: bool = False) -> Run:
        runs.append(Run(*arguments, terminal=terminal))
        return runs[-1]

    yield make
    for run in runs:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGTERM)
        run.process.wait(60)


def processes_of(folder: Path) -> list[str]:
    """Command lines of the processes that know the folder, by their arguments or their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in command + environment:
                found.append(command.replace(b"\0", b" ").decode()[:200])
    return found


def assert_nothing_left(folder: Path, kept: bool = False) -> None:
    assert processes_of(folder) == []
    assert folder.exists() == kept


def test_everything_arrives_once_and_in_order_though_the_replicator_is_killed_and_nothing_is_left(
    start: Start,
) -> None:
    run = start("--records", "3000")
    folder = run.folder()
    run.until("first record delivered")
    assert len(processes_of(folder)) > 6, "brokers, drivers, JVMs and workers are found by their folder"
    assert run.code() == 0, run.said
    assert "ok: 3,000 records: 0 lost, 0 twice, order kept, one kill survived" in run.said
    killed = re.search(r"kill -9 of the replicator, all (\d+) processes, at ([\d,]+) delivered", run.said)
    assert killed is not None
    assert int(killed[1]) >= 3, "driver, JVM and workers"
    assert 1500 <= int(killed[2].replace(",", "")) <= 2700, "half-way"
    assert re.search(r"the replicator copies again, [\d.]+ s after the kill", run.said)
    assert re.search(
        r"source [\d,]+, staged [\d,]+, delivered [\d,]+, duplicates dropped [\d,]+, lag [\d,]+, [\d,]+ records/s, delay",
        run.said,
    )
    assert "\x1b" not in run.said, "plain lines without a terminal"
    assert not re.search(r"^(%\d|Traceback|ERROR)", run.said, re.MULTILINE), run.said
    assert_nothing_left(folder)


def test_a_record_that_is_at_the_destination_only_is_a_bad_verdict_and_exit_code_1(start: Start) -> None:
    run = start("--records", "300", "--no-kill", terminal=True)
    folder, target = run.folder(), run.address("target")
    run.until("first record delivered")
    wait_until(lambda: "flights" in topics(target), "the destination", 60)
    produce(target, "flights", [Record(b"never at the source", b"foreign")])
    assert run.code() == 1, run.said
    assert re.search(r"FAILED: 300 records: 0 lost, 0 twice, order kept, 1 foreign", run.said)
    assert "killed" not in run.said and "kill survived" not in run.said
    assert "duplicates dropped" in run.said and "\x1b[" in run.said, "figures on a terminal"
    assert_nothing_left(folder)


def test_lines_of_json_are_copied_and_with_keep_everything_can_be_tried_until_ctrl_c(
    start: Start, tmp_path: Path
) -> None:
    file, folder = tmp_path / "orders.jsonl", tmp_path / "run"
    file.write_text("".join(f'{{"id": {n % 50}, "text": "order {n}"}}\n' for n in range(400)))
    run = start("--input", str(file), "--keep", "--no-kill", "--folder", str(folder))
    run.until(r"\nlogs: .*\n")
    assert "ok: 400 records: 0 lost, 0 twice, order kept" in run.said
    exports = "\n".join(re.findall(r"^export .*$", run.said, re.MULTILINE))
    steps = re.findall(r"^(?:uv run )?((?:\S*python|verbatim|curl) .*)$", run.said, re.MULTILINE)
    assert [Path(step.split()[0]).name for step in steps] == ["python", "python", "verbatim", "curl", "curl"]

    def try_it(step: str) -> subprocess.CompletedProcess[str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        script = f"{exports}\n{step}"
        return subprocess.run(
            ["bash", "-c", script],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=120,
        )

    for step in steps[:3]:
        done = try_it(step)
        assert done.returncode == 0, f"{step}\n{done.stdout}{done.stderr}"
        if step.startswith("verbatim"):
            assert "401 records equal" in done.stdout
    wait_until(
        lambda: "b'me', b'hello'" in try_it(steps[1]).stdout, "the record written by hand at the target", 60
    )
    produce(run.address("target"), "records", [Record(b"never at the source")])
    assert try_it(steps[2]).returncode == 1
    run.process.send_signal(signal.SIGINT)
    assert run.code(60) == 0, run.said
    assert_nothing_left(folder, kept=True)
    assert {entry.name for entry in folder.iterdir()} >= {
        "source",
        "target",
        "replicator.log",
        "deduplicator.log",
    }
    assert not (folder / "tmp").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("when", ["data and logs", r"start\s"])
def test_an_interrupt_leaves_nothing_behind(start: Start, number: signal.Signals, when: str) -> None:
    run = start("--records", "3000")
    folder = run.folder()
    run.until(when)
    time.sleep(1.0)
    run.process.send_signal(number)
    time.sleep(0.05)
    run.process.send_signal(number)
    assert run.code(60) == 130, run.said
    assert run.said.splitlines()[-1] == "error: interrupted"
    assert_nothing_left(folder)


def test_an_application_that_ends_by_itself_is_named_with_its_log_and_nothing_is_left(start: Start) -> None:
    run = start("--records", "3000")
    folder = run.folder()
    pid = run.pid("deduplicator")
    wait_until(
        lambda: (folder / "deduplicator.log").stat().st_size > 0, "the deduplicator to say something", 60
    )
    os.kill(pid, signal.SIGKILL)
    assert run.code(60) == 1, run.said
    assert "the end of the deduplicator's log:" in run.said
    assert "error: the deduplicator ended (exit code -9)" in run.said.splitlines()[-1]
    assert_nothing_left(folder)


def test_killing_the_quick_start_itself_ends_its_processes(start: Start) -> None:
    run = start("--records", "3000")
    folder = run.folder()
    run.pid("deduplicator")
    time.sleep(5.0)
    run.process.kill()
    run.code(30)
    try:
        wait_until(lambda: processes_of(folder) == [], "brokers, drivers and their JVMs to be gone", 60)
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)
