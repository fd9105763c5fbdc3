"""What `verbatim scan` makes of what brokers answer, what moving takes, and how it is shown."""

from __future__ import annotations

import re
import struct
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import loading
from common.kafka.wire.protocol import Answer, MalformedAnswer, text
from verbatim.scan.moving import (
    DEDUPLICATOR_S_PER_MB,
    LEAST_STAGING,
    REPLICATOR_S_PER_MB,
    SEGMENT,
    STAGING_S,
    TARGET_S_PER_MB,
    Given,
    moving,
)
from verbatim.scan.report import as_html, as_text
from verbatim.scan.requests import Quota, log_sizes, quotas
from verbatim.scan.scan import _derive, asked

GIB = 1 << 30
SIZING = Path(__file__).parents[4] / "docs" / "operations" / "sizing.md"


def folder(*logs: tuple[str, int, int, bool]) -> bytes:
    """A folder of a broker: (topic, partition, bytes, on its way to another folder)."""
    found = struct.pack(">h", 0) + text("/data") + struct.pack(">i", len(logs))
    for topic, partition, size, moves in logs:
        found += text(topic) + struct.pack(">iiqqb", 1, partition, size, 0, moves)
    return found


def test_sizes_of_all_folders_are_told_and_a_copy_that_is_being_made_is_not_the_log() -> None:
    folders = [
        folder(("a", 0, 10, False), ("a", 1, 20, False)),
        folder(("a", 1, 7, True), ("b", 0, 5, False)),
    ]
    answer = struct.pack(">ii", 0, len(folders)) + b"".join(folders)
    assert log_sizes(Answer(answer)) == {("a", 0): 10, ("a", 1): 20, ("b", 0): 5}


def test_a_broker_that_names_no_folder_may_not_be_asked() -> None:
    assert log_sizes(Answer(struct.pack(">ii", 0, 0))) is None
    assert log_sizes(Answer(struct.pack(">ii", 0, 1) + folder())) == {}


def test_quotas_are_told_with_whom_they_are_for() -> None:
    entry = struct.pack(">i", 2) + text("user") + text("alice") + text("client-id") + text(None)
    entry += struct.pack(">i", 1) + text("producer_byte_rate") + struct.pack(">d", 1e6)
    answer = struct.pack(">ih", 0, 0) + text(None) + struct.pack(">i", 1) + entry
    assert quotas(Answer(answer)) == (
        0,
        None,
        [Quota({"user": "alice", "client-id": None}, {"producer_byte_rate": 1e6})],
    )
    denied = struct.pack(">ih", 0, 31) + text("no") + struct.pack(">i", -1)
    assert quotas(Answer(denied)) == (31, "no", [])


@given(st.binary(max_size=60))
def test_answers_that_make_no_sense_are_malformed(data: bytes) -> None:
    for read in (log_sizes, quotas):
        try:
            read(Answer(data))
        except MalformedAnswer:
            continue


def test_how_the_source_was_reached_is_told_without_secrets_or_paths() -> None:
    source = "KAFKA_CLUSTERS_SOURCE_"
    settings = loading.load(
        {
            source + "BOOTSTRAP_SERVERS": "a:1,b:2",
            source + "TOPIC": "x.*",
            source + "TOPIC_EXCLUDE": "xy",
            source + "PROPERTIES_SASL_MECHANISM": "OAUTHBEARER",
            source + "PROPERTIES_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": "https://me:canary@login/token",
            source + "PROPERTIES_SASL_OAUTHBEARER_CLIENT_ID": "me",
            source + "ADMIN_SASL_OAUTHBEARER_CLIENT_SECRET": "canary",
            source + "PROPERTIES_SSL_KEY_PEM": "canary",
            source + "PROPERTIES_SSL_CA_LOCATION": "/home/canary/ca.pem",
            source + "CONSUMER_FETCH_MIN_BYTES": "7",
        },
        assumed=loading.NO_TARGET,
    )
    assert asked(settings) == {
        "bootstrap_servers": "a:1,b:2",
        "topic": "x.*",
        "topic_exclude": "xy",
        "properties": {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": None,
            "sasl.oauthbearer.token.endpoint.url": None,
            "ssl.ca.location": None,
            "ssl.key.pem": None,
        },
    }


def topic(name: str, size: int | None, rate: float | None = 0.0, copies: int = 3) -> dict[str, Any]:
    return {"topic": name, "bytes": size, "bytes_per_second": rate, "replication_factor": copies}


def test_what_moving_takes_is_arithmetic_on_what_was_found() -> None:
    found = moving([topic("a", 8 * GIB, 1e6), topic("b", 2 * GIB, None, 1)], Given())
    assert (found["copy_bytes"], found["inflow_bytes_per_second"]) == (10 * GIB, 1e6)
    assert found["disk_bytes"] == (3 * 8 + 2) * GIB
    assert found["target_written_bytes"] == 2 * found["disk_bytes"], "staging and destination"
    assert found["between_replicas_bytes"] == 2 * 2 * 8 * GIB, "followers of both"
    assert found["staging_bytes"] == (LEAST_STAGING + 8 * SEGMENT) * 3
    assert found["cpu_seconds"]["replicator"] == pytest.approx(10 * GIB / 1e6 * 0.0005)
    assert (found["seconds"], found["keeps_up"], found["costs"]) == (None, None, {}), "nothing is made up"


def test_the_target_s_copies_count_where_they_are_given() -> None:
    found = moving([topic("a", GIB)], Given(copies=2, staging_partitions=1))
    assert (found["disk_bytes"], found["between_replicas_bytes"]) == (2 * GIB, 2 * GIB)
    assert found["staging_bytes"] == 2 * (LEAST_STAGING + SEGMENT)


def test_time_goes_by_the_line_and_what_comes_meanwhile_and_no_faster_than_a_core() -> None:
    assert moving([topic("a", 10**9)], Given(line_mbit=80))["seconds"] == pytest.approx(100)
    assert moving([topic("a", 10**9, 5e6)], Given(line_mbit=80))["seconds"] == pytest.approx(200)
    late = moving([topic("a", 10**9, 1e7)], Given(line_mbit=80))
    assert (late["seconds"], late["keeps_up"]) == (None, False)
    by_core = 10**9 / 1e6 * DEDUPLICATOR_S_PER_MB
    assert moving([topic("a", 10**9)], Given(line_mbit=10**6))["seconds"] == pytest.approx(by_core)
    fast = moving([topic("a", 10**9)], Given(line_mbit=8000, copies=1, staging_partitions=1))
    assert fast["staging_bytes"] == STAGING_S * 1e9 + SEGMENT


def test_money_goes_by_given_prices_alone() -> None:
    prices = Given(line_price=0.5, zone_price=0.1, disk_price=2.0)
    assert moving([topic("a", 10**9)], prices)["costs"] == {"line": 0.5, "zones": 0.4, "disk_a_month": 6.0}
    assert moving([topic("a", 10**9)], Given(disk_price=0.0))["costs"] == {"disk_a_month": 0.0}


def test_what_has_no_size_is_named_and_in_no_sum() -> None:
    found = moving([topic("a", None, 7.0), topic("b", 5, None)], Given(line_mbit=1, line_price=1.0))
    assert (found["unknown"], found["copy_bytes"], found["inflow_bytes_per_second"]) == (["a"], 5, 7.0)
    assert moving([], Given(line_mbit=8))["seconds"] == 0


def test_figures_are_those_of_the_page_on_sizing() -> None:
    page = " ".join(SIZING.read_text().split())
    assert (
        "the replicator takes 0.4 to 0.5 ms a megabyte, the deduplicator 0.5 to 0.6 and the target's brokers 1.1 to 1.8"
        in page
    )
    assert (REPLICATOR_S_PER_MB, DEDUPLICATOR_S_PER_MB, TARGET_S_PER_MB) == (0.0005, 0.0006, 0.0018)
    # Of 1 GB/s.
    assert "| disk space for staging | 75 GB " in page and STAGING_S == 75
    assert "of a small link up to 4 GiB); and one segment for each staging partition" in page


def line(**known: Any) -> dict[str, Any]:
    found = {
        "bytes": None,
        "bytes_from": None,
        "records": 100,
        "records_per_second": 10.0,
        "bytes_per_second": None,
    }
    found |= {"batch_bytes": 500.0, "batch_records": 10.0} | known
    _derive(found)
    return found


def test_sizes_come_from_brokers_or_else_from_the_newest_batches_and_it_is_said_which() -> None:
    told = line(bytes=9000, bytes_from="log-dirs")
    assert (told["bytes"], told["bytes_from"], told["bytes_per_second"]) == (9000, "log-dirs", 500.0)
    guessed = line()
    assert (guessed["bytes"], guessed["bytes_from"]) == (5000, "newest-batches")
    unseen = line(batch_bytes=None, batch_records=None)
    assert (unseen["bytes"], unseen["bytes_from"]) == (None, None)
    by_log = line(batch_bytes=None, batch_records=None, bytes=2000, bytes_from="log-dirs")
    assert by_log["bytes_per_second"] == 200.0
    empty = line(batch_bytes=None, batch_records=None, records=0)
    assert (empty["bytes"], empty["bytes_per_second"]) == (0, 0.0)
    assert line(records=None, records_per_second=None)["bytes_per_second"] is None


HOSTILE = "</script><script>alert(1)</script><b>&\"'$takes"


def found(**changed: Any) -> dict[str, Any]:
    one = line(bytes=3 * GIB, bytes_from="log-dirs") | topic(HOSTILE, 3 * GIB, 5.0)
    one |= {"partitions": 4, "codecs": {"lz4": 3, "none": 1}, "formats": {"2": 4}, "batches_seen": 4}
    one |= {"config": {"cleanup.policy": "delete"}, "transactional": False, "replica_bytes": None}
    other = line(records=None, records_per_second=None, batch_bytes=None, batch_records=None)
    other |= topic("zeta", None, None) | {"partitions": 1, "codecs": {}, "formats": {}, "config": {}}
    report: dict[str, Any] = {
        "cluster": "c-1",
        "seconds": 5.0,
        "brokers": [{"id": 1, "address": "a:1"}],
        "topics": [one, other],
        "groups": [{"group": HOSTILE, "type": "share", "active": True, "lag": None}],
        "topic_acls": None,
        "quotas": [{"entity": {"user": None}, "limits": {"request_percentage": 50.0}}],
        "unread": [{"what": "access rules", "why": "not allowed"}],
        "in_the_way": [f"group {HOSTILE} is of type share"],
        "moving": moving([one, other], Given(line_mbit=1000, disk_price=0.1)),
    }
    return report | changed


class Page(HTMLParser):
    """What a browser would find: elements, what they refer to, rows of tables, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.refers: list[str] = []
        self.cells: list[list[str]] = []
        self.sorts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.refers += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")]
        self.sorts += [value or "" for name, value in attrs if name == "data-sort"]
        if tag == "tr":
            self.cells.append([])
        if tag == "td":
            self.cells[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.cells and self.cells[-1] and self.lasttag == "td":
            self.cells[-1][-1] += data.rstrip("\n")


def test_the_page_is_one_file_and_what_was_found_is_text_in_it() -> None:
    html = as_html(found())
    page = Page(html)
    assert page.tags.count("script") == 1 and "b" not in page.tags
    assert page.refers == ["data:,"] and not re.search(r"https?://|@import|url\(", html)
    row = next(cells for cells in page.cells if len(cells) == 10)
    assert row[:5] == [HOSTILE, "4", "3", "3.0 GiB", "100"] and row[6:8] == ["lz4, none", "2"]
    assert ["zeta", "1", "3", "?", "?", "?", "?", "?", "?", "?"] in page.cells
    assert [HOSTILE, "share", "has members", "?"] in page.cells
    assert ["user (default)", "request_percentage=50"] in page.cells
    assert all(float(one) >= -1 for one in page.sorts) and len(page.sorts) == 2 * 6 + 1
    assert 'name="viewport" content="width=device-width' in html and "prefers-color-scheme: dark" in html


def test_nothing_but_the_page_s_own_script_and_style_may_run() -> None:
    html = as_html(found())
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', html)
    assert "default-src &#x27;none&#x27;" in policy and policy.count("sha256-") == 2
    assert "unsafe" not in policy and html.index("Content-Security-Policy") < html.index("<style>")


def test_text_for_people_names_what_is_in_the_way_and_what_could_not_be_read() -> None:
    lines = as_text(found()).splitlines()
    assert lines[0] == "cluster c-1: 1 brokers, 2 topics, 5 partitions, 1 groups"
    assert "not read: access rules: not allowed" in lines
    assert f"in the way: group {HOSTILE} is of type share" in lines
    assert "not in these figures, for want of a size: zeta" in lines
    assert any(one.startswith("time by a line of 1,000 Mbit/s: 26 s") for one in lines), lines
    assert "price of disks a month: 0.97" in lines
    assert "? groups" in as_text(found(groups=None))
    slow = moving([topic("a", 1, 1e9)], Given(line_mbit=1))
    assert "never" in as_text(found(moving=slow))
