"""Who leads, as brokers decide it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from common.app import election
from common.app.election import Leadership
from common.errors import LinkRefused
from common.kafka.client import clients
from tests.conftest import Kafka, Names
from tests.support.brokers import create_topic

ELECTED_S = 30.0


@contextmanager
def member(target: Kafka, names: Names, instance_id: str | None) -> Iterator[Leadership]:
    config = {"bootstrap.servers": target.bootstrap_servers}
    made = Leadership(
        "replicator", f"{names.link}.replicator.leader", f"{names.link}.control", instance_id, config
    )
    try:
        yield made
    finally:
        made.close()


def poll(*members: Leadership, until: Callable[[], bool]) -> None:
    """Take part with each of them by turns."""
    give_up = time.monotonic() + ELECTED_S
    while not until():
        assert time.monotonic() < give_up, [m.leading for m in members]
        for each in members:
            each.poll(0.05)


def test_who_was_fenced_by_its_own_name_leads_again(target: Kafka, names: Names) -> None:
    """Promise: when a coordinator dies, an instance's name may become that of a member that nobody is. The
    client is dead then, and says so once; the instance takes part again with another."""
    create_topic(target.bootstrap_servers, f"{names.link}.control")
    with member(target, names, "a") as it:
        poll(it, until=lambda: it.leading)
        # A member of this name of whom nobody hears again.
        shadow = clients.consumer(
            {"bootstrap.servers": target.bootstrap_servers},
            group_id=f"{names.link}.replicator.leader",
            group_instance_id="replicator-a",
            session_timeout_ms=6000,
            partition_assignment_strategy="cooperative-sticky",
        )
        shadow.subscribe([f"{names.link}.control"])
        while not shadow.assignment():
            shadow.poll(0.1)
        shadow.close()
        poll(it, until=lambda: not it.leading)
        poll(it, until=lambda: it.leading)


def test_two_live_instances_of_one_name_are_told(
    target: Kafka, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: one of two that run with the same INSTANCE_ID ends, naming the setting; the other leads."""
    monkeypatch.setattr(election, "FENCED", 2)  # each takes its three seconds
    create_topic(target.bootstrap_servers, f"{names.link}.control")
    with member(target, names, "a") as one, member(target, names, "a") as two:
        others = {one: two, two: one}
        refused: dict[Leadership, str] = {}
        give_up = time.monotonic() + 2 * ELECTED_S
        while not refused:
            assert time.monotonic() < give_up
            for each in others:
                try:
                    each.poll(0.05)
                except LinkRefused as refusal:
                    refused[each] = str(refusal)
        ((ended, why),) = refused.items()
        assert "INSTANCE_ID=a: another live instance of the replicator has the same name" in why
        other = others[ended]
        poll(other, until=lambda: other.leading)


def test_two_names_fence_nobody_and_a_standby_takes_over(target: Kafka, names: Names) -> None:
    """Promise: one leads and keeps leading while another stands by, which takes over when it leaves."""
    create_topic(target.bootstrap_servers, f"{names.link}.control")
    with member(target, names, "b") as standby:
        with member(target, names, None) as first:
            poll(first, standby, until=lambda: first.leading or standby.leading)
            leader, other = (first, standby) if first.leading else (standby, first)
            for _ in range(40):
                assert leader.poll(0.05) and not other.poll(0.05)
        poll(standby, until=lambda: standby.leading)


def test_who_reaches_nobody_any_more_takes_part_with_another_client(
    target: Kafka, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: a standby whose client has lost all brokers (tests/integration/test_struck_off.py) does not
    stand by for ever; here it never had one. One that is answered keeps its client."""
    monkeypatch.setattr(election, "ASK_S", 0.5)
    create_topic(target.bootstrap_servers, f"{names.link}.control")
    with member(target, names, None) as one:
        poll(one, until=lambda: one.leading)
        with member(target, names, None) as two:
            two._config = {"bootstrap.servers": "127.0.0.1:1"}
            two._consumer.close()
            two._consumer = lost = two._join()
            two._config = one._config
            poll(one, two, until=lambda: two._consumer is not lost)
            found = two._consumer
            give_up = time.monotonic() + 4.0
            while time.monotonic() < give_up:
                one.poll(0.05)
                two.poll(0.05)
            assert one.leading and not two.leading and two._consumer is found
            one.close()
            poll(two, until=lambda: two.leading)
