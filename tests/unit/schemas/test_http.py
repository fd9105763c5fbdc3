"""How registries are asked: logins, TLS, what is tried again, and errors that say where and never a
secret."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from common.errors import LinkRefused, RegistryError, SettingsError
from common.pipeline.registries import Auth, Client
from common.pipeline.registries import Registry as Config
from schemas import requests
from schemas.http import Http
from schemas.model import Schema
from schemas.registry import Registry
from tests.support.authority import Authority
from tests.support.registry import Refused, StandIn, stand_in


@pytest.fixture
def registry() -> Iterator[StandIn]:
    with stand_in() as found:
        yield found


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schemas.http.PAUSES_S", (0.0, 0.0))


def subjects(**config: Any) -> list[str]:
    with closing(Http("source", Config(**config))) as http:
        return Registry(http).subjects()


def test_a_login_comes_from_the_environment_or_a_file_that_may_change(
    registry: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.login = "Basic " + base64.b64encode(b"me:pass:word").decode()
    monkeypatch.setenv("LOGIN", "me:pass:word")
    assert subjects(url=registry.url, auth=Auth(basic="env:LOGIN")) == []
    file = tmp_path / "token"
    file.write_text("one\n")
    registry.login = "Bearer one"
    with closing(Http("target", Config(url=registry.url, auth=Auth(bearer=f"file:{file}")))) as http:
        assert Registry(http).subjects() == []
        file.write_text("two\n")
        registry.login = "Bearer two"
        assert Registry(http).subjects() == []


@pytest.mark.parametrize(
    ("auth", "message"),
    [
        (Auth(basic="env:NO_SUCH"), "registries.source.auth.basic: the environment has no NO_SUCH"),
        (Auth(basic="env:LOGIN"), "registries.source.auth.basic: expected user:password"),
        (Auth(bearer="file:/no/such"), "registries.source.auth.bearer: can't read /no/such"),
        (Auth(bearer="env:TWO_LINES"), "registries.source.auth.bearer: no token is there"),
    ],
)
def test_a_login_that_is_none_is_an_error_before_anything_is_asked(
    registry: StandIn, auth: Auth, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGIN", "s3cret")
    monkeypatch.setenv("TWO_LINES", "s3cret\nX-Other: s3cret")
    with pytest.raises(SettingsError) as caught:
        subjects(url=registry.url, auth=auth)
    assert message in str(caught.value) and "s3cret" not in str(caught.value)
    assert registry.asked == []


def test_a_login_that_is_not_taken_ends_it_and_is_not_shown(
    registry: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.login = "Bearer other"
    monkeypatch.setenv("TOKEN", "s3cret")
    with pytest.raises(LinkRefused) as caught:
        subjects(url=registry.url, auth=Auth(bearer="env:TOKEN"))
    host = registry.url.removeprefix("http://")
    assert str(caught.value) == (
        f"registry {host} (source): all subjects: GET answers 401: Unauthorized: mend registries.source.auth"
    )
    assert len(registry.asked) == 1


def test_what_fails_in_passing_is_tried_again_and_nothing_else(registry: StandIn) -> None:
    answers: list[Refused | None] = [Refused(503, 50301, "soon"), Refused(429, 42901, "slowly"), None]

    def before(method: str, path: str) -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    registry.before = before
    assert subjects(url=registry.url) == []
    answers += [Refused(500, 50001, "store")] * 3
    with pytest.raises(RegistryError, match="GET answers 500: store") as caught:
        subjects(url=registry.url)
    assert caught.value.retriable and (caught.value.status, caught.value.code) == (500, 50001)
    answers += [Refused(403, 40301, "not yours")]
    with pytest.raises(RegistryError, match="GET answers 403: not yours") as caught:
        subjects(url=registry.url)
    assert not caught.value.retriable and answers == []


def test_a_connection_that_was_closed_meanwhile_is_made_again(registry: StandIn) -> None:
    with closing(Http("source", Config(url=registry.url + "/"))) as http:
        assert Registry(http).subjects() == []
        http._connection.sock.close()
        assert Registry(http).subjects() == []


def test_an_error_names_registry_subject_and_version(registry: StandIn) -> None:
    host = registry.url.removeprefix("http://")
    with closing(Http("target", Config(url=registry.url))) as http:
        with pytest.raises(RegistryError) as caught:
            Registry(http).version("orders value/1", 3)
        assert str(caught.value) == (
            f"registry {host} (target): subject orders value/1, version 3: GET answers 404: Version 3 not found."
        )
    assert registry.asked == ["GET /subjects/orders%20value%2F1/versions/3?deleted=true"]


@pytest.mark.parametrize("answer", [{}, [], {"id": "1"}, {"id": True}])
def test_an_answer_that_is_none_is_an_error_by_name(registry: StandIn, answer: Any) -> None:
    registry.answer = lambda *_: answer  # type: ignore[method-assign]
    with (
        closing(Http("target", Config(url=registry.url))) as http,
        pytest.raises(
            RegistryError, match="subject a: the answer can't be understood: (there is no id|a number)"
        ),
    ):
        Registry(http).register("a", Schema('"int"'))


def test_what_is_no_registry_is_said_to_be_none() -> None:
    with stand_in() as page:
        page.answer = lambda *_: NotImplemented  # type: ignore[method-assign]
        with pytest.raises(RegistryError, match="can't be reached"):
            subjects(url=page.url)


def test_a_registry_is_believed_by_the_authority_that_is_given_alone(tmp_path: Path) -> None:
    authority, other = Authority(), Authority("other")
    key, certificate = authority.issue("registry")
    for name, text in {"key": key, "cert": certificate, "ca": authority.pem, "other": other.pem}.items():
        (tmp_path / name).write_text(text)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    with stand_in(tls) as registry:
        assert subjects(url=registry.url, ca=str(tmp_path / "ca")) == []
        for ca in (str(tmp_path / "other"), None):
            with pytest.raises(RegistryError, match="can't be reached: SSLCertVerificationError"):
                subjects(url=registry.url, ca=ca)
    with pytest.raises(SettingsError, match="registries.source.ca: can't read /no/such"):
        subjects(url=registry.url, ca="/no/such")


@pytest.mark.parametrize("password", ["", "pass phrase"])
def test_a_certificate_of_ones_own_is_shown_and_may_change(
    tmp_path: Path, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: a registry that asks for a certificate gets the one that is in the files when one connects."""
    authority, other = Authority(), Authority("other")
    key, certificate = authority.issue("registry")
    for name, text in {"key": key, "cert": certificate, "ca": authority.pem}.items():
        (tmp_path / name).write_text(text)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    tls.load_verify_locations(tmp_path / "ca")
    tls.verify_mode = ssl.CERT_REQUIRED

    def give(of: Authority) -> None:
        for name, text in zip(("my.key", "my.cert"), of.issue("me", password), strict=True):
            (tmp_path / name).write_text(text)

    monkeypatch.setenv("PASSWORD", password)
    client = Client(
        certificate=str(tmp_path / "my.cert"),
        key=str(tmp_path / "my.key"),
        password="env:PASSWORD" if password else None,
    )
    with stand_in(tls) as registry:
        told: dict[str, Any] = {"url": registry.url, "ca": str(tmp_path / "ca")}
        with pytest.raises(RegistryError, match="can't be reached: .*(alert|EOF|reset|closed)"):
            subjects(**told)
        give(authority)
        assert subjects(**told, client=client) == []
        with closing(Http("source", Config(**told, client=client))) as http:
            give(other)
            with pytest.raises(RegistryError, match="can't be reached"):
                Registry(http).subjects()
            give(authority)
            assert Registry(http).subjects() == []
            (tmp_path / "my.key").write_text("no key")
            assert Registry(http).subjects() == [], "the connection stands"
            http.close()
            with pytest.raises(RegistryError, match="registries.source.client: can't take .*my.cert and "):
                Registry(http).subjects()
        with pytest.raises(SettingsError, match="registries.source.client: can't take .*my.cert and "):
            subjects(**told, client=client)


def test_the_password_of_a_key_is_asked_of_nobody(tmp_path: Path) -> None:
    key, certificate = Authority().issue("me", "pass phrase")
    for name, text in {"key": key, "cert": certificate}.items():
        (tmp_path / name).write_text(text)
    client = Client(certificate=str(tmp_path / "cert"), key=str(tmp_path / "key"))
    with pytest.raises(SettingsError, match="registries.source.client: can't take"):
        subjects(url="https://127.0.0.1:1", client=client)
    with pytest.raises(
        SettingsError, match="registries.source.client.password: the environment has no NOWHERE"
    ):
        subjects(url="https://127.0.0.1:1", client=client.model_copy(update={"password": "env:NOWHERE"}))
    with pytest.raises(ValueError, match="no certificate is shown over http"):
        Config(url="http://127.0.0.1:1", client=client)


def test_a_schema_is_asked_for_as_the_api_has_it() -> None:
    assert requests.by_id(".", 5).path == "/schemas/ids/5"
    assert requests.by_id(".eu", 5).path == "/schemas/ids/5?subject=%3A.eu%3A"
    request = requests.register("a", Schema("message A {}", "PROTOBUF", rules={"x": 1}), 3, 77)
    assert request.body == {
        "schema": "message A {}",
        "schemaType": "PROTOBUF",
        "ruleSet": {"x": 1},
        "version": 3,
        "id": 77,
    }
    assert requests.set_mode("a", "IMPORT").path == "/mode/a?force=true"
