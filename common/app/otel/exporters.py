"""What OpenTelemetry's exporters have round them, of metrics and of spans: their variables, what they say,
and who sends. Needs the extra `otel`."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version

from confluent_kafka import KafkaException
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from common.config import telemetry
from common.config.client_properties import HIDDEN
from common.errors import VerbatimError, what_and_where

sdk_log = logging.getLogger("opentelemetry")


class Said(logging.Handler):
    """What OpenTelemetry's exporters say, instead of a log that says it each time: by thread the first
    words, which have the reason."""

    def __init__(self, variables: Mapping[str, str | None]) -> None:
        super().__init__(logging.WARNING)
        self._words: dict[int, str] = {}
        self._secrets = telemetry.secrets(variables)
        sdk_log.handlers, sdk_log.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        self._words.setdefault(threading.get_ident(), self.hidden(record.getMessage()))

    def taken(self) -> str:
        return self._words.pop(threading.get_ident(), "")

    def failure(self, export: Callable[[], object], success: object) -> str | None:
        """Have something sent; why that failed, where it did."""
        try:
            if export() is success:
                return None
        except (VerbatimError, KafkaException) as error:
            return self.hidden(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, what is told of goes on
            return self.hidden(what_and_where(error))
        finally:
            words = self.taken()
        return words or "the exporter does not say why"

    def hidden(self, what: object) -> str:
        """In one line, without a secret."""
        words = " ".join(str(what).split()).rstrip(".")
        for secret in self._secrets:
            words = words.replace(secret, HIDDEN)
        return words


def resource_of(application: str, link: str, instance: str) -> Resource:
    """Who sends, in OpenTelemetry's words; what its variables say of that counts first."""
    own = {
        "service.name": f"verbatim-{application}",
        "service.namespace": link,
        "service.instance.id": instance,
        "service.version": version("verbatim-kafka"),
    }
    return Resource.create(own).merge(OTELResourceDetector().detect())


@contextlib.contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """The exporters read their variables themselves: what was given elsewhere stands there meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: value for name, value in variables.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
