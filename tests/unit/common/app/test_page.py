"""The page for people: one file, that nothing else may run in, over HTTP."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
from collections.abc import Iterator

import pytest

from common.app import page
from common.app.health import Health
from common.app.health_server import HealthServer
from common.app.link_pages import LinkPages
from common.config.client_properties import HIDDEN
from tests.support.made_up_link import MadeUp, settings


@pytest.fixture
def server() -> Iterator[HealthServer]:
    server = HealthServer(LinkPages(Health("replicator")), "127.0.0.1", 0)
    yield server
    server.close()


def ask(server: HealthServer, method: str, path: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def test_the_page_needs_nothing_from_elsewhere() -> None:
    html = page.page()[0].decode()
    assert not re.search(r"(https?:)?//(?!www\.w3\.org/2000/svg)[\w.]+\.\w+/", html)
    assert not re.search(r"<(script|link|img)[^>]* (src|href)=\"(?!data:)", html)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", html)


def test_the_policy_lets_the_pages_own_script_and_style_run_and_nothing_else() -> None:
    html, policy = page.page()
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'" and rules["connect-src"] == "'self'"
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (own,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html.decode(), re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert "unsafe" not in policy
    assert not re.search(r" (style|on\w+)=", html.decode()), "no policy would let it run"
    assert page.policy("<p>") == policy.replace(rules["script-src"], "'none'").replace(
        rules["style-src"], "'none'"
    )


def test_the_page_is_answered_with_its_headers(server: HealthServer) -> None:
    status, headers, body = ask(server, "GET", "/")
    assert (status, body) == (200, page.page()[0])
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Content-Security-Policy"] == page.page()[1]
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_what_the_page_shows_is_never_kept(server: HealthServer) -> None:
    status, headers, body = ask(server, "GET", "/status.json?now")
    assert status == 200 and json.loads(body)["known"] is False
    assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("path", ["/", "/status.json", "/healthz"])
def test_only_get_and_head_are_answered(server: HealthServer, path: str) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        status, headers, _ = ask(server, method, path)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
    status, headers, body = ask(server, "HEAD", path)
    assert (status, body) == (200, b"") and int(headers["Content-Length"]) > 0


def test_no_secret_is_in_what_is_served() -> None:
    made = MadeUp({"orders": 1})
    properties = "KAFKA_CLUSTERS_SOURCE_PROPERTIES_SASL_"
    made.settings = settings(**{f"{properties}PASSWORD": "hunter2", f"{properties}USERNAME": "me"})
    made.look(1000)
    server = HealthServer(LinkPages(made.health), "127.0.0.1", 0)
    try:
        body = ask(server, "GET", "/status.json")[2].decode()
    finally:
        server.close()
    assert "hunter2" not in body and HIDDEN in body and '"me"' not in body
