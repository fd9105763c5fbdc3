"""Serves what answers of a process' own make, over HTTP: GET and HEAD alone. What they say is elsewhere."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from common.errors import SettingsError

if TYPE_CHECKING:
    from common.config.settings import Settings

SILENT_S = 30.0
"""A connection on which nothing comes for so long is closed."""


class Answer(NamedTuple):
    status: int
    body: bytes
    kind: str = "application/json"
    headers: Mapping[str, str] = {}


NOT_ALLOWED = Answer(405, b'{"error":"GET or HEAD"}', headers={"Allow": "GET, HEAD"})

Answers = Callable[[str, str], Answer]
"""What to answer to a path, without its query, and to what the client says that it accepts."""


class HealthServer:
    """Serves until closed."""

    def __init__(self, answers: Answers, address: str, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout: ClassVar[float] = SILENT_S

            def do_GET(self) -> None:
                self._send(answers(self.path.partition("?")[0], self.headers.get("Accept", "")))

            do_HEAD = do_GET

            def do_POST(self) -> None:
                self._send(NOT_ALLOWED)

            do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST

            def _send(self, answer: Answer) -> None:
                # Who asked may be gone by now.
                with contextlib.suppress(ConnectionError, TimeoutError):
                    self.send_response(answer.status)
                    self.send_header("Content-Type", answer.kind)
                    self.send_header("Content-Length", str(len(answer.body)))
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    if self.command != "HEAD":
                        self.wfile.write(answer.body)

            def log_message(self, format: str, *args: object) -> None:
                pass  # probes come every few seconds

        try:
            self._server = ThreadingHTTPServer((address, port), Handler)
        except OSError as error:
            raise SettingsError(f"HEALTH_PORT: can't listen on {address}:{port}: {error.strerror}") from None
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def serving(answers: Answers, settings: Settings) -> Iterator[None]:
    """Serve them meanwhile, unless HEALTH_PORT is 0."""
    if not settings.health_port:
        yield
        return
    server = HealthServer(answers, settings.health_address, settings.health_port)
    try:
        yield
    finally:
        server.close()
