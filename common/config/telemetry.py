"""Where metrics and traces go, as OpenTelemetry's variables say it: read and checked. Who sends them is
elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

from common.config.client_properties import LOGIN

EXPORTERS = ("prometheus", "otlp", "kafka", "console")
NONE = "none"
TRACES_EXPORTERS = ("otlp", "console")
_WITH_RATIO = ("traceidratio", "parentbased_traceidratio")
SAMPLERS = (
    *("always_on", "always_off", "parentbased_always_on", "parentbased_always_off"),
    *_WITH_RATIO,
)
"""Of OpenTelemetry's specification. A frame's trace has no parent, so both of a kind do the same."""
PROTOCOLS = ("http/protobuf", "grpc")
HEADERS = (
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
)
ENDPOINTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)
_HEADER = re.compile(r"\s*[!#-'*+\-.0-9A-Z^-z|~]+\s*=[ !#-+\--:<-\[\]-~]*")


def exporters(value: str) -> str:
    """The names, comma-separated, each once. ValueError names one that is none."""
    names = list(dict.fromkeys(filter(None, (name.strip().lower() for name in value.split(",")))))
    for name in names:
        if name not in (*EXPORTERS, NONE):
            raise ValueError(f"expected {', '.join(EXPORTERS)} or none, comma-separated, not {name[:40]!r}")
    if NONE in names and len(names) > 1:
        raise ValueError("none goes alone")
    return ",".join(names)


def traces_exporter(value: str) -> str:
    """ValueError where it names none."""
    if (name := value.strip().lower()) not in (*TRACES_EXPORTERS, NONE):
        raise ValueError(f"expected {', '.join(TRACES_EXPORTERS)} or none, not {value[:40]!r}")
    return name


def sampler(value: str) -> str:
    """ValueError where it names none."""
    if (name := value.strip().lower()) not in SAMPLERS:
        raise ValueError(f"expected one of {', '.join(SAMPLERS)}, not {value[:40]!r}")
    return name


def wrong_ratio(sampler: str, argument: str | None) -> str | None:
    """What is wrong with a sampler's argument; None: nothing, or it takes none."""
    if sampler not in _WITH_RATIO or argument is None:
        return None
    try:
        ratio = float(argument)
    except ValueError:
        ratio = -1.0
    return None if 0 <= ratio <= 1 else f"expected a ratio between 0 and 1, not {argument[:40]!r}"


def not_installed(setting: str, exporters: str, error: ImportError) -> str:
    """What to say where a package is missing that they need."""
    return f"{setting}: {exporters}: {error.name} is not installed: install the extra, verbatim-kafka[otel]"


def protocol(variables: Mapping[str, str | None], signal: str = "METRICS") -> str:
    return (
        variables.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL")
        or variables.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or PROTOCOLS[0]
    )


def secrets(variables: Mapping[str, str | None]) -> list[str]:
    """What no line may show: values of headers, as they are written and as they are sent, and logins in
    URLs."""
    headers = [entry for name in HEADERS for entry in (variables.get(name) or "").split(",")]
    values = [entry.partition("=")[2].strip() for entry in headers]
    logins = [login[1] for name in ENDPOINTS if (login := LOGIN.search(variables.get(name) or ""))]
    return [secret for value in values + logins for secret in (value, unquote(value)) if secret]


def wrong(variables: Mapping[str, str | None], signal: str = "METRICS") -> str | None:
    """What is wrong with variables of the exporter `otlp`, named and without a header's content; None:
    nothing."""
    if (found := protocol(variables, signal)) not in PROTOCOLS:
        return f"OTEL_EXPORTER_OTLP_PROTOCOL: expected {' or '.join(PROTOCOLS)}, not {found[:40]!r}"
    scheme = "" if found == "grpc" else "https?://"
    for name in ENDPOINTS:
        if not re.fullmatch(rf"{scheme}[^\s/]\S*", variables.get(name) or "http://host"):
            return f"{name}: expected http://host:port or https://host:port"
    for name in HEADERS:
        entries = (entry for entry in (variables.get(name) or "").split(",") if entry.strip())
        if not all(map(_is_header, entries)):
            return f"{name}: expected name=value, comma-separated, with values URL-encoded"
    return None


def _is_header(entry: str) -> bool:
    return bool(_HEADER.fullmatch(entry)) and unquote(entry).isascii() and unquote(entry).isprintable()


def wrong_attributes(value: str | None) -> str | None:
    """The entry of OTEL_RESOURCE_ATTRIBUTES that is none; None: all are."""
    entries = (entry.strip() for entry in (value or "").split(","))
    return next((entry for entry in entries if entry and not entry.partition("=")[2]), None)
