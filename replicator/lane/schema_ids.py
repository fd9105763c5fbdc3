"""The ids of schemas at the target, as a lane knows them: it reads `<link>.schemas` when it meets an id that
it does not know, and while a partition waits for one. Registries are not asked: what is known goes on without
them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Self, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from common import ports
from common.errors import VerbatimError
from common.kafka.client import clients, topics
from common.link.lane_plan import Config
from common.link.schema_map import Mapped, SchemaMap
from common.link.schema_map_log import SchemaMapReader
from common.ports import Deadline
from replicator.lane_plan import ReplicatorPlan

if TYPE_CHECKING:
    from common.pipeline.batch import Awaited

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_INTERVAL_S, REST_S = 0.5, 10.0
"""How long to rest between two looks: ten times as long as the last one took, within these bounds."""
CALL_S = 3.0
"""The lane stands still meanwhile. What it reads lies where its frames go: most likely both can't be had."""


class SchemaIds:
    """Of one lane. Connects with the first question."""

    def __init__(self, topic: str, consumer: Config, admin: Config) -> None:
        """`consumer`, `admin`: properties of the target's clients."""
        self._topic, self._consumer, self._admin_config = topic, consumer, admin
        self._admin: AdminClient | None = None
        self._reader: SchemaMapReader | None = None
        self._look_at = 0.0
        self.trouble = ""
        """Why the topic could not be read when it was looked at last, as the end of a sentence."""

    @classmethod
    def of(cls, plan: ReplicatorPlan) -> Self:
        return cls(plan.schemas_topic, plan.control_consumer, plan.control_admin)

    def known(self, context: str, schema_id: int) -> int | None:
        """As far as it has been read."""
        return self._read_of(lambda read: read.target(context, schema_id))

    def target(self, context: str, schema_id: int) -> int | None:
        """As far as it has been written by now, or was when it was looked at last."""
        return self._written_of(lambda read: read.target(context, schema_id))

    def avro(self, context: str, schema_id: int) -> Mapped | None:
        """The same of an Avro schema's text."""
        return self._written_of(lambda read: read.avro(context, schema_id))

    def has(self, awaited: Awaited) -> bool:
        """Whether what is awaited of a schema is known, as far as it has been read."""
        if awaited.text:
            return self._read_of(lambda read: read.avro(awaited.context, awaited.id)) is not None
        return self.known(awaited.context, awaited.id) is not None

    def _read_of(self, of: Callable[[SchemaMap], T | None]) -> T | None:
        return None if self._reader is None else of(self._reader.map)

    def _written_of(self, of: Callable[[SchemaMap], T | None]) -> T | None:
        if (found := self._read_of(of)) is None and self.look():
            found = self._read_of(of)
        return found

    def look(self) -> bool:
        """Read on, unless that was done just now; whether it was."""
        if ports.monotonic() < self._look_at:
            return False
        began, before, self.trouble = ports.monotonic(), self.trouble, ""
        try:
            self._read(Deadline(CALL_S))
        except (KafkaException, VerbatimError) as error:
            self.trouble = f"; {self._topic} can't be read: {error}"
        if self.trouble not in ("", before):
            log.warning("records whose schemas are new wait%s", self.trouble)
        now = ports.monotonic()
        self._look_at = now + min(REST_S, max(LOOK_INTERVAL_S, 10 * (now - began)))
        return True

    def _read(self, deadline: Deadline) -> None:
        if self._admin is None:
            self._admin = clients.admin(self._admin_config)
        if self._reader is None:
            hidden: set[str] = set()
            if self._topic not in topics.describe(self._admin, [self._topic], deadline, hidden):
                why = "grant READ on it" if hidden else "it is not there: start `schemas`"
                self.trouble = f"; {self._topic} can't be read: {why}"
                return
            self._reader = SchemaMapReader(self._topic, self._consumer, self._admin)
        self._reader.catch_up(deadline)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
