"""How a line of the log looks (LOG_FORMAT): text, or a JSON object. One record takes one line, whatever it
says, and its time is UTC."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from contextvars import ContextVar
from types import TracebackType
from typing import Any

TEXT, JSON = "text", "json"
VARIABLE = "LOG_FORMAT"
_NAMED = "verbatim"

log = logging.getLogger(__name__)


_LINK: ContextVar[str] = ContextVar("link", default="")


def of_link(name: str) -> None:
    """What this thread logs from now on names this link; so does what threads log that it makes by
    common.ports."""
    _LINK.set(name)


def link() -> str:
    """What `of_link` said, or nothing."""
    return _LINK.get()


def said_of_link(line: str) -> str:
    """A line for people, with the link's name before it if there is one to name."""
    return f"{link()}: {line}" if link() else line


class LineFormatter(logging.Formatter):
    """Time (UTC, ISO 8601), level, logger, link if there is one to name, message; a record with line breaks
    or a traceback still takes one line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _utc(record.created)

    def format(self, record: logging.LogRecord) -> str:
        line = "\\n".join(super().format(record).splitlines())
        return line.replace(f" {record.name}: ", f" {record.name} [{link()}]: ", 1) if link() else line


class JsonFormatter(logging.Formatter):
    """An object with `time` (UTC, ISO 8601), `level`, `logger`, `message`, and `link` and `exception`, its
    traceback, where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        trace = self.formatException(record.exc_info) if record.exc_info else None
        return as_json(record.created, record.levelname, record.name, record.getMessage(), trace)


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Its own class, so that setting up twice replaces it and leaves other handlers (a test's) alone."""


def as_json(at: float, level: str, logger: str, message: str, exception: str | None = None) -> str:
    """`at`: in seconds since 1970."""
    said = {"time": _utc(at), "level": level, "logger": logger, "message": message}
    if link():
        said["link"] = link()
    line = json.dumps(said | ({} if exception is None else {"exception": exception}), ensure_ascii=False)
    # Half a surrogate pair, of a file's name say, is written as JSON's own escape for it.
    return line.encode(errors="backslashreplace").decode()


def setup_logging(level: str, form: str = TEXT) -> None:
    """Log to stderr, one line a record, from `level` on; calling again changes both. In JSON, what would end
    the process or a thread with a traceback is a record, too."""
    end_logging()
    root = logging.getLogger()
    handler = _StderrHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == JSON else LineFormatter())
    root.addHandler(handler)
    root.setLevel(level)
    # Py4J logs every call into the JVM at INFO and DEBUG, with its arguments: those may be secrets. And what
    # it raises it dumps as well.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    if form == JSON:
        logging.captureWarnings(True)
        sys.excepthook = _uncaught
        threading.excepthook = _uncaught_in_thread


def end_logging() -> None:
    """Log to stderr no more; handlers of others stay."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _StderrHandler)]:
        root.removeHandler(handler)
    if sys.excepthook is _uncaught:
        logging.captureWarnings(False)
        sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__


def setup_worker(level: str, form: str, name: str = "") -> None:
    """The same in a process that lanes run in, where nobody else has set up logging (a test has); the lane's
    lines name this link."""
    of_link(name)
    if all(isinstance(handler, _StderrHandler) for handler in logging.getLogger().handlers):
        setup_logging(level, form)


def tell_error(message: str) -> None:
    """One line on stderr, whether or not logging is set up: `error: ...`, or a record in JSON."""
    line = " ".join(message.split())
    line = as_json(time.time(), "ERROR", _NAMED, line) if in_json() else f"error: {said_of_link(line)}"
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def in_json() -> bool:
    """Whether lines are in JSON. Before the settings are known, their variable alone tells."""
    ours = [h for h in logging.getLogger().handlers if isinstance(h, _StderrHandler)]
    if ours:
        return isinstance(ours[0].formatter, JsonFormatter)
    return os.environ.get(VARIABLE, "").strip().lower() == JSON


def wrapped(line: str) -> str:
    """A line of a process that does not log in JSON, as JSON; one that is is left as it is."""
    if line.startswith("{") and line.endswith("}"):
        return line
    return as_json(time.time(), "WARNING", "stderr", line)


def _utc(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}Z"


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    log.critical("%s: %s", kind.__name__, error, exc_info=(kind, error, trace))


def _uncaught_in_thread(found: Any) -> None:
    if found.exc_type is not SystemExit:
        _uncaught(found.exc_type, found.exc_value or found.exc_type(), found.exc_traceback)
