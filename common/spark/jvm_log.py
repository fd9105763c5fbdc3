"""What Spark's JVM says: errors alone, one line each, in the format of the application's own log."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark import accumulators

from common import log_lines

log = logging.getLogger(__name__)

_LOG4J = """\
rootLogger.level = error
# The level Spark thinks a shell's: where it differs from the root's, Spark says so and changes the root's.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
# What a step of Spark's own stop failed at, before it goes on with the next: the API server of Kubernetes that does not answer in time, say.
logger.stop.name = org.apache.spark.util.Utils
logger.stop.level = error
logger.stop.filter.tidying.type = RegexFilter
logger.stop.filter.tidying.regex = Uncaught exception in thread .*
logger.stop.filter.tidying.onMatch = DENY
logger.stop.filter.tidying.onMismatch = NEUTRAL
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
"""
_AS_TEXT = """\
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC} %p %c{1}: %enc{%m %ex}{CRLF}%n
"""
_AS_JSON = r"""appender.stderr.layout.type = JsonTemplateLayout
appender.stderr.layout.eventTemplate = {"time": {"$resolver": "timestamp", "pattern": {"format": "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "timeZone": "UTC"}}, "level": {"$resolver": "level", "field": "name"}, "logger": {"$resolver": "logger", "field": "name"}, "message": {"$resolver": "message", "stringified": true}, "exception": {"$resolver": "exception", "field": "stackTrace", "stackTrace": {"stringified": true}}}
"""


def configuration(form: str) -> str:
    """Of log4j, as a properties file."""
    return _LOG4J + (_AS_JSON if form == log_lines.JSON else _AS_TEXT)


def is_given(environ: Mapping[str, str]) -> bool:
    """Whether somebody has given a configuration of their own."""
    directory = environ.get("SPARK_CONF_DIR")
    return directory is not None and any(Path(directory).glob("log4j2*"))


def listen_to_accumulators() -> None:
    """A JVM that ends breaks off the connection by which it tells pyspark of accumulators, and pyspark prints
    a traceback for it. Why the JVM has ended is told elsewhere (common/spark/java.py)."""
    for server in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        server.handle_error = _broke_off  # type: ignore[assignment]


def _broke_off(*_: object) -> None:
    error = sys.exc_info()[1]
    if isinstance(error, EOFError | OSError):
        log.debug("the JVM has hung up: %r", error)
    else:
        log.error("pyspark's accumulators: %r", error)


class Relay:
    """Hands on what a process and those below it write to stderr, line by line, those that are not JSON as
    JSON: what a JVM says itself nobody can set a format for."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="jvm-log", daemon=True)

    def arguments(self) -> dict[str, Any]:
        """For Popen."""
        return {"stderr": self._write}

    def started(self) -> None:
        """The process has its end."""
        os.close(self._write)
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Until all who write have ended."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        with os.fdopen(self._read, errors="backslashreplace") as lines:
            for line in lines:
                if line := line.rstrip("\r\n"):
                    sys.stderr.write(f"{log_lines.wrapped(line)}\n")
                    sys.stderr.flush()
