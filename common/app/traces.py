"""Spans of frames, where OTEL_TRACES_EXPORTER asks for them. Where it does not, nothing of OpenTelemetry's is
imported."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from common.config import telemetry
from common.config.credentials import traces_for_plan
from common.errors import SettingsError

if TYPE_CHECKING:
    from common.app.otel.spans import Spans
    from common.config.settings import Settings

log = logging.getLogger(__name__)

_SPANS = "common.app.otel.spans"
_BY_HTTP = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


def modules(settings: Settings) -> list[str]:
    """What lanes need for spans, to be imported ahead: else each takes a third of a second for it. Not what
    speaks gRPC, which does without forks."""
    if settings.traces_exporter == telemetry.NONE:
        return []
    by_http = telemetry.protocol(settings.otel_variables, "TRACES") != "grpc"
    return [_SPANS, _BY_HTTP] if settings.traces_exporter == "otlp" and by_http else [_SPANS]


def must_be_had(settings: Settings) -> None:
    """Raises SettingsError where what lanes are to send spans with can't be had here."""
    if (found := _spans(traces_for_plan(settings), "", "", "")) is not None:
        found.close()


def spans_of(plan: Mapping[str, Any]) -> Spans | None:
    """What a lane sends its spans with, by its plan as JSON. What hinders that is told: records go on."""
    try:
        return _spans(plan.get("traces"), plan["application"], plan["link"], plan["instance"])
    except SettingsError as error:
        log.warning("%s; no spans are sent", error)
        return None


def _spans(traces: Any, *names: str) -> Spans | None:
    if not traces:
        return None
    try:
        from common.app.otel.spans import Spans

        return Spans(traces, *names)
    except ImportError as error:
        raise SettingsError(
            telemetry.not_installed("OTEL_TRACES_EXPORTER", traces["exporter"], error)
        ) from None
