"""An admin client that is replaced when nobody answers it any more.

librdkafka (2.10 on; its issue 5301, open with 2.16) strikes off its list what a metadata answer does not
name. An answer that names topics and no broker, as every one does while a cluster's controller holds all
brokers to be away, leaves it with none, and it asks nobody ever again: each call fails for as long as the
client is there, whatever becomes of the cluster. Another client begins with bootstrap.servers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any
from weakref import WeakValueDictionary

import confluent_kafka.admin
from confluent_kafka import KafkaError, KafkaException

from common.ports.pending import as_raised

log = logging.getLogger(__name__)

UNANSWERED_S = 8.0
"""A question is given ten seconds, mostly: one that nobody answered is enough."""
NOBODY = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._RESOLVE,
    }
)
"""What the client says where no broker has."""


class Answers:
    """What one client heard. Told by that client's thread, so nothing here may be all that keeps the client
    alive."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._last = self._answered = 0.0

    def heard(self, asked: float, now: float, error: BaseException | None) -> None:
        reason = error.args[0] if isinstance(error, KafkaException) and error.args else None
        if not (isinstance(reason, KafkaError) and reason.code() in NOBODY):
            self._since, self._answered = None, now
        elif asked >= self._answered:
            # Of partitions that were asked for together, one may be without a leader: it is not the client
            # that nobody answers.
            self._since = asked if self._since is None else min(asked, self._since)
            self._last = now

    def missing_s(self) -> float:
        """How long nobody has answered: from the first question of those to the last that was given up."""
        since = self._since
        return 0.0 if since is None else self._last - since


class AdminClient:
    """Calls as confluent_kafka.admin.AdminClient has them, made of the client that there is at the moment.
    For any number of threads."""

    def __init__(self, config: dict[str, Any], **options: Any) -> None:
        self._config = config
        self._options = options
        self._lock = threading.Lock()
        self._client = self._made()
        self._answers = Answers()
        self._before: confluent_kafka.admin.AdminClient | None = None
        """Kept until what was asked of it has been given up: the futures of a client that is gone are never
        done."""

    def __getattr__(self, name: str) -> Any:
        if not callable(getattr(confluent_kafka.admin.AdminClient, name)):
            raise AttributeError(name)

        def call(*args: Any, **options: Any) -> Any:
            client, answers = self._current()
            asked = time.monotonic()
            try:
                with as_raised():
                    answer = getattr(client, name)(*args, **options)
            except KafkaException as error:
                answers.heard(asked, time.monotonic(), error)
                raise
            for future in _futures(answer):
                future.add_done_callback(
                    lambda done: answers.heard(asked, time.monotonic(), done.exception())
                )
            return answer

        return call

    def _current(self) -> tuple[confluent_kafka.admin.AdminClient, Answers]:
        with self._lock:
            if (missing_s := self._answers.missing_s()) >= UNANSWERED_S:
                log.info(
                    "%s: nobody has answered for %.0f s; asking with another client",
                    self._config.get("bootstrap.servers"),
                    missing_s,
                )
                self._before, self._client, self._answers = self._client, self._made(), Answers()
            # What it logs is handed out by this alone: why it got no answer the last time.
            self._client.poll(0)
            return self._client, self._answers

    def _made(self) -> confluent_kafka.admin.AdminClient:
        return confluent_kafka.admin.AdminClient(self._config, **self._options)


_shared: WeakValueDictionary[frozenset[tuple[str, Any]], AdminClient] = WeakValueDictionary()
_sharing = threading.Lock()


def shared_admin(
    config: Mapping[str, Any], whole: Callable[[Mapping[str, Any]], dict[str, Any]], **options: Any
) -> AdminClient:
    """The client of all in this process that get in by the same configuration, while one of them keeps it.
    `whole`: what a new one is made of.

    Each is some threads and connections, and asks for the cluster every three seconds
    (`clients.admin_config`), which fifty links of one target need not do each, and for each of their tasks.
    """
    given = frozenset(config.items())
    with _sharing:
        found = _shared.get(given)
        if found is None:
            found = _shared[given] = AdminClient(whole(config), **options)
        return found


def _futures(answer: Any) -> Iterable[Future[Any]]:
    if isinstance(answer, dict):
        return [found for found in answer.values() if isinstance(found, Future)]
    return [answer] if isinstance(answer, Future) else []
