"""When an admin client is replaced. That librdkafka's needs it is shown in
tests/integration/test_struck_off.py."""

from __future__ import annotations

import gc
import logging
from concurrent.futures import Future
from typing import Any

import confluent_kafka.admin
import pytest
from confluent_kafka import KafkaError, KafkaException

from common.ports import reconnecting_admin

LATE = KafkaException(KafkaError(KafkaError._TIMED_OUT))
REFUSED = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))


class Client:
    """Counts who was made; the test answers."""

    made: list[Client]

    def __init__(self, config: dict[str, Any], **_: Any) -> None:
        self.config = config
        self.asked: list[Future[int]] = []
        self.fails: KafkaException | None = None
        self.made.append(self)

    def poll(self, timeout: float) -> int:
        return 0

    def list_topics(self, timeout: float) -> str:
        clock.now += timeout if self.fails is LATE else 0.0
        if self.fails is not None:
            raise self.fails
        return "topics"

    def describe_topics(self, names: list[str]) -> dict[str, Future[int]]:
        self.asked = [Future() for _ in names]
        return dict(zip(names, self.asked, strict=True))

    def describe_cluster(self) -> Future[int]:
        self.asked = [Future()]
        return self.asked[0]


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


clock = Clock()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    clock.now = 100.0
    Client.made = []
    monkeypatch.setattr(confluent_kafka.admin, "AdminClient", Client)
    monkeypatch.setattr(reconnecting_admin, "time", clock)
    return Client.made


def give_up(client: Client, after_s: float, *errors: KafkaException | None) -> None:
    clock.now += after_s
    for future, error in zip(client.asked, errors, strict=True):
        if error is None:
            future.set_result(1)
        else:
            future.set_exception(error)


def test_whom_nobody_has_answered_for_long_enough_is_replaced_at_the_next_call(
    made: list[Client], caplog: pytest.LogCaptureFixture
) -> None:
    admin = reconnecting_admin.AdminClient({"bootstrap.servers": "a:1"})
    made[0].fails = LATE
    for _ in range(3):  # 9 s
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=3.0)
    assert len(made) == 1
    with caplog.at_level(logging.INFO):
        assert admin.list_topics(timeout=3.0) == "topics"
    assert len(made) == 2 and made[1].config == made[0].config
    assert "a:1: nobody has answered for 9 s; asking with another client" in caplog.text
    assert id(admin._before) == id(made[0]), "what was asked of it may still be waited for"
    clock.now += 1000
    assert admin.list_topics(timeout=3.0) == "topics" and len(made) == 2


def test_futures_tell_as_well_and_the_time_between_two_questions_does_not_count(made: list[Client]) -> None:
    admin = reconnecting_admin.AdminClient({})
    admin.describe_topics(["a", "b"])
    give_up(made[0], 3.0, LATE, LATE)
    clock.now += 1000
    admin.describe_cluster()
    assert len(made) == 1, "one question of three seconds"
    give_up(made[0], 3.0, None)
    admin.describe_cluster()
    give_up(made[0], 10.0, LATE)
    assert len(made) == 1
    admin.describe_cluster()
    assert len(made) == 2


@pytest.mark.parametrize("word", [None, REFUSED])
def test_any_word_of_a_broker_is_an_answer(made: list[Client], word: KafkaException | None) -> None:
    """And whoever has one, early or late, is not cut off because another question went unanswered
    meanwhile."""
    admin = reconnecting_admin.AdminClient({})
    for _ in range(5):
        admin.describe_topics(["a", "b"])
        give_up(made[0], 10.0, LATE, word)
    for _ in range(5):
        admin.describe_topics(["a", "b"])
        late, early = made[0].asked
        made[0].asked = [early]
        give_up(made[0], 0.01, word)
        made[0].asked = [late]
        give_up(made[0], 10.0, LATE)
    assert len(made) == 1


def test_late_words_of_the_client_before_say_nothing_of_this_one(made: list[Client]) -> None:
    admin = reconnecting_admin.AdminClient({})
    admin.describe_topics(["a"])
    give_up(made[0], 10.0, LATE)
    before = made[0].asked = [Future()]
    admin.describe_topics(["a"])
    assert len(made) == 2
    before[0].set_exception(LATE)
    admin.describe_topics(["a"])
    assert len(made) == 2


def test_what_was_pending_in_a_call_is_raised_as_it_was(
    made: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the real client ends one of ten calls that a signal comes in the middle of: a traceback of its own
    said nothing of that."""
    admin = reconnecting_admin.AdminClient({})
    pending = SystemError("<built-in method> returned a result with an exception set")

    def list_offsets(client: Client) -> None:
        raise pending

    monkeypatch.setattr(Client, "list_offsets", list_offsets, raising=False)
    with pytest.raises(SystemError):
        admin.list_offsets()
    pending.__cause__ = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        admin.list_offsets()


def test_only_what_the_client_has_can_be_called(made: list[Client]) -> None:
    with pytest.raises(AttributeError):
        _ = reconnecting_admin.AdminClient({}).list_everything


def test_all_that_get_in_by_the_same_configuration_share_a_client_for_as_long_as_one_keeps_it(
    made: list[Client],
) -> None:
    """Each driver of fifty links had up to six, and each lane two."""
    one = reconnecting_admin.shared_admin({"bootstrap.servers": "a:1", "client.id": "v"}, dict, logger=None)
    same = reconnecting_admin.shared_admin({"client.id": "v", "bootstrap.servers": "a:1"}, dict, logger=None)
    other = reconnecting_admin.shared_admin({"bootstrap.servers": "b:1"}, dict, logger=None)
    assert one is same and one is not other and len(made) == 2
    del one, same
    gc.collect()
    again = reconnecting_admin.shared_admin({"bootstrap.servers": "a:1", "client.id": "v"}, dict, logger=None)
    assert len(made) == 3, "a link that has gone leaves nothing behind"
    assert again is not other
