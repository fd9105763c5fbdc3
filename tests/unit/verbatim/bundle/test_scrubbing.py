"""What somebody else reads has no secret in it: the link's own ones in every form, others by their look."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import loading
from common.config.client_properties import HIDDEN
from verbatim.bundle.scrubbing import LEAST, Scrubber, secrets_of

SECRET = 'C4n"ar\\y/ß+&x'  # noqa: S105


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        json.dumps(SECRET),
        json.dumps({"message": json.dumps({"tried": SECRET})})[1:-1],
        json.dumps(SECRET, ensure_ascii=False),
        quote(SECRET),
        quote(SECRET, safe=""),
        base64.b64encode(SECRET.encode()).decode(),
    ],
)
def test_what_is_known_to_be_secret_goes_in_every_form(form: str) -> None:
    clean = Scrubber([SECRET]).text(f"before {form} behind")
    assert "before" in clean and "behind" in clean and HIDDEN in clean
    assert "ar" not in clean.replace("before", "")
    assert form not in clean


@given(st.lists(st.text(min_size=LEAST), min_size=1), st.text())
def test_no_known_secret_is_left(secrets: list[str], around: str) -> None:
    """Also where one is a part of another. (What is put in its place is no secret, whatever it contains.)"""
    text = around.join(secrets)
    clean = Scrubber(secrets).text(text).replace(HIDDEN, "\0")
    assert not [secret for secret in secrets if "\0" not in secret and secret in clean]


@pytest.mark.parametrize(
    ("line", "clean"),
    [
        ("sasl.password=hunter2 tried", "sasl.password=[hidden] tried"),
        ('password="a b\' c", next', 'password="[hidden]", next'),
        ('{"sasl_password": "a b", "n": 1}', '{"sasl_password": "[hidden]", "n": 1}'),
        (
            '{"message": "login password=\\"a b\\" failed"}',
            '{"message": "login password=\\"[hidden]\\" failed"}',
        ),
        (
            '{"message": "{\\"api_key\\": \\"a b\\"}"}',
            '{"message": "{\\"api_key\\": \\"[hidden]\\"}"}',
        ),
        ("Authorization: Bearer eyJhbGci.e30", "Authorization: Bearer [hidden]"),
        ("basic dXNlcjpwYXNz", "basic [hidden]"),
        ("at https://me:and@host/x", "at https://[hidden]@host/x"),
        (
            "a\n-----BEGIN EC PRIVATE KEY-----\nMIG\n-----END EC PRIVATE KEY-----\nb",
            "a\n[hidden]\nb",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMIG, cut", "[hidden]"),
    ],
)
def test_secrets_of_others_go_by_their_look(line: str, clean: str) -> None:
    assert Scrubber([]).text(line) == clean


@pytest.mark.parametrize(
    "line",
    [
        '{"secret": 1, "has_token": true, "password": null, "keys": ["token"]}',
        "basic settings, bearer of news; tokens and passwords, none of them",
        "http://host/a@b, orders-0 at offset 12",
        "-----BEGIN CERTIFICATE-----\nMIG\n-----END CERTIFICATE-----",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    """JSON stays JSON."""
    assert Scrubber(["no"]).text(line) == line


def test_all_that_settings_hide_is_known() -> None:
    settings = loading.load(
        environ={
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret%2Dsix",
            "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "a:1",
            "KAFKA_CLUSTERS_SOURCE_TOPIC": "orders",
            "KAFKA_CLUSTERS_SOURCE_PROPERTIES_SASL_USERNAME": "alice",
            "KAFKA_CLUSTERS_SOURCE_PROPERTIES_SASL_PASSWORD": "secret-one",
            "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "b:1",
            "KAFKA_CLUSTERS_DESTINATION_PRODUCER_SSL_KEY_PASSWORD": "secret-two",
            "STATE_PATH": "s3a://key:secret-three@bucket/state",
        },
        spark_conf={"spark.hadoop.fs.s3a.secret.key": "secret-five", "spark.app.note": "plain"},
    )
    found = secrets_of(settings)
    assert {f"secret-{n}" for n in ("one", "two", "three", "five", "six")} <= found
    assert not found & {"alice", "plain", "bucket", "state", "s3a"}
