"""The examples load as they stand, once the files that they name are there, and no secret is in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from common.config import loading, wire_properties
from common.config.client_properties import is_secret
from common.config.fields import CLUSTERS, KINDS
from common.config.sources import is_setting
from common.kafka.wire import oauth_tokens, tls
from tests.deploy.deployed import ROOT
from tests.support.authority import Authority
from tests.support.env_files import variables_of

EXAMPLES = sorted((ROOT / "examples").iterdir())
SAID = {"AWS_REGION"}
"""What is none of Verbatim's."""
TARGET_LOGIN = {
    "amazon-msk-iam": {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.provider": "aws-msk-iam",
    },
    "azure-event-hubs": {},
    "confluent-cloud": {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "of api-key",
        "sasl.password": "of api-secret",
    },
    "mtls": {
        "security.protocol": "ssl",
        "ssl.ca.location": "/etc/verbatim/target-ca.pem",
        "ssl.certificate.location": "/etc/verbatim/target.pem",
        "ssl.key.location": "/etc/verbatim/target.key",
        "ssl.key.password": "of target-key-password",
    },
    "oidc": {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token",
        "sasl.oauthbearer.client.id": "verbatim",
        "sasl.oauthbearer.client.secret": "of client-secret",
        "sasl.oauthbearer.scope": "kafka",
    },
    "strimzi-user": {
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": "/etc/target/ca/ca.crt",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "verbatim",
        "sasl.password": "of password",
    },
}


def shown(file: Path) -> str:
    """Its text, and below it what stands there as a comment to be taken in."""
    text = file.read_text()
    return text + "\n" + "\n".join(re.findall(r"^#([A-Z_]+=\S.*)$", text, re.MULTILINE))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_loads_with_the_files_that_it_names(file: Path, tmp_path: Path) -> None:
    variables = variables_of(file.read_text())
    assert {name for name in variables if not is_setting(name)} <= SAID
    there = dict(variables)
    for name, path in variables.items():
        if name.endswith("_FILE"):
            secret = tmp_path / Path(path).name
            secret.write_text(f"of {secret.name}\n")
            there[name] = str(secret)
    settings = loading.load(there)
    assert settings.warnings == []
    for cluster in CLUSTERS:
        for kind in KINDS:
            config = settings.client_config(cluster, kind)
            assert wire_properties.refused(config) is None
            if oauth_tokens.PROVIDER in config:
                assert config[oauth_tokens.PROVIDER] == "aws-msk-iam", "no module of somebody's"
    own = settings.client_config("destination", "admin")
    del own["bootstrap.servers"]
    assert own == TARGET_LOGIN[file.stem]
    azure = settings.client_config("source", "consumer")
    assert file.stem != "azure-event-hubs" or azure["sasl.password"] == "of connection-string"


def test_a_key_opens_with_the_password_of_its_file(tmp_path: Path) -> None:
    """The files of the example with certificates are what a TLS connection takes."""
    authority = Authority()
    key, certificate = authority.issue("verbatim", "pass phrase")
    made = {"ca.pem": authority.pem, ".pem": certificate, ".key": key, "key-password": "pass phrase\n"}
    variables = variables_of((ROOT / "examples" / "mtls.env").read_text())
    there = {name: value.replace("/etc/verbatim", str(tmp_path)) for name, value in variables.items()}
    for path in filter(lambda value: value.startswith("/"), there.values()):
        Path(path).write_text(next(text for ending, text in made.items() if path.endswith(ending)))
    settings = loading.load(there)
    for cluster in CLUSTERS:
        tls.context(settings.client_config(cluster, "consumer"))
    (tmp_path / "target-key-password").write_text("another")
    with pytest.raises(KafkaException, match="TLS can't be set up"):
        tls.context(loading.load(there).client_config("destination", "producer"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_what_an_example_proposes_in_a_comment_loads_too(file: Path, tmp_path: Path) -> None:
    variables = variables_of(shown(file))
    (tmp_path / "secret").write_text("s")
    there = {n: str(tmp_path / "secret") if n.endswith("_FILE") else v for n, v in variables.items()}
    assert loading.load(there).warnings == []


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_no_example_holds_a_secret_or_asks_for_one_in_a_variable(file: Path) -> None:
    for name in variables_of(shown(file)):
        key = re.sub(r"^KAFKA_CLUSTERS_[A-Z]+_[A-Z]+_", "", name)
        assert not is_secret(key.lower().replace("_", ".")) or name.endswith("_FILE"), name


def test_the_guide_names_every_example() -> None:
    text = (ROOT / "docs" / "guides" / "security.md").read_text()
    assert {file.name for file in EXAMPLES} == set(re.findall(r"`examples/([\w.-]+)`", text))
    assert TARGET_LOGIN.keys() == {file.stem for file in EXAMPLES}
