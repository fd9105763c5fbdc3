"""Tokens for SASL/OAUTHBEARER (RFC 7628): fetched in a thread, shared by a process's connections, renewed in
time.

From an OIDC token endpoint (KIP-768), from a Python callable, or made here without a signature, as the client
library makes them for tests.
"""

from __future__ import annotations

import base64
import functools
import importlib
import json
import logging
import os
import select
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import ports
from common.kafka.wire.sasl import Refused
from common.kafka.wire.tls import authorities

log = logging.getLogger(__name__)

PROVIDER = "sasl.oauthbearer.provider"
"""A property of Verbatim's own: `module:function`, or `aws-msk-iam`."""
_RENEWED_AT = 0.8
"""Of a token's life."""
_CALL_S = 10.0
_WAITED_S = 8.0
"""For a token: the client library gives up a client that has none after ten."""
_NOT_SECONDS = 1e11
"""In the year 5138; as milliseconds, in 1973."""
_AGAIN_S, _AGAIN_MOST_S = 1.0, 30.0
_UNSECURED = {"principalClaimName": "sub", "scopeClaimName": "scope", "lifeSeconds": "3600"}


@dataclass(frozen=True, slots=True)
class Token:
    """`expires`: in seconds since 1970."""

    value: str = field(repr=False)
    expires: float
    principal: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)


class Tokens:
    """One source of tokens. A failure is told in one line, and waited out for longer and longer."""

    def __init__(self, whose: str, fetch: Callable[[], Token]) -> None:
        self._whose, self._fetch = whose, fetch
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._renew_at = self._good_until = float("-inf")
        self._error: OSError | Refused | None = None
        self._again_at, self._pause_s = float("-inf"), _AGAIN_S
        self._waiting: list[socket.socket] = []
        """Closed when the fetching that goes on has ended; none while none does."""

    def current(self) -> Generator[tuple[int, int], None, Token]:
        """A token that is good; one that is due for renewal is renewed first, if that can be done. Raises
        OSError where none can be had at the moment, Refused where it is refused."""
        while (token := self._usable()) is None:
            with self._told() as hears:
                yield hears.fileno(), select.POLLIN
        return token

    def waited_for(self) -> Token:
        """The same for a thread of its own, which gives up after `_WAITED_S`: a provider may never return."""
        deadline = ports.Deadline(_WAITED_S)
        waits = self.current()
        while True:
            try:
                descriptor, events = next(waits)
            except StopIteration as done:
                found: Token = done.value
                return found
            poll = select.poll()
            poll.register(descriptor, events)
            if not poll.poll(1000 * deadline.left()):
                waits.close()
                raise TimeoutError(f"no token within {_WAITED_S:g} s")

    def _usable(self) -> Token | None:
        now = ports.monotonic()
        with self._lock:
            if self._token is not None and now < self._renew_at:
                return self._token
            if now >= self._again_at:
                return None
            if self._token is not None and now < self._good_until:
                return self._token
            assert self._error is not None
            # Another one each time: an exception that is raised again grows a longer trace.
            raise type(self._error)(*self._error.args)

    def _told(self) -> socket.socket:
        """What can be read as soon as a fetching has ended, which is begun where none goes on."""
        hears, says = socket.socketpair()
        with self._lock:
            self._waiting.append(says)
            first = len(self._waiting) == 1
        if first:
            ports.thread(self._renew, f"token {self._whose}").start()
        return hears

    def _renew(self) -> None:
        try:
            result: Token | OSError | Refused = self._fetch()
        except (OSError, Refused) as error:
            result = error
        except Exception as error:  # noqa: BLE001 - a provider's, whatever it is
            result = OSError(f"{type(error).__name__} from the provider: {error}")
        with self._lock:
            self._take(result)
            waiting, self._waiting = self._waiting, []
        for says in waiting:
            says.close()

    def _take(self, result: Token | OSError | Refused) -> None:
        now = ports.monotonic()
        if isinstance(result, Token):
            left_s = result.expires - time.time()
            if left_s > 0:
                self._token, self._error = result, None
                self._renew_at, self._good_until = now + _RENEWED_AT * left_s, now + left_s
                self._again_at, self._pause_s = float("-inf"), _AGAIN_S
                return
            result = OSError("the token that was given has expired already: compare the clocks")
        self._error, self._again_at = result, now + self._pause_s
        # Of the first one whoever waits for it tells.
        if self._token is not None:
            log.warning("no token for %s: %s; next try in %.0f s", self._whose, result, self._pause_s)
        self._pause_s = min(_AGAIN_MOST_S, 2 * self._pause_s)


def of(config: Mapping[str, Any]) -> Tokens:
    """The tokens of clients with these properties: one source for all that come in the same way."""
    wanted = ("sasl.", "https.", "enable.sasl", "bootstrap.")
    return _shared(
        tuple(sorted((name, str(value)) for name, value in config.items() if name.startswith(wanted)))
    )


@functools.cache
def _shared(given: tuple[tuple[str, str], ...]) -> Tokens:
    config = dict(given)
    return Tokens(config.get("bootstrap.servers", ""), lambda: fetched(config))


def for_library(config: Mapping[str, Any]) -> dict[str, Any]:
    """A client's properties as the client library takes them: a provider of tokens as its callback.

    With a callback confluent_kafka (2.16) sleeps for a whole second in each constructor, before it looks
    whether the token has been set, which it was at once. From an OIDC endpoint the library therefore fetches
    its tokens itself.
    """
    if PROVIDER not in config:
        return dict(config)

    def called(_: str | None) -> tuple[str, float, str, dict[str, str]]:
        token = of(config).waited_for()
        return token.value, token.expires, token.principal, dict(token.extensions)

    return {name: value for name, value in config.items() if name != PROVIDER} | {"oauth_cb": called}


def first_message(token: Token) -> bytes:
    """The client's first, RFC 7628, with the extensions of KIP-342."""
    fields = [f"auth=Bearer {token.value}", *(f"{name}={value}" for name, value in token.extensions.items())]
    return ("n,,\x01" + "".join(f"{entry}\x01" for entry in fields) + "\x01").encode()


class Client:
    """One authentication, in the manner of scram.Client."""

    def __init__(self, token: Token) -> None:
        self._token = token
        self.done = False
        self.said = ""
        """By a broker that does not take the token."""

    def first(self) -> bytes:
        return first_message(self._token)

    def answer(self, said: bytes) -> bytes | None:
        """Nothing is success. An error is acknowledged, whereupon the broker refuses in words of its own."""
        if self.said:
            raise Refused(f"the token is not taken: {self.said}")
        if not said:
            self.done = True
            return None
        self.said = said.decode("utf-8", "replace")
        return b"\x01"


# where tokens come from


def fetched(config: Mapping[str, str]) -> Token:
    """A new one, waited for. Raises as `Tokens.current`; a provider raises what it likes."""
    if PROVIDER in config:
        return _provided(provider(config[PROVIDER])())
    return _from_endpoint(config) if config.get("sasl.oauthbearer.method") == "oidc" else _unsecured(config)


def provider(name: str) -> Callable[[], Any]:
    """The callable that a setting names. Raises ValueError."""
    if name == "aws-msk-iam":
        return _aws_msk_iam
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name!r} can't be imported as module:function: {error}") from None
    if not callable(found):
        raise ValueError(f"{name!r} is not callable")
    return found  # type: ignore[no-any-return]


def _provided(given: Any) -> Token:
    """Raises Refused, without the words of what was given: there may be a token among them."""
    try:
        token, expires, *rest = given
        principal, extensions = (*rest, "", {})[:2] if len(rest) == 0 else (*rest, {})[:2]
        made = Token(token, float(expires), str(principal), dict(extensions or {}))
    except (TypeError, ValueError):
        made = None
    if made is None or not isinstance(made.value, str) or not made.value or made.expires > _NOT_SECONDS:
        raise Refused(
            "what the provider returns is not (token, expires), with a principal and a dictionary of extensions if need be; "
            "expires in seconds since 1970"
        )
    return made


def _aws_msk_iam() -> tuple[str, float]:
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise Refused("aws-msk-iam needs the variable AWS_REGION")
    try:
        signer = importlib.import_module("aws_msk_iam_sasl_signer.MSKAuthTokenProvider")
    except ImportError:
        raise Refused("aws-msk-iam needs the extra msk-iam (aws-msk-iam-sasl-signer-python)") from None
    token, expires_ms = signer.generate_auth_token(region)
    return token, expires_ms / 1000


def _unsecured(config: Mapping[str, str]) -> Token:
    """A JWS without signature, from `sasl.oauthbearer.config`."""
    pairs = (pair.partition("=") for pair in config.get("sasl.oauthbearer.config", "").split())
    given = _UNSECURED | {name: value for name, _, value in pairs}
    if not given.get("principal") or not given["lifeSeconds"].isdigit():
        raise Refused("sasl.oauthbearer.config needs principal=..., and lifeSeconds in whole seconds")
    # In whole seconds: brokers refuse a token of microseconds later than their milliseconds.
    now = int(time.time())
    expires = now + int(given["lifeSeconds"])
    claims: dict[str, Any] = {given["principalClaimName"]: given["principal"], "iat": now, "exp": expires}
    if "scope" in given:
        claims[given["scopeClaimName"]] = given["scope"].split(",")
    value = ".".join([_base64url({"alg": "none"}), _base64url(claims), ""])
    extensions = {k.removeprefix("extension_"): v for k, v in given.items() if k.startswith("extension_")}
    return Token(value, expires, given["principal"], extensions)


def _base64url(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _from_endpoint(config: Mapping[str, str]) -> Token:
    """By the grant `client_credentials` (RFC 6749, 4.4)."""
    url = config.get("sasl.oauthbearer.token.endpoint.url", "")
    user, secret = (config.get(f"sasl.oauthbearer.client.{what}", "") for what in ("id", "secret"))
    if not url.startswith(("http://", "https://")) or not user:
        raise Refused("sasl.oauthbearer.token.endpoint.url and client.id: not set, or no http(s) URL")
    form = {"grant_type": "client_credentials"}
    if scope := config.get("sasl.oauthbearer.scope"):
        form["scope"] = scope
    headers = {
        "Accept": "application/json",
        "Content-Type": "application/x-www-form-urlencoded",
        "Authorization": "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode(),
    }
    asked = urllib.request.Request(url, urllib.parse.urlencode(form).encode(), headers)  # noqa: S310 - checked above
    asked_at = time.time()
    said = _asked(asked, url, _https(config) if url.startswith("https:") else None)
    token = _access_token(said, url)
    pairs = (pair.partition("=") for pair in config.get("sasl.oauthbearer.extensions", "").split(","))
    extensions = {name: value for name, _, value in pairs if name}
    return Token(token, _expiry(token, said, asked_at), "", extensions)


def _asked(request: urllib.request.Request, url: str, context: ssl.SSLContext | None) -> Any:
    try:
        with urllib.request.urlopen(request, timeout=_CALL_S, context=context) as answer:  # noqa: S310
            return json.loads(answer.read(1 << 20))
    except urllib.error.HTTPError as error:
        words = f"the token endpoint {url} answers {error.code} {error.reason}"
        error.close()
        if error.code in (400, 401, 403):
            raise Refused(f"{words}: mend sasl.oauthbearer.client.id or client.secret") from None
        raise OSError(words) from None
    except urllib.error.URLError as error:
        raise OSError(f"the token endpoint {url} can't be reached: {error.reason}") from None
    except ValueError:
        raise OSError(f"what the token endpoint {url} answers is not JSON") from None


def _access_token(said: Any, url: str) -> str:
    token = said.get("access_token") if isinstance(said, dict) else None
    if not isinstance(token, str) or not token:
        raise OSError(f"the answer of the token endpoint {url} has no access_token")
    return token


def _expiry(token: str, said: Mapping[str, Any], asked_at: float) -> float:
    """By the token itself, where it can be read; else by what was said beside it."""
    try:
        payload = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"])
    except (IndexError, KeyError, TypeError, ValueError):
        pass
    try:
        return asked_at + float(said["expires_in"])
    except (KeyError, TypeError, ValueError):
        raise OSError("the token endpoint does not say until when its token is good") from None


def _https(config: Mapping[str, str]) -> ssl.SSLContext:
    given = {
        f"ssl.ca.{what}": config[f"https.ca.{what}"]
        for what in ("location", "pem")
        if f"https.ca.{what}" in config
    }
    if (place := given.get("ssl.ca.location")) is not None and place != "probe" and not Path(place).exists():
        raise Refused(f"https.ca.location: there is no {place}")
    return ssl.create_default_context(**authorities(given))
