"""Two links of a folder, and a third whose file is broken: no secret of any is in a bundle of the first."""

from __future__ import annotations

import io
import json
import tarfile
from base64 import b64encode
from pathlib import Path

from common.config import loading
from verbatim.bundle.known import known
from verbatim.bundle.parts import of_log
from verbatim.bundle.scrubbing import Scrubber
from verbatim.commands.bundle import write

FROM, TO = "KAFKA_CLUSTERS_SOURCE_", "KAFKA_CLUSTERS_DESTINATION_"
PIPELINE = """\
version: 1
registries:
  source: {{url: 'https://sr.old', auth: {{basic: 'file:{folder}/basic'}}}}
  target: {{url: 'https://sr.new', auth: {{bearer: env:SR_NEW}}}}
keys: {{pii: 'file:{folder}/pii', other: 'file:{folder}/away'}}
flows: [{{topics: [orders], value: json, stages: [{{mask: {{key: pii, fields: {{email: hmac}}}}}}]}}]
"""


def canary(of: str) -> str:
    """Looks like nothing that is known by its look."""
    return f'c4n"{of} ary'


def folder_of(path: Path) -> dict[str, str]:
    """Links' files and all that they name; and the environment."""
    links = path / "links"
    links.mkdir()
    for file in ("password", "basic", "pii", "web-identity"):
        login = "alice:" if file == "basic" else ""
        (path / file).write_text(f"{login}{canary(file)}-of-a-file\n")
    jaas = json.dumps(canary("jaas")).replace("\\", "\\\\")  # a properties file takes one of two away
    (path / "client.properties").write_text(
        f"ssl.key.password={canary('store')}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username=u password={jaas};\n"
    )
    (path / "pipeline.yaml").write_text(PIPELINE.format(folder=path))
    ends = f"{FROM}TOPIC: orders\n{FROM}BOOTSTRAP_SERVERS: a:1\n{TO}BOOTSTRAP_SERVERS: b:1\n"
    (links / "east.yaml").write_text(
        f"{ends}{FROM}PROPERTIES_SASL_PASSWORD: {canary('own')}\nPIPELINE: {path}/pipeline.yaml\n"
    )
    (links / "west.yml").write_text(
        f"{ends}{FROM}PROPERTIES_SASL_PASSWORD: {canary('other')}\n"
        f"{TO}PRODUCER_SASL_PASSWORD_FILE: {path}/password\n"
        f"{TO}CLIENT_CONFIG: {path}/client.properties\n"
        f"OTEL_EXPORTER_OTLP_HEADERS: x-key=c4nary-header\n"
        f"STATE_PATH: s3a://key:c4nary-state@bucket/state\n"
    )
    (links / "broken.yaml").write_text(
        f"{FROM}ADMIN_SASL_PASSWORD: c4nary-broken\n{FROM}CLIENT_CONFIG: {path}/gone.properties\n\tx: [\n"
    )
    return {
        "SR_NEW": canary("bearer"),
        "AWS_SECRET_ACCESS_KEY": canary("aws"),
        "AWS_WEB_IDENTITY_TOKEN_FILE": f"{path}/web-identity",
        "USE_TOKEN": "true",
    }


CANARIES = {
    *map(canary, ("own", "other", "jaas", "store", "bearer", "aws")),
    *(f"{canary(file)}-of-a-file" for file in ("password", "basic", "pii", "web-identity")),
    *("c4nary-header", "c4nary-state", "c4nary-broken"),
}


def test_no_secret_of_any_link_of_the_folder_is_in_it_and_what_is_not_known_is_told(tmp_path: Path) -> None:
    """Promise: given anywhere, in a file, a file of a file or the environment, and whatever a link's file is
    otherwise; what no machine but the instance's can read is named."""
    environ = folder_of(tmp_path)
    settings = loading.load(environ, config_file=tmp_path / "links" / "east.yaml")
    secrets, missed = known(settings, tmp_path / "links", environ)
    log = tmp_path / "replicator.log"
    lines = [f"true: {secret} {json.dumps(secret)} {json.dumps(json.dumps(secret))}" for secret in CANARIES]
    lines += [b64encode(secret.encode()).decode() for secret in CANARIES]
    log.write_text("\n".join([*lines, "the last line"]))
    out = io.BytesIO()
    assert write(out, "folder", of_log(log, 1), Scrubber(secrets)) == {}

    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        found = archive.extractfile("folder/logs/1-replicator.log")
        assert found is not None
        text = found.read().decode()
    assert text.splitlines()[-1] == "the last line"
    assert text.count("true: ") == len(CANARIES)
    assert not [
        word for word in ("c4n", "ary", *(b64encode(s.encode()).decode() for s in CANARIES)) if word in text
    ]
    assert len(missed) == 2 and not [secret for secret in CANARIES if secret in "".join(missed)]
    assert any("away" in why for why in missed) and any("gone.properties" in why for why in missed)
