"""Tokens: shared, renewed in time, and what goes wrong on the way to one."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from common import ports
from common.kafka.wire import oauth_tokens
from common.kafka.wire.oauth_tokens import Client, Token, Tokens
from common.kafka.wire.sasl import Refused

OIDC = {
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "a",
    "sasl.oauthbearer.client.secret": "hush",
}


class Answers(BaseHTTPRequestHandler):
    status, body = 200, b""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/t"
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (401, b"", Refused, "answers 401"),
        (503, b"", OSError, "answers 503"),
        (200, b"<html>", OSError, "is not JSON"),
        (200, b"{}", OSError, "has no access_token"),
        (200, b'{"access_token": "x"}', OSError, "until when"),
    ],
)
def test_what_an_endpoint_does_wrong_is_said(
    url: str, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, error: type[Exception], words: str
) -> None:
    monkeypatch.setattr(Answers, "status", status)
    monkeypatch.setattr(Answers, "body", body)
    with pytest.raises(error, match=words) as caught:
        oauth_tokens.fetched(OIDC | {"sasl.oauthbearer.token.endpoint.url": url})
    assert "hush" not in str(caught.value)


def test_an_endpoint_that_is_away_is_said() -> None:
    with pytest.raises(OSError, match="can't be reached"):
        oauth_tokens.fetched(OIDC | {"sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/"})


def test_an_opaque_token_is_good_for_as_long_as_the_endpoint_says(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Answers, "body", b'{"access_token": "x", "expires_in": 60}')
    config = OIDC | {"sasl.oauthbearer.token.endpoint.url": url, "sasl.oauthbearer.extensions": "a=1,b=2"}
    found = oauth_tokens.fetched(config)
    assert 50 < found.expires - time.time() <= 60
    assert oauth_tokens.first_message(found) == b"n,,\x01auth=Bearer x\x01a=1\x01b=2\x01\x01"
    assert "'x'" not in repr(found)


def test_a_token_is_renewed_before_it_ends_and_kept_while_none_can_be_had(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(ports, "monotonic", lambda: clock[0])
    given: list[Token | OSError] = [Token("1", time.time() + 1000), OSError("away")]
    asked = 0

    def fetch() -> Token:
        nonlocal asked
        asked += 1
        got = given[min(asked, len(given)) - 1]
        if isinstance(got, OSError):
            raise got
        return got

    made = Tokens("b:1", fetch)
    assert {made.waited_for().value for _ in range(3)} == {"1"}
    assert asked == 1
    clock[0] += 850
    with caplog.at_level(logging.WARNING):
        assert made.waited_for().value == "1"
        assert made.waited_for().value == "1"
    assert asked == 2
    assert caplog.messages == ["no token for b:1: away; next try in 1 s"]
    clock[0] += 200
    with pytest.raises(OSError, match="away"):
        made.waited_for()


def test_who_waits_for_a_token_holds_up_nobody() -> None:
    goes = threading.Event()

    def fetch() -> Token:
        goes.wait()
        return Token("1", time.time() + 60)

    made = Tokens("b:1", fetch)
    waits = made.current()
    next(waits)
    assert not goes.is_set(), "it comes back before there is one"
    goes.set()
    assert made.waited_for().value == "1"
    waits.close()


def test_a_provider_that_fails_is_an_error_of_its_own() -> None:
    def fetch() -> Token:
        raise KeyError("x")

    with pytest.raises(OSError, match="KeyError from the provider"):
        Tokens("b:1", fetch).waited_for()


@pytest.mark.parametrize("name", ["nowhere:f", "json", "json:nothing", "json:__name__", ":f"])
def test_a_provider_that_is_none_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        oauth_tokens.provider(name)


def test_a_broker_that_does_not_take_a_token_is_acknowledged() -> None:
    client = Client(Token("x", 0))
    client.first()
    assert client.answer(b'{"status":"invalid_token"}') == b"\x01"
    assert "invalid_token" in client.said
    assert not client.done


def test_the_client_library_gets_a_provider_as_its_callback() -> None:
    config = {"bootstrap.servers": "b:1", oauth_tokens.PROVIDER: f"{__name__}:provided"}
    given = oauth_tokens.for_library(config)
    assert oauth_tokens.PROVIDER not in given
    assert given["oauth_cb"](None) == ("tok", EXPIRES, "me", {"a": "1"})


EXPIRES = float(int(time.time()) + 3600)


def provided() -> tuple[str, float, str, dict[str, str]]:
    return "tok", EXPIRES, "me", {"a": "1"}


def test_a_token_without_a_signature_is_of_whole_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: a broker, whose clock has milliseconds, took one that was issued in the present one for a token
    of the future."""
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.9996)
    token = oauth_tokens.fetched({"sasl.oauthbearer.config": "principal=admin"})
    payload = token.value.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert (claims["iat"], claims["exp"]) == (1_700_000_000, 1_700_003_600)
