"""`verbatim bundle` on real brokers: what is in it, what is not, and that no secret is."""

from __future__ import annotations

import base64
import json
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from click.testing import CliRunner, Result

from common.app.health_server import HealthServer
from common.app.link_pages import LinkPages
from common.app.links.pages import LinksPages
from tests.conftest import Names
from tests.support.brokers import Record, create_topic, produce
from tests.support.harness import Link, eventually
from tests.support.secured import Right, SecuredCluster
from verbatim.local.processes import HOST
from verbatim.main import cli

TO = "KAFKA_CLUSTERS_DESTINATION_"
CONTENT = "what-records-say"
OF_ANOTHER = "c4nary of another"


def bundle(environ: dict[str, str], *options: str) -> Result:
    return CliRunner().invoke(cli, ["bundle", *options], env=environ)


def unpacked(file: Path) -> dict[str, str]:
    """Each part's text, by its name behind the folder's."""
    with tarfile.open(file) as archive:
        found = {member.name: archive.extractfile(member) for member in archive}
        return {name.partition("/")[2]: part.read().decode() for name, part in found.items() if part}


def test_what_can_be_had_is_in_it_without_secrets_and_the_rest_is_named(
    guarded: tuple[SecuredCluster, SecuredCluster], names: Names, tmp_path: Path
) -> None:
    """Promise: with the source away, a topic that may not be read and an instance that is gone, all else is
    there; the password is nowhere, in whatever form a log has it, nor is a record's content; nobody else may
    read the file, and one that is there is left alone."""
    source, target = guarded
    topic = names.topic("orders")
    create_topic(source.bootstrap_servers, topic, 2)
    produce(source.bootstrap_servers, topic, [Record(CONTENT.encode(), CONTENT.encode())] * 20)
    link = Link(source.bootstrap_servers, target.bootstrap_servers, names.link, topic)
    assert link.copy() == (0, 0)

    name = f"{names.link}-operator"
    properties = target.user(name)
    secret = properties["sasl.password"]
    target.grant(name, [Right("READ", "TOPIC", f"{names.link}*"), Right("DESCRIBE", "GROUP", "*")])
    target.grant(name, [Right("DESCRIBE_CONFIGS", "TOPIC", f"{names.link}*")])
    environ = {**link.variables, "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": f"{HOST}:1"}
    environ |= {f"{TO}PROPERTIES_{key.upper().replace('.', '_')}": value for key, value in properties.items()}
    environ[f"{TO}BOOTSTRAP_SERVERS"] = target.secure_servers
    http = base64.b64encode(f"{name}:{secret}".encode()).decode()
    lines = [
        f"it is {secret}",
        json.dumps({"message": f'password="{secret}"'}),
        f"Authorization: Basic {http}",
        f"another link of the folder says {OF_ANOTHER}",
    ]
    links = tmp_path / "links"
    links.mkdir()
    (links / "another.yaml").write_text(f"{TO}PROPERTIES_SASL_PASSWORD: {OF_ANOTHER}\n")
    log = tmp_path / "replicator.log"
    log.write_text("\n".join([*lines, "the last line"]))
    file = tmp_path / "for-support.tar.gz"

    unreadable = [Right("READ", "TOPIC", link.settings.positions_topic)]
    with link.running() as instances, target.denying(name, unreadable):
        instance = instances[0].application
        server = HealthServer(LinkPages(instance.health), HOST, 0)
        # One that runs many links, of which another one tells the secret.
        own, other = (
            SimpleNamespace(name=of, link=of, instance=None, failed=f"it is {secret}", failures=1, code=None)
            for of in ("own", "other")
        )
        own.link, own.instance, own.failed = names.link, instance, None
        runs: Any = SimpleNamespace(
            runners={"own": own, "other": other},
            application="replicator",
            turned=time.monotonic(),
            looked=True,
        )
        many = HealthServer(LinksPages(runs), HOST, 0)
        try:
            at, at_many = f"{HOST}:{server.port}", f"{HOST}:{many.port}"
            eventually(lambda: instance.health.ready(), "an instance that is ready")
            options = [word for each in (at, at_many, f"{HOST}:1") for word in ("--instance", each)]
            done = bundle(
                environ, "--to", str(file), *options, "--every-link", "--log", str(log), "--links", str(links)
            )
        finally:
            server.close()
            many.close()
    assert done.exit_code == 0, done.output
    found = unpacked(file)

    everything = "\n".join([*found, *found.values(), done.output])
    assert secret not in everything and http not in everything and CONTENT not in everything
    assert OF_ANOTHER not in everything
    assert found["logs/1-replicator.log"].splitlines() == [
        "it is [hidden]",
        '{"message": "password=\\"[hidden]\\""}',
        "Authorization: Basic [hidden]",
        "another link of the folder says [hidden]",
        "the last line",
    ]
    gone = {
        f"instances/{HOST}_1/{each}" for each in ("healthz.json", "readyz.json", "status.json", "metrics.txt")
    }
    contents = json.loads(found["contents.json"])
    assert contents["missing"].keys() == {"source.json", "positions.jsonl", "status.json", *gone}
    assert "connection refused" in contents["missing"]["source.json"]
    assert "grant READ" in contents["missing"]["positions.jsonl"]
    assert all(f"not in it: {part}: {why}" in done.output for part, why in contents["missing"].items())
    assert {*contents["there"], "contents.json"} == found.keys()

    assert {"confluent-kafka", "pyspark", "verbatim-kafka"} <= json.loads(found["versions.json"])[
        "packages"
    ].keys()
    assert "version" in json.loads(found["versions.json"])["java"]
    shown = {line["name"]: line["value"] for line in json.loads(found["settings.json"])}
    assert shown["KAFKA_CLUSTERS_SOURCE_TOPIC"] == topic
    cluster = json.loads(found["destination.json"])
    assert cluster["cluster"] == target.cluster_id
    assert cluster["brokers"][0]["requests"]["0"][1] >= 3
    own = json.loads(found["topics.json"])
    assert own[link.settings.control_topic]["config"]["cleanup.policy"] == "delete"
    control = [json.loads(line) for line in found["control.jsonl"].splitlines()]
    assert own[link.settings.control_topic]["offsets"]["0"][1] >= control[-1]["offset"]
    assert source.cluster_id in found["control.jsonl"]
    asked = f"instances/{at.replace(':', '_')}"
    assert json.loads(found[f"{asked}/status.json"])["link"] == names.link
    assert "verbatim_" in found[f"{asked}/metrics.txt"]
    asked = f"instances/{at_many.replace(':', '_')}"
    assert json.loads(found[f"{asked}/link-own/status.json"])["link"] == names.link
    assert json.loads(found[f"{asked}/link-other/status.json"])["why"] == "it is [hidden]"

    assert file.stat().st_mode & 0o077 == 0
    before = file.read_bytes()
    again = bundle(environ, "--to", str(file))
    assert again.exit_code != 0 and file.read_bytes() == before
    assert "can't write" in str(again.exception)
