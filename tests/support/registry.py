"""A stand-in for Confluent's schema registry, on loopback: subjects, versions, ids by context, references,
soft deletion, compatibility and modes, as its API has them. No schema is understood but for what its
compatibility needs; tests/integration/test_registries.py holds it to a real registry."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from schemas.model import context_of
from verbatim.local.processes import HOST

JSON = dict[str, Any]
_KEPT = ("schema", "schemaType", "references", "metadata", "ruleSet")


class Refused(Exception):
    def __init__(self, status: int, code: int, words: str) -> None:
        super().__init__(words)
        self.status, self.code = status, code


@dataclass
class Stored:
    version: int
    id: int
    content: JSON
    deleted: bool = False


@dataclass
class StandIn:
    """`lie` may change what is about to be stored: (subject, content, id) -> (content, id). `before` is
    called with method and path of each request, and may raise Refused."""

    url: str = ""
    level: str = "BACKWARD"
    subjects: dict[str, list[Stored]] = field(default_factory=dict)
    levels: dict[str, str] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)
    has_modes: bool = True
    login: str | None = None
    """What the header Authorization must be."""
    lie: Callable[[str, JSON, int], tuple[JSON, int]] = lambda _, content, schema_id: (content, schema_id)
    before: Callable[[str, str], None] = lambda method, path: None
    asked: list[str] = field(default_factory=list)
    """`METHOD path` of each request."""
    _next: dict[str, int] = field(default_factory=dict)

    # what is asked

    def answer(self, method: str, path: str, query: dict[str, str], body: JSON) -> Any:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match (method, *parts):
            case ("GET", "subjects"):
                return sorted(s for s, of in self.subjects.items() if "deleted" in query or self._live(of))
            case ("GET", "subjects", subject, "versions"):
                of = self.subjects.get(subject, [])
                found = [v.version for v in of if "deleted" in query or not v.deleted]
                if not found:
                    raise Refused(404, 40401, f"Subject '{subject}' not found.")
                return found
            case ("GET", "subjects", subject, "versions", number):
                return self._told(subject, self._version(subject, number, "deleted" in query))
            case ("DELETE", "subjects", subject, "versions", number):
                return self._delete(subject, number)
            case ("POST", "subjects", subject, "versions"):
                return {"id": self._register(subject, body)}
            case ("POST", "subjects", subject):
                return self._told(subject, self._same(subject, body))
            case ("GET", "schemas", "ids", schema_id):
                return self._by_id(context_of(query.get("subject", "")), int(schema_id))
            case ("DELETE", "subjects", subject):
                return self._remove(subject, "permanent" in query)
            case (_, "config", *subject):
                return self._config(method, subject, query, body)
            case (_, "mode", subject) if self.has_modes:
                return self._mode(method, subject, query, body)
        raise Refused(404, 404, "HTTP 404 Not Found")

    @staticmethod
    def _live(of: list[Stored]) -> list[Stored]:
        return [v for v in of if not v.deleted]

    def _version(self, subject: str, number: str, deleted: bool) -> Stored:
        of = self.subjects.get(subject, [])
        if number == "latest" and (live := self._live(of)):
            return live[-1]
        for version in of:
            if number.isdecimal() and version.version == int(number) and (deleted or not version.deleted):
                return version
        raise Refused(404, 40402, f"Version {number} not found.")

    def _same(self, subject: str, body: JSON) -> Stored:
        content = {name: body[name] for name in _KEPT if body.get(name)}
        for version in self._live(self.subjects.get(subject, [])):
            if version.content == content:
                return version
        raise Refused(404, 40403, "Schema not found")

    def _told(self, subject: str, version: Stored) -> JSON:
        return {"subject": subject, "version": version.version, "id": version.id, **version.content}

    def _by_id(self, context: str, schema_id: int) -> JSON:
        for subject, of in self.subjects.items():
            for version in of:
                if version.id == schema_id and context_of(subject) == context:
                    return version.content
        raise Refused(404, 40403, f"Schema {schema_id} not found")

    def _register(self, subject: str, body: JSON) -> int:
        content = {name: body[name] for name in _KEPT if body.get(name)}
        of = self.subjects.get(subject, [])
        for version in self._live(of):
            if version.content == content and body.get("id") in (None, version.id):
                return version.id
        for reference in content.get("references", ()):
            self._version(reference["subject"], str(reference["version"]), deleted=False)
        importing = self.modes.get(subject) == "IMPORT"
        if ("id" in body) != importing:
            mode = "read-write" if importing else "import"
            raise Refused(422, 42205, f"Subject {subject} is not in {mode} mode")
        context = context_of(subject)
        same = [
            v.id
            for s, vs in self.subjects.items()
            if context_of(s) == context
            for v in vs
            if v.content == content
        ]
        if importing:
            schema_id, number = body["id"], body["version"]
            with_id = [
                v
                for s, vs in self.subjects.items()
                if context_of(s) == context
                for v in vs
                if v.id == schema_id
            ]
            if any(v.content != content for v in with_id):
                raise Refused(422, 42205, f"Overwrite new schema with id {schema_id} is not permitted.")
        else:
            self._check(subject, content)
            number = max((v.version for v in of), default=0) + 1
            schema_id = same[0] if same else self._next.get(context, 1)
        content, schema_id = self.lie(subject, content, schema_id)
        self._next[context] = max(self._next.get(context, 1), schema_id + 1)
        kept = [v for v in of if v.version != number]
        self.subjects[subject] = sorted([*kept, Stored(number, schema_id, content)], key=lambda v: v.version)
        return schema_id

    def _check(self, subject: str, content: JSON) -> None:
        """Of Avro, that a new field has a default: without, what was written before can't be read."""
        before = self._live(self.subjects.get(subject, []))
        if not before or self.levels.get(subject, self.level) == "NONE" or "schemaType" in content:
            return
        old, new = json.loads(before[-1].content["schema"]), json.loads(content["schema"])
        known = {f["name"] for f in old.get("fields", ())} if isinstance(old, dict) else set()
        fields = new.get("fields", ()) if isinstance(new, dict) else ()
        if any(f["name"] not in known and "default" not in f for f in fields):
            raise Refused(
                409, 409, f"Schema being registered is incompatible with an earlier schema for {subject}"
            )

    def _delete(self, subject: str, number: str) -> int:
        version = self._version(subject, number, deleted=False)
        for other, of in self.subjects.items():
            for v in self._live(of):
                for r in v.content.get("references", ()):
                    if (r["subject"], r["version"]) == (subject, version.version):
                        raise Refused(422, 42206, f"One or more references exist to the schema: {other}")
        version.deleted = True
        return version.version

    def _remove(self, subject: str, permanent: bool) -> list[int]:
        of = self.subjects.get(subject, [])
        if not of:
            raise Refused(404, 40401, f"Subject '{subject}' not found.")
        live = self._live(of)
        if permanent:
            if live:
                raise Refused(
                    404, 40405, f"Subject '{subject}' was not deleted first before being permanently deleted"
                )
            del self.subjects[subject]
            return [v.version for v in of]
        if not live:
            raise Refused(404, 40404, f"Subject '{subject}' was soft deleted.")
        for version in live:
            version.deleted = True
        return [v.version for v in live]

    def _config(self, method: str, subject: list[str], query: dict[str, str], body: JSON) -> JSON:
        if method == "PUT":
            if subject:
                self.levels[subject[0]] = body["compatibility"]
            else:
                self.level = body["compatibility"]
            return {"compatibility": body["compatibility"]}
        if method == "DELETE" and subject:
            return {"compatibilityLevel": self.levels.pop(subject[0], self.level)}
        found = self.levels.get(subject[0]) if subject else self.level
        if found is None and "defaultToGlobal" in query:
            found = self.level
        if found is None:
            raise Refused(
                404, 40408, f"Subject '{subject[0]}' does not have subject-level compatibility configured"
            )
        return {"compatibilityLevel": found}

    def _mode(self, method: str, subject: str, query: dict[str, str], body: JSON) -> JSON:
        if method == "PUT":
            mode = body["mode"]
            if (
                mode == "IMPORT"
                and self._live(self.subjects.get(subject, []))
                and query.get("force") != "true"
            ):
                raise Refused(422, 42205, "Cannot import since found existing subjects")
            self.modes[subject] = mode
            return {"mode": mode}
        if subject not in self.modes:
            code = 40409 if method == "GET" else 40401
            raise Refused(404, code, f"Subject '{subject}' does not have subject-level mode configured")
        return {"mode": self.modes.pop(subject) if method == "DELETE" else self.modes[subject]}


@contextmanager
def stand_in(tls: ssl.SSLContext | None = None, **settings: Any) -> Iterator[StandIn]:
    """One that listens."""
    registry, lock = StandIn(**settings), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer is one packet, or the client waits for the second

        def answer(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, found = 200, None
            with lock:
                registry.asked.append(f"{self.command} {self.path}")
                try:
                    if registry.login is not None and self.headers.get("Authorization") != registry.login:
                        raise Refused(401, 401, "Unauthorized")
                    registry.before(self.command, parts.path)
                    found = registry.answer(self.command, parts.path, query, json.loads(body or b"{}"))
                except Refused as refused:
                    status, found = refused.status, {"error_code": refused.code, "message": str(refused)}
            content = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 - http.server's names

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 - http.server's name

    server = ThreadingHTTPServer((HOST, 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    registry.url = f"http{'' if tls is None else 's'}://{HOST}:{server.server_address[1]}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
