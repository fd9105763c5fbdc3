"""`verbatim init` on real brokers: with what it wrote of a scan, the link's plan has nothing against it."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from tests.conftest import Names
from tests.support.brokers import Record, create_topic, produce, topics
from tests.support.env_files import variables_of
from tests.support.guarded import commit, variables
from tests.support.secured import Right, SecuredCluster
from verbatim.init.files import MOUNTED, SETTINGS
from verbatim.main import cli

SERVERS = "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS"


def run(*args: str, **environ: str) -> str:
    done = CliRunner().invoke(cli, args, env=environ)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_scan_becomes_a_link_that_has_nothing_against_it(
    guarded: tuple[SecuredCluster, SecuredCluster], names: Names, tmp_path: Path
) -> None:
    """Promise: scan, init, plan. Whoever scans by a login needs nothing but the files that the settings name;
    a topic that he may not read is left out by name; the password is in no file that was written."""
    source, target = guarded
    for name in ("orders", "locked"):
        create_topic(source.bootstrap_servers, names.topic(name), 3)
        produce(source.bootstrap_servers, names.topic(name), [Record(b"v", b"k")])
    commit(source.bootstrap_servers, f"{names.link}-group", names.topic("orders"), 1)
    user = f"{names.link}-u"
    login = source.user(user)
    for name in ("DESCRIBE", "DESCRIBE_CONFIGS"):
        source.grant(user, [Right(name, "CLUSTER", "kafka-cluster")])
        source.grant(user, [Right(name, "TOPIC", f"{names.link}*")])
    source.grant(
        user, [Right("READ", "TOPIC", names.topic("orders")), Right("READ", "GROUP", f"{names.link}*")]
    )
    scanned = run(
        *("scan", "--output", "json", "--seconds", "1s"),
        **variables("SOURCE", login, tmp_path),
        **{SERVERS: source.secure_servers, "KAFKA_CLUSTERS_SOURCE_TOPIC": rf"{names.link}\..*"},
    )
    assert json.loads(scanned)["asked"]["properties"]["sasl.password"] is None
    (tmp_path / "scan.json").write_text(scanned)
    out = tmp_path / "link"
    link = ("--link", names.link, "--target", target.bootstrap_servers, "--out", str(out))
    run("init", str(tmp_path / "scan.json"), *link)
    files = [file for file in out.rglob("*") if file.is_file()]
    assert not [file for file in files if login["sasl.password"] in file.read_text()]
    text = (out / SETTINGS).read_text()
    assert f"# Can't be copied: {names.topic('locked')}: READ not allowed at the source." in text
    secrets = out / "secrets"
    (secrets / "source.sasl.password").write_text(login["sasl.password"])
    (secrets / "source.ssl.ca").write_text(Path(login["ssl.ca.location"]).read_text())
    settings = variables_of(text.replace(MOUNTED, str(secrets)))
    plan = json.loads(run("plan", "--output", "json", "--seconds", "1s", **settings))
    assert [one["topic"] for one in plan["topics"]] == [names.topic("orders")]
    assert not [topic for topic in topics(target.bootstrap_servers) if topic.startswith(names.link)]
