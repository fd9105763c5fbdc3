"""`verbatim top` in a real terminal, of a link that runs."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from confluent_kafka.admin import AdminClient

from common.kafka.client import topics
from common.ports import Deadline
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, produce
from tests.support.harness import Link

STEERS = re.compile(rb"\x1b(\[[0-9;?]*[A-Za-z]|\([A-Z]|[=>])")
WITHIN_S = 60.0


def test_a_link_that_runs_is_shown_as_it_goes_on(source: Kafka, target: Kafka, names: Names) -> None:
    """Promise: what halts is on the screen some seconds later, without a key pressed; `q` ends it, with exit
    code 3 where something is halted."""
    orders, bad = names.topic("orders"), names.topic("bad")
    for topic in (orders, bad):
        create_topic(source.bootstrap_servers, topic, 1)
    link = Link(
        source.bootstrap_servers,
        target.bootstrap_servers,
        names.link,
        f"{orders},{bad}",
        KAFKA_CLUSTERS_DESTINATION_TOPIC=f"{names.link}.{{topic}}",
        TOPIC_CONFIG_SYNC="false",
    )
    produce(source.bootstrap_servers, orders, [Record(b"%d" % i) for i in range(7)])
    with link.running():
        ours, its = pty.openpty()
        command = [str(Path(sys.executable).with_name("verbatim")), "top", "--every", "1"]
        environ = os.environ | link.variables | {"TERM": "xterm", "COLUMNS": "200", "LINES": "40"}
        running = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environ)
        os.close(its)
        try:
            with closing(os.fdopen(ours, "r+b", buffering=0)) as side:
                until(side, rb"%b .*copied +%b.%b" % (bad.encode(), names.link.encode(), bad.encode()))
                admin = AdminClient({"bootstrap.servers": target.bootstrap_servers})
                topics.alter(admin, f"{names.link}.{bad}", {"max.message.bytes": "200"}, Deadline(30))
                produce(source.bootstrap_servers, bad, [Record(os.urandom(1000))])
                until(side, rb"HALTED %b-0 \(destination-too-small\)" % bad.encode())
                side.write(b"q")
                assert running.wait(10) == 3
        finally:
            running.kill()


def until(side: object, wanted: bytes) -> None:
    """Read what is drawn until it has that. (curses draws what has changed alone.)"""
    shown, give_up = b"", time.monotonic() + WITHIN_S
    while not re.search(wanted, STEERS.sub(b" ", shown)):
        assert time.monotonic() < give_up, STEERS.sub(b" ", shown).decode(errors="replace")[-3000:]
        shown += side.read(4096)  # type: ignore[attr-defined]
