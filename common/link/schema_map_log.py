"""Reads and appends the schemas topic. What its records mean is decided in common/link/schema_map.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from common.errors import KafkaTimeout, StateError
from common.kafka.client import clients
from common.kafka.client.appender import Appender
from common.kafka.client.range_reader import records
from common.link.schema_map import SchemaMap
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 30.0


class SchemaMapReader:
    """The topic as far as it has been read; `map` is what it says. For whoever has its name and the
    properties of a consumer: a task on another machine, too."""

    def __init__(self, topic: str, consumer_config: clients.Config, admin: AdminClient) -> None:
        self.topic = topic
        self.map = SchemaMap()
        self._config = consumer_config
        self._admin = admin
        self._position = 0
        self._consumer: Consumer | None = None

    def catch_up(self, deadline: Deadline) -> SchemaMap:
        """Take in all that is there by now. Raises KafkaTimeout, StateError, KafkaException."""
        low, end = clients.watermarks(self._admin, self.topic, 0, deadline)
        begin = max(self._position, low)
        if self._consumer is None:
            self._consumer = clients.reader(self._config, check_crcs=True)
            clients.connect(self._consumer, self.topic, deadline)
        try:
            for message in records(self._consumer, self.topic, {0: (begin, end)}, deadline.left(CALL_S)):
                try:
                    self.map.apply(message.key(), message.value())
                except StateError as error:
                    raise StateError(f"{self.topic} offset {message.offset()}: {error}") from None
        except KafkaTimeout:
            # The client may have gone silent: the next call reads with another.
            self._consumer.close()
            self._consumer = None
            raise
        self._position = max(begin, end)
        return self.map

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None


class SchemaMapLog(SchemaMapReader):
    """The same for its only writer, the leader of `schemas`: `map` knows at once what was appended."""

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        super().__init__(settings.schemas_topic, settings.client_config("destination", "consumer"), admin)
        self._appender = Appender(self.topic, settings.client_config("destination", "producer"))

    def append(self, records: list[tuple[bytes, bytes | None]], deadline: Deadline) -> None:
        """Write them and wait until they are safe. Raises KafkaTimeout, KafkaException, LinkRefused."""
        self._appender.append(records, deadline.left(CALL_S))
        for key, value in records:
            self.map.apply(key, value)

    def close(self) -> None:
        super().close()
        self._appender.close()
