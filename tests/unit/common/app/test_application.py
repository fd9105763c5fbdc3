"""What an application does round its epochs: before it leads, how long they are, and what it reads out of a
query that failed."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from common import ports
from common.app import application, instance, role
from common.app.application import EPOCH_S, RETRY_S, epoch_length
from common.app.health import Health
from common.app.role import LOOK_S
from common.errors import VerbatimError
from common.kafka.client import clients
from common.link import identity
from common.spark.lane_count import LaneCount
from common.spark.lane_jobs import missing_right
from common.spark.usage import Usage
from tests.support.harness import ThreadReplicator

OURS = "common.errors.LinkRefused: writing to l.staging: not allowed: Broker: Topic authorization failed; grant WRITE"
CLIENTS = 'cimpl.KafkaException: KafkaError{code=TOPIC_AUTHORIZATION_FAILED,str="Broker: Topic authorization failed"}'


def test_a_missing_right_is_told_in_the_words_that_name_it() -> None:
    """Promise: the line that names topic and right is told, wherever in a chain of exceptions it stands; else
    the client's own."""
    named = OURS.removeprefix("common.errors.LinkRefused: ")
    assert missing_right(f"Traceback:\n  {OURS}\nDuring handling, another:\n  {CLIENTS}\n") == named
    assert missing_right(f"{CLIENTS}\n{OURS}") == named
    assert missing_right(f"Traceback:\n{CLIENTS}\n") == CLIENTS
    assert missing_right("ValueError: something else") is None
    assert missing_right(None) is None


def test_epochs_of_both_applications_end_at_different_times() -> None:
    """Promise: an epoch lasts an hour, ten minutes with something halted, or up to a tenth less; two
    applications that start together don't stop the flow together each time."""
    short, lengths = (
        [
            epoch_length(application, "link", epoch, halted)
            for application in ("replicator", "deduplicator")
            for epoch in range(50)
        ]
        for halted in (True, False)
    )
    assert all(0.9 * EPOCH_S <= length <= EPOCH_S for length in lengths)
    assert all(0.9 * RETRY_S <= length <= RETRY_S for length in short)
    together = [abs(a - b) < 2.0 for a, b in zip(lengths[:50], lengths[50:], strict=True)]
    assert sum(together) < 10


@pytest.mark.parametrize(("turns", "rehearsals"), [(1, 0), (10, 1)])
def test_who_does_not_lead_at_once_rehearses(
    turns: int, rehearsals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: a standby has Spark warm when it takes over; an instance that leads at once is not held up by
    a rehearsal."""
    said: list[str] = []

    class Election:
        polled = 0

        def __init__(self, *_: object) -> None:
            pass

        def poll(self, _: float) -> bool:
            self.polled += 1
            now[0] += 0.1
            return self.polled >= turns

        def close(self) -> None:
            pass

    class Instance(ThreadReplicator):
        def stand_by(self) -> None:
            said.append("rehearses")

        def show_link(self) -> None:
            pass

        def _lead(self) -> int | None:
            said.append("leads")
            return 0

    now = [0.0]
    closes = SimpleNamespace(close=lambda: None, admin=None, poll=lambda: None, listen=lambda: None)
    monkeypatch.setattr(ports, "monotonic", lambda: now[0])
    monkeypatch.setattr(instance, "Leadership", Election)
    monkeypatch.setattr(application, "CounterTail", lambda *_: closes)
    monkeypatch.setattr(application, "ClusterWatch", lambda *_: closes)
    monkeypatch.setattr(clients, "admin", lambda _: None)
    monkeypatch.setattr(
        identity,
        "prepare",
        lambda *_: (SimpleNamespace(source_reached=True, source_cluster="s", target_cluster="t"), closes),
    )
    made: Any = object.__new__(Instance)
    made.settings = SimpleNamespace(
        application_name="l", control_topic="c", positions_topic="p", instance_id=None
    )
    made.settings.client_config = lambda *_: {}
    made.health = Health("replicator")
    made.stopping = threading.Event()
    assert made._run() == 0
    assert said == ["rehearses"] * rehearsals + ["leads"]


def test_what_spark_has_is_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody asks a session that is not there."""
    now, looks = [1000.0], iter([Usage(2, 1, 1), None])
    monkeypatch.setattr(ports, "monotonic", lambda: now[0])
    monkeypatch.setattr(role, "usage", lambda _: next(looks))
    monkeypatch.setattr(instance.Instance, "show_link", lambda _: None)
    made: Any = object.__new__(ThreadReplicator)
    made.health = Health("replicator")
    made.show_link()
    assert made.health.spark is None
    made.spark, made._lane_count = "session", LaneCount(2, None, 0)
    for _ in range(3):
        made.show_link()
        assert made.health.spark == (2, 1, 1)
    now[0] += LOOK_S
    made.show_link()
    assert made.health.spark is None, "its JVM does not say"


def test_a_jvm_that_has_ended_is_what_an_application_ends_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: one line instead of what Py4J says of broken connections; where it runs, an exception stays
    what it is."""

    def leads(_: object) -> int | None:
        raise ConnectionRefusedError("Answer from Java side is empty")

    monkeypatch.setattr(ThreadReplicator, "_lead", leads)
    monkeypatch.setattr(application, "wait_for_lead", lambda *_, **__: True)
    closes = SimpleNamespace(close=lambda: None, admin=None)
    monkeypatch.setattr(instance, "Leadership", lambda *_: closes)
    for name in ("CounterTail", "ClusterWatch"):
        monkeypatch.setattr(application, name, lambda *_: closes)
    monkeypatch.setattr(clients, "admin", lambda _: None)
    monkeypatch.setattr(
        identity,
        "prepare",
        lambda *_: (SimpleNamespace(source_reached=True, source_cluster="s", target_cluster="t"), closes),
    )
    made: Any = object.__new__(ThreadReplicator)
    made.settings = SimpleNamespace(
        application_name="l",
        control_topic="c",
        positions_topic="p",
        instance_id=None,
        client_config=lambda *_: {},
    )
    made.health, made.stopping = Health("replicator"), threading.Event()
    monkeypatch.setattr(application, "jvm_ended", lambda: "Spark's JVM was ended by SIGKILL")
    with pytest.raises(VerbatimError, match=r"^Spark's JVM was ended by SIGKILL$"):
        made._run()
    monkeypatch.setattr(application, "jvm_ended", lambda: None)
    with pytest.raises(ConnectionRefusedError):
        made._run()
