"""Asks a registry over HTTP: one connection that is kept, logins, TLS, retries. What is asked is
schemas/requests.py's part."""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

from common.errors import LinkRefused, RegistryError, SettingsError
from common.pipeline.definition import read_secret
from common.pipeline.registries import Registry as Config
from schemas.requests import Request

TIMEOUT_S = 10.0
"""For each answer."""
PAUSES_S = (0.2, 1.0)
"""Before what is tried again."""
PASSING = frozenset({408, 429, 500, 502, 503, 504})
MOST_BYTES = 64 << 20
_TYPE = "application/vnd.schemaregistry.v1+json"
_WORDS = 200
"""So many characters of what a registry says of an error."""


class Http:
    """A registry's address. `which`: its name in the file, `source` or `target`. For one thread at a time."""

    def __init__(self, which: str, config: Config) -> None:
        """Raises SettingsError for a login or a file of authorities that can't be read."""
        parts = urlsplit(config.url)
        assert parts.hostname is not None
        self.which = which
        self.host = parts.netloc
        self._base = parts.path.rstrip("/")
        self._auth = config.auth
        self._login()
        self._client = config.client
        if parts.scheme == "https":
            self._tls = _tls(which, config.ca)
            self._show()
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=TIMEOUT_S, context=self._tls
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)

    def __str__(self) -> str:
        return f"registry {self.host} ({self.which})"

    def ask(self, request: Request) -> Any:
        """The answer's JSON. All requests can be made twice: what fails in passing is tried again. Raises
        RegistryError, and LinkRefused where the login is not taken."""
        for pause_s in (*PAUSES_S, None):
            try:
                return self._ask(request)
            except RegistryError as error:
                if not error.retriable or pause_s is None:
                    raise
                time.sleep(pause_s)
        raise AssertionError

    def close(self) -> None:
        self._connection.close()

    def _ask(self, request: Request) -> Any:
        body = None if request.body is None else json.dumps(request.body).encode()
        headers = {"Accept": f"{_TYPE}, application/json", "Content-Type": _TYPE, **self._login()}
        where = f"{self}: {request.about}"
        try:
            if self._connection.sock is None:
                self._show()
        except SettingsError as error:
            raise RegistryError(f"{where}: {error}", retriable=True) from None
        try:
            self._connection.request(request.method, self._base + request.path, body, headers)
            answer = self._connection.getresponse()
            content = answer.read(MOST_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            why = f"{type(error).__name__}: {error}".rstrip(": ")
            raise RegistryError(f"{where}: can't be reached: {why}", retriable=True) from None
        if len(content) > MOST_BYTES:
            self._connection.close()
            raise RegistryError(f"{where}: the answer is longer than {MOST_BYTES} bytes")
        try:
            found = json.loads(content) if content else None
        except ValueError:
            found = None
            if answer.status < 300:
                raise RegistryError(f"{where}: the answer is not JSON: is there a registry?") from None
        if answer.status < 300:
            return found
        said = found if isinstance(found, dict) else {}
        words = str(said.get("message") or answer.reason)[:_WORDS]
        message = f"{where}: {request.method} answers {answer.status}: {words}"
        if answer.status == 401:
            raise LinkRefused(f"{message}: mend registries.{self.which}.auth")
        code = said.get("error_code")
        raise RegistryError(
            message,
            status=answer.status,
            code=code if isinstance(code, int) else None,
            retriable=answer.status in PASSING,
        )

    def _show(self) -> None:
        """The certificate of one's own, as it is by now, to whom the next connection is to. Raises
        SettingsError."""
        if self._client is None:
            return
        label = f"registries.{self.which}.client"
        secret = self._client.password
        password = "" if secret is None else read_secret(f"{label}.password", secret, os.environ)
        try:
            # With a password, be it an empty one, nobody is asked for it.
            self._tls.load_cert_chain(self._client.certificate, self._client.key, password)
        except (OSError, ssl.SSLError, ValueError) as error:
            why = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
            files = f"{self._client.certificate} and {self._client.key}"
            raise SettingsError(f"{label}: can't take {files}: {why}") from None

    def _login(self) -> dict[str, str]:
        if self._auth is None:
            return {}
        label = f"registries.{self.which}.auth"
        if self._auth.basic is not None:
            login = read_secret(f"{label}.basic", self._auth.basic, os.environ)
            if ":" not in login:
                raise SettingsError(f"{label}.basic: expected user:password")
            return {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
        assert self._auth.bearer is not None
        token = read_secret(f"{label}.bearer", self._auth.bearer, os.environ).strip()
        if not token or not token.isascii() or not token.isprintable():
            raise SettingsError(f"{label}.bearer: no token is there")
        return {"Authorization": f"Bearer {token}"}


def _tls(which: str, ca: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"registries.{which}.ca: can't read {ca}: {error.strerror or error}") from None
