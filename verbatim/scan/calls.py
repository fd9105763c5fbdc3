"""Asks brokers what the client library can't ask: how large logs are, quotas, and the header of a partition's
newest batch. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from common.kafka.client.clients import Config
from common.kafka.wire import fetch_protocol, protocol, record_batch
from common.kafka.wire.broker_connections import BrokerConnections
from common.kafka.wire.fetch_protocol import FETCH_BY_NAME, NO_SESSION, Wanted
from common.kafka.wire.pipelining import Request, pipelined
from common.kafka.wire.protocol import Address, Answer
from common.kafka.wire.record_batch import BatchError, BatchHeader
from common.partitions import PartitionName
from common.ports import Deadline
from verbatim.scan import requests
from verbatim.scan.requests import Quota

T = TypeVar("T")
_LAST = -1
"""Of a session's epoch: there is to be none."""


class Calls:
    """To one cluster, over connections of its own. For one thread."""

    def __init__(self, config: Config) -> None:
        self._brokers = BrokerConnections(config)

    def close(self) -> None:
        self._brokers.close()

    def log_sizes(self, deadline: Deadline) -> tuple[dict[PartitionName, list[int]], dict[str, str]]:
        """Bytes of each replica of each log that may be asked for; which brokers did not tell, and why."""
        described = self._brokers.any(protocol.METADATA, [protocol.metadata([])], deadline)
        asked: dict[Address, Request] = {
            at: (at, requests.LOG_DIRS, [requests.ALL_LOGS])
            for at in protocol.described(described).brokers.values()
        }
        sizes: dict[PartitionName, list[int]] = {}
        failed = {}
        answers = pipelined(self._brokers, asked, lambda _, said: requests.log_sizes(said), deadline)
        for (host, port), found in answers.items():
            if isinstance(found, dict):
                for at, size in found.items():
                    sizes.setdefault(at, []).append(size)
            else:
                denied = "not allowed; grant DESCRIBE on the cluster"
                failed[f"{host}:{port}"] = denied if found is None else found.args[0].str()
        return sizes, failed

    def quotas(self, deadline: Deadline) -> list[Quota]:
        """Raises KafkaException."""
        answer = self._brokers.any(requests.QUOTAS, [requests.ALL_QUOTAS], deadline)
        error, words, found = requests.quotas(answer)
        if error:
            raise KafkaException(KafkaError(error, words or KafkaError(error).str()))
        return found

    def newest_batches(
        self, bounds: Mapping[PartitionName, tuple[int, int]], deadline: Deadline
    ) -> tuple[dict[PartitionName, BatchHeader], dict[PartitionName, str]]:
        """The header of the newest batch of partitions (log start, end), or of the one before, since the
        newest may be a transaction's marker; and why others can't be told. Reads no record."""
        if not bounds:
            return {}, {}
        names = {topic: topic for topic, _ in bounds}
        self._brokers.describe(names, deadline)
        failed: dict[PartitionName, str] = {}
        asked: dict[PartitionName, Request] = {}
        for at, (low, end) in bounds.items():
            leader = self._brokers.leader(at)
            if leader is None:
                failed[at] = "it has no leader"
                continue
            # A byte at most: brokers send one batch all the same.
            wanted = {at: Wanted(max(low, end - 2), -1, 1)}
            asked[at] = (
                leader,
                FETCH_BY_NAME,
                [fetch_protocol.fetch(wanted, (), NO_SESSION, _LAST, 0, 0, 1, names=names)],
            )
        answers = pipelined(self._brokers, asked, lambda at, said: _first(at, said, names), deadline)
        found = {at: one for at, one in answers.items() if isinstance(one, BatchHeader)}
        failed |= {at: one.args[0].str() for at, one in answers.items() if isinstance(one, KafkaException)}
        return found, failed


def _first(at: PartitionName, answer: Answer, names: Mapping[str, str]) -> BatchHeader | None:
    """None where no batch of records has come. Raises KafkaException."""
    part = fetch_protocol.fetched(answer, names).parts.get(at)
    if part is None or part.error:
        code = KafkaError._BAD_MSG if part is None else part.error
        raise KafkaException(KafkaError(code))
    try:
        found = (header for _, header in record_batch.headers(pa.py_buffer(part.records), old=True))
        return next((header for header in found if not header.control), None)
    except BatchError as wrong:
        raise KafkaException(KafkaError(KafkaError._BAD_MSG, str(wrong))) from None
