"""Spans of frames, in one trace over both applications though nothing travels with a frame: both take its ids
from what the frame says, and so decide alike whether it is sampled. Needs the extra `otel`.

Spans are sent by a thread, from a queue that is bounded: what does not fit is left out, and nobody waits.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from common import ports
from common.app.otel.exporters import Said, environment, resource_of
from common.config import credentials, telemetry
from common.errors import SettingsError

if TYPE_CHECKING:
    from common.config.credentials import TracesPlan
    from common.link.frame import Frame

log = logging.getLogger(__name__)

SCOPE = InstrumentationScope("verbatim")
LAST_S = 0.5
"""How long a lane that ends waits until its last spans are sent, where sending works."""
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Spans:
    """What one lane sends. Raises SettingsError where a variable of the exporter's is wrong, ImportError
    where a package is missing."""

    def __init__(self, plan: TracesPlan, application: str, link: str, instance: str) -> None:
        variables = credentials.traces_found(plan)
        said = Said({**os.environ, **variables})
        with environment(variables):
            try:
                self._sampler = TracerProvider(shutdown_on_exit=False).sampler
                self._resource = resource_of(application, link, instance)
                self._exporter = _Telling(_exporter(plan["exporter"]), plan["exporter"], said)
                self._processor = BatchSpanProcessor(self._exporter)
            except (OSError, RuntimeError, ValueError) as error:
                raise SettingsError(f"OTEL_TRACES_EXPORTER: {said.hidden(error)}") from None
        self._link = link

    def sampled(self, frame: Frame) -> int | None:
        """The id of a frame's trace, where it has one: of link, topic id, partition and first offset."""
        name = f"{self._link}/{frame.topic_id}/{frame.partition}/{frame.start}"
        trace = int.from_bytes(blake2b(name.encode(), digest_size=16).digest(), "big")
        found = self._sampler.should_sample(None, trace, "frame").decision
        return trace if found is Decision.RECORD_AND_SAMPLE else None

    def replicated(
        self, frame: Frame, trace: int, size: int, read_ns: int, cut_ns: int, staged_ns: int
    ) -> None:
        """Staging has acknowledged a frame. All in ns since 1970; `size`: of its value, in bytes."""
        root = _context(trace, frame, "frame")
        send = partial(self._send, frame, trace, size)
        send("frame", None, read_ns, staged_ns, SpanKind.PRODUCER)
        send("cut", root, read_ns, cut_ns)
        send("stage", root, cut_ns, staged_ns)

    def delivered(
        self, frame: Frame, trace: int, size: int, taken_ns: int, produced_ns: int, committed_ns: int
    ) -> None:
        """A frame's records are committed."""
        parent = _context(trace, frame, "deliver")
        send = partial(self._send, frame, trace, size)
        send("deliver", _context(trace, frame, "frame", True), taken_ns, committed_ns, SpanKind.CONSUMER)
        send("produce", parent, taken_ns, produced_ns)
        send("commit", parent, produced_ns, committed_ns)

    def _send(
        self,
        frame: Frame,
        trace: int,
        size: int,
        name: str,
        parent: SpanContext | None,
        begin_ns: int,
        end_ns: int,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        attributes: dict[str, str | int] = {
            "link": self._link,
            "topic": frame.topic,
            "partition": frame.partition,
            "first_offset": frame.start,
            "records": frame.count,
            "bytes": size,
        }
        self._processor.on_end(
            ReadableSpan(
                name,
                _context(trace, frame, name),
                parent,
                self._resource,
                attributes,
                kind=kind,
                start_time=begin_ns,
                end_time=max(begin_ns, end_ns),
                instrumentation_scope=SCOPE,
            )
        )

    def close(self) -> None:
        """Send what is left. Where that does not work nobody waits for it, and it is not tried for long."""
        late = self._exporter.late()
        ending = threading.Thread(target=self._end, args=(late,), name="spans", daemon=True)
        ending.start()
        if not late:
            ending.join(LAST_S)
        self._exporter.over = True

    def _end(self, late: bool) -> None:
        if late:
            # It would wait for its next try.
            self._exporter.shutdown()
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def _context(trace: int, frame: Frame, name: str, remote: bool = False) -> SpanContext:
    """Of the span `name` of a frame's. A frame that was staged twice has two of each: by its writer."""
    digest = blake2b(f"{trace:x}/{frame.writer}/{name}".encode(), digest_size=8).digest()
    return SpanContext(trace, int.from_bytes(digest, "big"), remote, _SAMPLED)


class _Telling(SpanExporter):
    """An exporter that says once why it fails, and knows whether it is of use."""

    def __init__(self, exporter: SpanExporter, name: str, said: Said) -> None:
        self._exporter, self._name, self._said = exporter, name, said
        self.over = False
        """Whether its lane is: then nobody is told any more."""
        self._fails = False
        self._since: float | None = None

    def late(self) -> bool:
        """Whether it fails, or is at it for long."""
        since = self._since
        return self._fails or (since is not None and ports.monotonic() - since > LAST_S)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._since = ports.monotonic()
        why = self._said.failure(partial(self._exporter.export, spans), SpanExportResult.SUCCESS)
        if why is not None and not self._fails and not self.over:
            log.warning("spans can't be sent by %s: %s; left out, without another word", self._name, why)
        self._fails, self._since = why is not None, None
        return SpanExportResult.SUCCESS if why is None else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _exporter(name: str) -> SpanExporter:
    if name == "console":
        return ConsoleSpanExporter(out=sys.stdout, formatter=lambda span: span.to_json(indent=None) + "\n")
    if telemetry.protocol(os.environ, "TRACES") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as by_grpc

        return by_grpc.OTLPSpanExporter()
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as by_http

    return by_http.OTLPSpanExporter()
