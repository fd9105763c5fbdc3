"""Records of the source that were never copied: read, reported one by one, and exported byte for byte.
Decides nothing about them."""

from __future__ import annotations

import base64
import filecmp
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from common.errors import SettingsError
from common.kafka.client import clients
from common.kafka.client.clients import Received
from common.kafka.client.range_reader import of_partitions
from common.partitions import PartitionName
from verbatim.moves.back_rules import Uncopied

if TYPE_CHECKING:
    from common.config.settings import Settings


@dataclass(frozen=True, slots=True)
class Left:
    """A record that was never copied. Sizes in bytes, None for null; `timestamp_ms` since 1970, -1 where
    there is none."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    key_bytes: int | None
    value_bytes: int | None
    headers: int


class Export:
    """A file of JSON lines that is there once all of it is, for its owner alone: topic, partition, offset,
    timestamp (ms since 1970; its type is `create` or `log-append`), key, value and headers, bytes in base64,
    null as null."""

    def __init__(self, path: Path) -> None:
        """Raises SettingsError where it can't be written."""
        self.path = path
        self._part = path.with_name(path.name + ".part")
        try:
            own = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as error:
            raise SettingsError(f"--export: {self._part}: {error.strerror}") from None
        self._file = os.fdopen(own, "wb")

    def add(self, message: Received) -> None:
        kind, timestamp_ms = message.timestamp()
        line = {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp": timestamp_ms,
            "timestamp_type": "log-append" if kind == TIMESTAMP_LOG_APPEND_TIME else "create",
            "key": _text(message.key()),
            "value": _text(message.value()),
            "headers": [[name, _text(value)] for name, value in message.headers() or ()],
        }
        self._file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def finish(self) -> None:
        """Raises SettingsError where there is another file of the name: what it holds may be nowhere
        else."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if self.path.exists():
            same = filecmp.cmp(self.path, self._part, shallow=False)
            self._part.unlink()
            if not same:
                raise SettingsError(f"--export: {self.path} is there, with other records: give another file")
        else:
            self._part.replace(self.path)

    def drop(self) -> None:
        """It did not come to its end."""
        self._file.close()
        self._part.unlink(missing_ok=True)


def left_behind(
    settings: Settings, found: Mapping[PartitionName, Uncopied], export: Export | None
) -> Iterator[Left]:
    """The committed records of these offsets, each partition's in order. Raises StateError, KafkaTimeout."""
    ranges = {at: (of.low, of.end) for at, of in found.items()}
    with closing(clients.reader(settings.client_config("source", "consumer"), check_crcs=True)) as reader:
        for message in of_partitions(reader, ranges):
            if export is not None:
                export.add(message)
            key, value = message.key(), message.value()
            yield Left(
                message.topic(),
                message.partition(),
                message.offset(),
                message.timestamp()[1],
                key,
                None if key is None else len(key),
                None if value is None else len(value),
                len(message.headers() or ()),
            )


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
