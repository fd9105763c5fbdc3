"""What a client says again and again is one line, and a count a minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest

from common import log_folding
from common.kafka.client import clients
from common.log_folding import EVERY_S, MOST, Folding
from verbatim.local.processes import HOST, free_ports

FAILED = (
    "FAIL [rdkafka#producer-{client}] [thrd:{at}/bootstrap]: {at}/{node}: Connect to ipv4#{at} failed: Connection refused "
    "(after {ms}ms in state CONNECT{more})"
)


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(log_folding, "time", found)
    return found


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    logger = logging.getLogger("tests.folding")
    added = Folding()
    logger.addFilter(added)
    yield logger
    logger.removeFilter(added)


def failed(client: int, at: str = "b:9092", node: str = "bootstrap", more: str = "") -> str:
    return FAILED.format(client=client, at=at, node=node, ms=client, more=more)


def test_the_same_of_any_client_is_one_line_and_a_count_a_minute(
    clock: Clock, log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(150):
        clock.now = float(second)
        for client in range(4):
            log.error("%s", failed(client, node="1" if client % 2 else "bootstrap"))
        log.error("%s", failed(5, more=", 30 identical error(s) suppressed"))
    first, *others = caplog.messages
    assert first == failed(0)
    assert [text.removeprefix(failed(0)) for text in others[:1]] == [
        f" (299 more like it in {EVERY_S:.0f} s)"
    ]
    assert len(others) == 2


def test_what_says_something_else_is_a_line_of_its_own(
    clock: Clock, log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    said = [
        failed(1),
        failed(1, at="b:9093"),
        failed(1).replace("refused", "reset"),
        "GONE b: topic 7",
        "GONE b: topic 8",
    ]
    for text in said:
        log.error("%s", text)
    assert caplog.messages == said


def test_debugging_leaves_nothing_out_and_memory_is_bounded(
    clock: Clock, log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for _ in range(3):
        log.debug("%s", failed(1))
    assert len(caplog.messages) == 3
    caplog.clear()
    for number in range(MOST + 1):
        log.error("line %d", number)
    log.error("line 0")
    log.error("line %d", MOST)
    assert len(caplog.messages) == MOST + 2


def test_a_client_without_a_broker_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """Of the library as it is: some tens of lines a second."""
    (port,) = free_ports(1)
    made = [clients.consumer({"bootstrap.servers": f"{HOST}:{port}"}) for _ in range(2)]
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        for client in made:
            client.poll(0.05)
    for client in made:
        client.close()
    lines = [text for text in caplog.messages if str(port) in text]
    assert len(lines) == 1
    assert "Connection refused" in lines[0]
