"""`verbatim scan` on real brokers: what it finds is what is there, without the rights for some of it too, and
nothing secret is in what it writes."""

from __future__ import annotations

import json
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from common.kafka.wire.broker_connections import BrokerConnections
from common.kafka.wire.protocol import Api, text
from common.ports import Deadline
from tests.conftest import Names
from tests.support.brokers import Record, create_topic, end_offsets, produce, topics
from tests.support.chromium import browsing
from tests.support.guarded import commit, variables
from tests.support.secured import Right, SecuredCluster
from verbatim.main import cli

CANARY = "canary-5f1d-never-shown"
SERVERS = "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS"


def scan(*options: str, **environ: str) -> Result:
    found = CliRunner().invoke(cli.commands["scan"], ["--seconds", "1s", *options], env=environ)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


def scanned(*options: str, **environ: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(scan("--output", "json", *options, **environ).stdout)
    return report


def on_disk(cluster: SecuredCluster, topic: str) -> int:
    """Bytes of the segments of all partitions."""
    return sum(file.stat().st_size for file in cluster.folder.rglob(f"{topic}-*/*.log"))


def set_quota(bootstrap: str, user: str, limit: float) -> None:
    """By AlterClientQuotas, which the client library lacks."""
    entry = struct.pack(">i", 1) + text("user") + text(user)
    change = struct.pack(">i", 1) + text("producer_byte_rate") + struct.pack(">db", limit, False)
    body = struct.pack(">i", 1) + entry + change + b"\0"
    with closing(BrokerConnections({"bootstrap.servers": bootstrap})) as brokers:
        answer = brokers.any(Api("AlterClientQuotas", 49, 0), [body], Deadline(10))
        answer.number("i")
        assert (len(answer.each()), answer.number("h")) == (1, 0)


@pytest.fixture
def filled(guarded: tuple[SecuredCluster, SecuredCluster], names: Names) -> SecuredCluster:
    """A cluster with three topics, a group, an access rule and a quota of this test."""
    cluster, _ = guarded
    at = cluster.bootstrap_servers
    settings = {"cleanup.policy": "compact", "max.message.bytes": "2000000", "min.insync.replicas": "1"}
    create_topic(at, names.topic("packed"), 3, settings)
    create_topic(at, names.topic("plain"), 1)
    create_topic(at, names.topic("empty"), 2)
    records = [Record(CANARY.encode() * 20, b"%d" % i, partition=i % 3) for i in range(300)]
    produce(at, names.topic("packed"), records, config={"compression.type": "zstd"})
    plain = [Record(b"x" * 100, b"%d" % i) for i in range(50)]
    produce(at, names.topic("plain"), plain, transaction="commit", transactional_id=names.link)
    commit(at, f"{names.link}-group", names.topic("packed"), 40)
    cluster.user(f"{names.link}-reader")
    cluster.grant(f"{names.link}-reader", [Right("READ", "TOPIC", names.topic("plain"))])
    set_quota(at, f"{names.link}-reader", 1_000_000.0)
    return cluster


def test_all_that_is_there_is_found_and_nothing_is_changed(
    filled: SecuredCluster, names: Names, tmp_path: Path
) -> None:
    """Promise: topics with partitions, replicas, the bytes that lie on disk, records, compression, format and
    what of their configuration matters; groups with their lag; access rules; quotas; and what moving it
    takes. Nothing of the cluster is changed; no content of a record is shown."""
    at = filled.bootstrap_servers
    before = topics(at), end_offsets(at, names.topic("packed"))
    page = tmp_path / "page.html"
    options = ["--html", str(page), "--line", "1000", "--disk-price", "0.1"]
    environ = {SERVERS: at, "KAFKA_CLUSTERS_SOURCE_TOPIC": rf"{names.link}\..*"}
    found = scanned(*options, **environ)
    of = {line["topic"].rpartition(".")[2]: line for line in found["topics"]}
    assert sorted(of) == ["empty", "packed", "plain"] and found["unread"] == []
    packed, plain, empty = of["packed"], of["plain"], of["empty"]
    assert (packed["partitions"], packed["replication_factor"], packed["records"]) == (3, 1, 300)
    assert (packed["codecs"], packed["formats"], packed["batches_seen"]) == ({"zstd": 3}, {"2": 3}, 3)
    assert (
        packed["config"]["cleanup.policy"] == "compact" and packed["config"]["max.message.bytes"] == "2000000"
    )
    assert packed["transactional"] is False and packed["records_per_second"] == 0
    # The last offset is the transaction's marker.
    assert (plain["records"], plain["transactional"], plain["codecs"]) == (51, True, {"none": 1})
    assert plain["batch_bytes"] > 50 * 100 * 0.5
    assert (empty["bytes"], empty["codecs"], empty["records"]) == (0, {}, 0)
    for name, line in of.items():
        assert (line["bytes_from"], line["bytes"]) == ("log-dirs", on_disk(filled, names.topic(name))), name
        assert line["replica_bytes"] == line["bytes"]
    groups = {g["group"]: g for g in found["groups"]}
    assert groups[f"{names.link}-group"] == {
        "group": f"{names.link}-group",
        "type": "classic",
        "active": False,
        "lag": 60,
    }
    assert found["topic_acls"] >= 1
    assert {"entity": {"user": f"{names.link}-reader"}, "limits": {"producer_byte_rate": 1e6}} in found[
        "quotas"
    ]
    assert found["moving"]["copy_bytes"] == sum(line["bytes"] for line in of.values())
    assert found["moving"]["seconds"] is not None and list(found["moving"]["costs"]) == ["disk_a_month"]
    assert found["in_the_way"] == []
    assert (topics(at), end_offsets(at, names.topic("packed"))) == before
    html = page.read_text()
    assert names.topic("packed") in html and CANARY not in html + json.dumps(found)
    few = scanned("--batches", "2", **environ)
    assert sum(line["batches_seen"] for line in few["topics"]) == 2
    assert few["unread"] == [{"what": "newest batches", "why": "2 partitions were not looked at (--batches)"}]


def test_what_may_not_be_read_is_named_and_the_rest_is_told_without_a_secret(
    filled: SecuredCluster, names: Names, tmp_path: Path
) -> None:
    """Promise: a user who may read one topic, and describe another, gets a report all the same: fields of
    what it may not read are empty and named, sizes come from batches then; its password is nowhere."""
    user = f"{names.link}-scanner"
    way_in = variables("SOURCE", filled.user(user), tmp_path) | {SERVERS: filled.secure_servers}
    filled.grant(
        user,
        [
            Right("READ", "TOPIC", names.topic("packed")),
            Right("DESCRIBE_CONFIGS", "TOPIC", names.topic("packed")),
            Right("DESCRIBE", "TOPIC", names.topic("plain")),
        ],
    )
    page = tmp_path / "page.html"
    found = scanned("--html", str(page), **way_in)
    of = {line["topic"].rpartition(".")[2]: line for line in found["topics"]}
    assert sorted(of) == ["packed", "plain"]
    packed, plain = of["packed"], of["plain"]
    assert packed["bytes_from"] == "newest-batches" and packed["bytes"] > 0
    assert packed["codecs"] == {"zstd": 3} and packed["config"]["cleanup.policy"] == "compact"
    assert (plain["records"], plain["bytes"], plain["codecs"], plain["config"]) == (51, None, {}, {})
    assert found["moving"]["unknown"] == [names.topic("plain")]
    unread = {one["what"]: one["why"] for one in found["unread"]}
    assert unread[f"newest batch of {names.topic('plain')}-0"] == "Broker: Topic authorization failed"
    assert "grant DESCRIBE_CONFIGS" in unread[f"configuration of topic {names.topic('plain')}"]
    assert any(what.startswith("sizes of logs of broker") for what in unread)
    assert {"access rules", "quotas"} <= unread.keys()
    assert (found["topic_acls"], found["quotas"]) == (None, None)
    assert (
        f"topic {names.topic('plain')}: DESCRIBE_CONFIGS, READ not allowed; grant it" in found["in_the_way"]
    )
    password = filled.user(user)["sasl.password"]
    written = json.dumps(found) + page.read_text() + scan(**way_in).output
    assert password not in written and CANARY not in written and names.topic("packed") in written


def test_with_a_target_the_plan_says_what_stands_in_the_way(
    guarded: tuple[SecuredCluster, SecuredCluster], filled: SecuredCluster, names: Names
) -> None:
    """Promise: findings are those of `verbatim plan`."""
    target = guarded[1].bootstrap_servers
    create_topic(target, names.topic("packed"), 1)
    produce(target, names.topic("packed"), [Record(b"somebody else's", b"k")])
    found = scanned(
        **{
            SERVERS: filled.bootstrap_servers,
            "KAFKA_CLUSTERS_SOURCE_TOPIC": names.topic("packed"),
            "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": target,
            "APPLICATION_NAME": names.link,
        }
    )
    (words,) = (one for one in found["in_the_way"] if one.startswith(f"topic {names.topic('packed')}: "))
    assert "accept-destination" in words
    assert not {topic for topic in topics(target) if topic.startswith(f"{names.link}.control")}


def test_the_page_sorts_in_a_browser(filled: SecuredCluster, names: Names, tmp_path: Path) -> None:
    """Promise: opened as a file the page sorts by a click, by numbers as numbers, fetches nothing and fits a
    phone."""
    page = tmp_path / "page.html"
    environ = {SERVERS: filled.bootstrap_servers, "KAFKA_CLUSTERS_SOURCE_TOPIC": rf"{names.link}\..*"}
    scan("--html", str(page), **environ)
    with browsing() as browser:
        tab = browser.new_page(viewport={"width": 360, "height": 700})
        asked: list[str] = []
        wrong: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("console", lambda message: wrong.append(message.text))
        tab.goto(page.as_uri())
        names_shown = (
            "[...document.querySelectorAll('table')[0].tBodies[0].rows].map(r => r.cells[0].textContent)"
        )
        head = tab.locator("th button", has_text="Records").first
        head.click()
        assert [one.rpartition(".")[2] for one in tab.evaluate(names_shown)] == ["packed", "plain", "empty"]
        head.click()
        assert [one.rpartition(".")[2] for one in tab.evaluate(names_shown)] == ["empty", "plain", "packed"]
        assert tab.locator("th[aria-sort]").count() == 1
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360
        assert asked == [page.as_uri()] and wrong == []
