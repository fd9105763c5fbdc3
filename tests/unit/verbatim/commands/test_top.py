"""What `verbatim top` shows: as much as fits, what needs attention first; and how it ends."""

from __future__ import annotations

import curses
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from common.link.control_kinds import Halted, Pause
from common.link.link_status import rate
from tests.support.made_up_link import MadeUp
from verbatim.commands import top
from verbatim.commands.status import summary
from verbatim.commands.top import lines_of, printable, watch

ROOT = Path(__file__).parents[4]
LEADS: dict[str, bool | None] = {"replicator": True, "deduplicator": False}


def found(topics: int = 30, halted: int = 0) -> dict[str, Any]:
    made = MadeUp({f"topic-{i:02}": 1 for i in range(topics)})
    made.speak(10_000, 100)
    before = dict(made.heard)
    made.speak(20_000, 200)
    for i in range(halted):
        made.say(Halted("deduplicator", f"topic-{i:02}", f"id-topic-{i:02}", 0, "key-missing", "no key"))
    made.say(Pause(("topic-05",), True))
    told = summary(made.settings, made.control, made.heard, LEADS, 21_000)
    for i, line in enumerate(told["topics"]):
        line["lag"] = None if i == 7 else i
    rate(told, before, made.heard)
    return {"link": "east", "source": "s-1", "target": "t-1", **told}


def texts(found: dict[str, Any], width: int = 100, height: int = 24) -> list[str]:
    return [line for line, _ in lines_of(found, width, height)]


def test_topics_come_by_how_far_they_are_behind_the_unknown_first() -> None:
    lines = texts(found())
    at = next(i for i, line in enumerate(lines) if line.startswith("TOPIC"))
    assert [line.split()[0] for line in lines[at + 1 : at + 5]] == [
        "topic-07",
        "topic-29",
        "topic-28",
        "topic-27",
    ]
    assert lines[0] == "east: s-1 to t-1, 0 to go"
    replicator = next(line for line in lines if line.startswith("replicator"))
    assert replicator.split()[1:4] == ["runs", "1,150", "115,000"]
    assert lines[-1] == "q ends"


def test_halts_stand_above_all_else_and_leave_room_for_the_rest() -> None:
    lines = texts(found(halted=1))
    assert lines[2:4] == ["HALTED topic-00-0 (key-missing): no key", "  verbatim accept-loss topic-00 0"]
    lines = texts(found(halted=30))
    assert "27 more halted: verbatim status" in lines
    assert any(line.startswith("TOPIC") for line in lines) and len(lines) == 24


@given(st.integers(1, 60), st.integers(1, 200), st.integers(0, 40), st.integers(0, 30))
def test_it_never_is_larger_than_the_terminal(height: int, width: int, topics: int, halted: int) -> None:
    lines = texts(found(topics, min(topics, halted)), width, height)
    assert 1 <= len(lines) <= height
    assert max(map(len, lines)) < width or width == 1


def test_nothing_that_others_have_written_steers_the_terminal() -> None:
    assert printable("a\x1b[2Jb\r\n\tc\u202e") == "a?[2Jb???c?"
    halting = found(halted=1)
    halting["halts"][0]["detail"] = "\x1b]0;gone\x07"
    assert not any("\x1b" in line for line in texts(halting))


class FakeScreen:
    """Keys that are pressed one after the other; -1: none came in time."""

    def __init__(self, *keys: int | str) -> None:
        self.keys = [ord(key) if isinstance(key, str) else key for key in keys]
        self.lines: list[str] = []
        self.size = (24, 100)

    def getmaxyx(self) -> tuple[int, int]:
        return self.size

    def erase(self) -> None:
        self.lines = []

    def addstr(self, y: int, x: int, text: str, attributes: int, /) -> None:
        if y >= 20:
            raise curses.error("it has shrunk")
        self.lines.append(text)

    def refresh(self) -> None:
        pass

    def timeout(self, delay: int, /) -> None:
        self.delay = delay

    def getch(self) -> int:
        key = self.keys.pop(0)
        if key == -1:
            time.sleep(self.delay / 1000 + 0.01)
        if key == -2:
            raise KeyboardInterrupt
        return key


def looks(*answers: dict[str, Any] | Exception) -> Callable[[], dict[str, Any]]:
    left = list(answers)

    def look() -> dict[str, Any]:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return look


def test_it_looks_again_until_somebody_ends_it() -> None:
    first, second = found(), found(halted=1)
    screen = FakeScreen(-1, "x", "q")
    assert watch(screen, looks(second), first, 0.05) is second
    assert screen.lines[2].startswith("HALTED")
    assert watch(FakeScreen(-2), looks(), first, 5.0) is first, "Ctrl-C"


def test_a_target_that_does_not_answer_is_told_and_asked_again() -> None:
    gone = KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN, "all brokers down"))
    first, last = found(), found()
    screen = FakeScreen(-1, "Q")
    assert watch(screen, looks(gone), first, 0.05) is first
    assert "not seen since" in screen.lines[1] and "all brokers down" in screen.lines[1]
    screen = FakeScreen(-1, -1, "q")
    assert watch(screen, looks(gone, last), first, 0.05) is last
    assert screen.lines[1] == ""


class FakeLooks:
    def __init__(self, _: object) -> None:
        self.look = looks(found(halted=1))

    def close(self) -> None:
        pass


def test_without_a_terminal_it_prints_once_as_status_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "Looks", FakeLooks)
    needed = [
        "--source-bootstrap-servers=a:1",
        "--destination-bootstrap-servers=b:1",
    ]
    done = CliRunner().invoke(top.top, [*needed, "--source-topic=.*"])
    assert done.exit_code == 3, done.output
    assert done.output.startswith("east: s-1 to t-1")
    assert "what to do: docs: operations/halts#key-missing" in done.output


def test_in_a_terminal_q_ends_it_and_the_terminal_is_as_before() -> None:
    """On a real terminal: it draws, it ends at once, and leaves the screen that was there."""
    program = (
        "import curses; from tests.unit.verbatim.commands import test_top as t; from verbatim.commands.top import watch;"
        "curses.wrapper(watch, lambda: t.found(), t.found(), 60.0); print('ended')"
    )
    ours, its = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-c", program], stdin=its, stdout=its, env=os.environ | {"TERM": "xterm"}, cwd=ROOT
    )
    os.close(its)
    shown = b""
    with closing(os.fdopen(ours, "r+b", buffering=0)) as side:
        while b"q ends" not in shown:
            shown += side.read(4096)
        side.write(b"q")
        while b"ended" not in shown:
            shown += side.read(4096)
        assert running.wait(20) == 0
    assert b"\x1b[?1049h" in shown and b"\x1b[?1049l" in shown, "a screen of its own"
