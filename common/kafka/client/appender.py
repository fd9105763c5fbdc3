"""Appends records to the first partition of a topic and waits until they are safe; knows nothing of what they
say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from common.errors import KafkaTimeout
from common.kafka.client import clients, topics
from common.kafka.errors import denied, kafka_error, lacks_right
from common.ports import Deadline

CALL_S = 10.0


class Appender:
    """A producer, made when there is something to write, and another one after each failure. For one thread
    at a time."""

    def __init__(self, topic: str, config: clients.Config, **own: Any) -> None:
        """`config` and `own` as for `kafka.producer`."""
        self.topic = topic
        self._config = config
        self._own = own
        self._producer: Producer | None = None

    def append(self, records: Sequence[tuple[bytes | None, bytes | None]], timeout_s: float) -> list[int]:
        """Append records (key, value) in order; their offsets.

        Raises LinkRefused where the topic may not be written, KafkaTimeout, KafkaException. Then some may be
        there, and others may come later, in this order.
        """
        deadline = Deadline(timeout_s)
        if self._producer is None:
            self._producer = clients.producer(self._config, linger_ms=0, **self._own)
            clients.connect(self._producer, self.topic, deadline)
        offsets: list[int] = []
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)
            else:
                offsets.append(message.offset())  # type: ignore[arg-type]

        try:
            for key, value in records:
                self._producer.produce(self.topic, value, key, 0, on_delivery=delivered)
                self._producer.poll(0)
            self._producer.flush(deadline.left())
        except KafkaException as exception:
            # What ends a producer is raised by any call, before it is reported.
            error = kafka_error(exception)
            if error is None:
                raise
            failures.append(error)
        if failures or len(offsets) < len(records):
            self._producer = None
            if not failures:
                raise KafkaTimeout(f"writing to {self.topic}: no acknowledgement in time")
            error = next(filter(lacks_right, failures), failures[0])
            if not lacks_right(error) and self._may_not_write(error):
                error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
            if lacks_right(error):
                raise denied(f"writing to {self.topic}", error, right="WRITE")
            raise KafkaException(error)
        return offsets

    def _may_not_write(self, error: KafkaError) -> bool:
        """Of a producer that was ended it is not always told why: that it got no id may be for want of a
        right."""
        if error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._FATAL):
            return False
        return bool(topics.not_writable(clients.admin(self._config), [self.topic], Deadline(CALL_S)))

    def close(self) -> None:
        """Give up within a second what is still in flight."""
        if self._producer is not None:
            self._producer.flush(1.0)
