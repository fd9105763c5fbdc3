"""How lines of the log look, in text and in JSON."""

from __future__ import annotations

import json
import logging
import re
import socket
import socketserver
import subprocess
import sys
import threading
import warnings

import pytest
from pyspark.accumulators import AccumulatorTCPServer

from common.errors import LinkRefused
from common.log_lines import (
    JSON,
    TEXT,
    LineFormatter,
    as_json,
    setup_logging,
    setup_worker,
    tell_error,
    wrapped,
)
from common.spark import jvm_log


def test_a_record_with_a_traceback_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("INFO")
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logging.getLogger("some.room").exception("went\nwrong")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ERROR some\.room: went\\nwrong\\n", lines[0])
    assert "first\\nsecond" in lines[0]


def test_the_level_decides_and_setting_up_twice_does_not_double(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("DEBUG")
    setup_logging("WARNING")
    logging.getLogger("some.room").info("quiet")
    logging.getLogger("some.room").warning("loud")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_py4j_does_not_log_what_goes_into_the_jvm(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("DEBUG")
    logging.getLogger("py4j.clientserver").debug("Command to send: hunter2")
    assert capsys.readouterr().err == ""


def test_the_time_of_a_record_is_utc() -> None:
    record = logging.LogRecord("r", logging.INFO, "f", 1, "m", None, None)
    record.created, record.msecs = 0.25, 250.0
    assert LineFormatter().format(record) == "1970-01-01T00:00:00.250Z INFO r: m"


def test_in_json_a_record_is_an_object_whatever_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("INFO", JSON)
    room = logging.getLogger("some.room")
    room.info("a %s\n{}", 'file\'s "name"')
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        room.exception("went wrong")
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(t["level"], t["logger"]) for t in told] == [("INFO", "some.room"), ("ERROR", "some.room")]
    assert told[0]["message"] == 'a file\'s "name"\n{}' and "exception" not in told[0]
    assert told[1]["message"] == "went wrong" and "first\nsecond" in told[1]["exception"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", t["time"]) for t in told)


def test_in_json_a_name_that_is_no_unicode_is_an_escape() -> None:
    line = as_json(0.0, "INFO", "room", "caf\udce9 \u00e9")
    assert line.encode() and json.loads(line)["message"] == "caf\udce9 \u00e9"


def test_in_json_what_nobody_caught_is_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("INFO", JSON)
    thread = threading.Thread(target=lambda: [][1])
    thread.start()
    thread.join()
    sys.excepthook(KeyError, KeyError("k"), None)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [t["message"].split(":")[0] for t in told[:2]] == ["IndexError", "KeyError"]
    assert "IndexError" in told[0]["exception"]
    assert [t["logger"] for t in told[2:]] == ["py.warnings"]
    setup_logging("INFO", TEXT)
    assert sys.excepthook is sys.__excepthook__


def test_an_error_that_ends_a_command_is_a_line_of_the_format(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before the settings could be read: then the variable tells."""
    tell_error("no\nsuch topic")
    assert capsys.readouterr().err == "error: no such topic\n"
    monkeypatch.setenv("LOG_FORMAT", " JSON")
    tell_error("no\nsuch topic")
    told = json.loads(capsys.readouterr().err)
    assert (told["level"], told["message"]) == ("ERROR", "no such topic")
    setup_logging("INFO", TEXT)
    tell_error(str(LinkRefused("x")))
    assert capsys.readouterr().err == "error: x\n"


def test_a_process_of_lanes_logs_as_its_plan_says_unless_somebody_else_has_set_it_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = logging.getLogger()
    others = list(root.handlers)
    assert others, "pytest's own"
    setup_worker("INFO", JSON)
    assert root.handlers == others
    for handler in others:
        root.removeHandler(handler)
    try:
        for level in ("INFO", "ERROR"):
            setup_worker(level, JSON)
            logging.getLogger("lane").info("%s", level)
    finally:
        for handler in others:
            root.addHandler(handler)
    assert [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()] == ["INFO"]


def test_lines_of_others_are_wrapped_and_json_is_left_alone() -> None:
    assert wrapped('{"message": "x"}') == '{"message": "x"}'
    told = json.loads(wrapped("WARNING: Using incubator modules: jdk.incubator.vector"))
    assert (told["logger"], told["message"][:7]) == ("stderr", "WARNING")


@pytest.mark.parametrize(("error", "told"), [(EOFError(), 0), (ConnectionResetError(), 0), (KeyError(7), 1)])
def test_a_jvm_that_hangs_up_leaves_no_traceback(
    error: Exception, told: int, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    jvm_log.listen_to_accumulators()

    class Breaks(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            raise error

    with (
        AccumulatorTCPServer(("127.0.0.1", 0), Breaks, "token") as server,
        socket.create_connection(server.socket.getsockname()),
    ):
        server.handle_request()
    assert capsys.readouterr().err == ""
    assert [r.levelname for r in caplog.records] == ["ERROR"] * told


def test_what_a_process_and_its_children_write_to_stderr_is_handed_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    relay = jvm_log.Relay()
    command = [sys.executable, "-c", 'import os; os.system("echo plain >&2"); os.write(2, b"{}\\n\\n\\xff")']
    with subprocess.Popen(command, **relay.arguments()):
        relay.started()
    relay.join(10)
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line).get("message") for line in lines] == ["plain", None, "\\xff"]
