"""Fills the quick start's source topic: a backlog at once, the rest as it would arrive live; remembers when
it wrote what."""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError

from common.errors import VerbatimError
from common.kafka.client import clients
from verbatim.quickstart.records import Record, Records, partition_of

if TYPE_CHECKING:
    from confluent_kafka import Producer

LIVE_S = 20.0
"""How long the records that arrive live take."""
TICK_S = 0.02
_GRAIN_S = 0.001
_FLUSH_S = 60.0


class History:
    """When which offset was written, to the millisecond: written by the loader's thread, read by any
    other."""

    def __init__(self, partitions: int) -> None:
        self._offsets = [array("q") for _ in range(partitions)]
        self._times = [array("d") for _ in range(partitions)]
        self.ends = [0] * partitions

    def wrote(self, partition: int, now: float) -> None:
        """The partition's next offset is written at `now`, in seconds of any steady clock."""
        times = self._times[partition]
        if not times or now - times[-1] >= _GRAIN_S:
            # The time first: whoever finds the offset finds its time too.
            times.append(now)
            self._offsets[partition].append(self.ends[partition])
        self.ends[partition] += 1

    def written_at(self, partition: int, offset: int) -> float | None:
        """When the record with that offset was written; None for one that this loader did not write."""
        if not 0 <= partition < len(self.ends) or not 0 <= offset < self.ends[partition]:
            return None
        return self._times[partition][bisect_right(self._offsets[partition], offset) - 1]


class Loader:
    """Writes the records in a thread of its own, with partitions of our choice, so that offsets are known as
    they are written.

    A tenth at once; the others from `go_live` on, over `live_s`; the last tenth not before `let_finish`.
    """

    def __init__(
        self,
        records: Records,
        partitions: int,
        config: clients.Config,
        live_s: float = LIVE_S,
        producer: Producer | None = None,
    ) -> None:
        self.history = History(partitions)
        self.backlog = max(1, records.count // 10)
        self.held_from = max(self.backlog, records.count * 9 // 10)
        self._records = records
        self._partitions = partitions
        self._live_s = live_s
        self._producer = producer or clients.producer(config)
        self._live, self._free, self._stop = threading.Event(), threading.Event(), threading.Event()
        self._refused: KafkaError | None = None
        self._failure: BaseException | None = None
        self._done = False
        self._thread = threading.Thread(target=self._main, name="loader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def go_live(self) -> None:
        self._live.set()

    def let_finish(self) -> None:
        self._free.set()

    def finished(self) -> bool:
        """Whether all is written and acknowledged. Raises what ended the loader before that."""
        if self._failure is not None:
            raise self._failure
        return self._done

    def stop(self) -> None:
        """End, whatever is left to do. Safe to call at any time."""
        for event in (self._stop, self._live, self._free):
            event.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _main(self) -> None:
        try:
            self._load()
            if not self._stop.is_set():
                self._flush()
                self._done = True
        except Exception as error:  # noqa: BLE001  whatever it is, the command must hear of it
            self._failure = error

    def _load(self) -> None:
        began = 0.0
        live = max(1, self._records.count - self.backlog)
        for number, record in enumerate(self._records.read()):
            if number >= self.backlog:
                if number == self.backlog:
                    self._producer.flush(_FLUSH_S)
                    self._live.wait()
                    began = time.monotonic()
                if number == self.held_from:
                    self._free.wait()
                due = began + (number - self.backlog) * self._live_s / live
                if (early := due - time.monotonic()) > TICK_S:
                    self._producer.poll(0)
                    self._stop.wait(early)
            if self._stop.is_set():
                return
            self._write(number, record)

    def _write(self, number: int, record: Record) -> None:
        partition = partition_of(record, number, self._partitions)
        if number % 256 == 0:
            self._producer.poll(0)
        while True:
            try:
                self._producer.produce(
                    self._records.topic,
                    record.value,
                    record.key,
                    partition,
                    on_delivery=self._delivered,
                    timestamp=record.timestamp_ms,
                    headers=record.headers,
                )
                break
            except BufferError:
                self._producer.poll(0.05)
                if self._stop.is_set():
                    return
        self._check()
        self.history.wrote(partition, time.monotonic())

    def _flush(self) -> None:
        left = self._producer.flush(_FLUSH_S)
        self._check()
        if left:
            raise VerbatimError(
                f"topic {self._records.topic}: {left} records were not acknowledged within {_FLUSH_S:.0f} s"
            )

    def _check(self) -> None:
        if self._refused is not None:
            raise VerbatimError(f"topic {self._records.topic} refused a record: {self._refused.str()}")

    def _delivered(self, error: KafkaError | None, _: Any) -> None:
        if error is not None and self._refused is None:
            self._refused = error
