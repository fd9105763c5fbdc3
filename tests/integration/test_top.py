"""`verbatim top` in a real terminal, of a link that runs."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pyte
from confluent_kafka.admin import AdminClient

from common.kafka.client import topics
from common.ports import Deadline
from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, produce
from tests.support.harness import Link

WIDE, HIGH = 200, 40  # characters, lines
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
        environ = os.environ | link.variables | {"TERM": "xterm", "COLUMNS": str(WIDE), "LINES": str(HIGH)}
        running = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environ)
        os.close(its)
        try:
            screen = pyte.Screen(WIDE, HIGH)
            with closing(io.FileIO(ours, "r+")) as side:
                until(side, screen, f"{bad} .*copied +{names.link}.{bad}")
                admin = AdminClient({"bootstrap.servers": target.bootstrap_servers})
                topics.alter(admin, f"{names.link}.{bad}", {"max.message.bytes": "200"}, Deadline(30))
                produce(source.bootstrap_servers, bad, [Record(os.urandom(1000))])
                until(side, screen, rf"HALTED {bad}-0 \(destination-too-small\)")
                side.write(b"q")
                assert running.wait(10) == 3
        finally:
            running.kill()


def until(side: io.FileIO, screen: pyte.Screen, wanted: str) -> None:
    """Draw what comes until a line of the screen is as that says. (curses sends what has changed alone.)"""
    drawn, give_up = pyte.ByteStream(screen), time.monotonic() + WITHIN_S
    while not any(re.search(wanted, line) for line in screen.display):
        assert time.monotonic() < give_up, "\n".join(screen.display)
        if select.select([side], [], [], 1.0)[0]:
            drawn.feed(side.read(4096) or b"")
