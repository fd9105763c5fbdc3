"""Variables of kafka-reo, wherever a deployment has them, as settings of Verbatim. Most keep their names.
Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from common.config import wire_properties
from common.config.legacy import OLD_VARIABLES
from common.config.sources import is_setting
from verbatim.convert.mirror_maker import scalar
from verbatim.convert.settings import Converted, must_load, said

_SIGN = "KAFKA_CLUSTERS_SOURCE_TOPIC"
_DEFAULT_NAME = "exactly-once-replicator"
_STAGING = "KAFKA_CLUSTERS_DESTINATION_TOPIC_PROXY"
_SIDES = {"consumer": "SOURCE_CONSUMER", "producer": "DESTINATION_PRODUCER"}
_ANEW = (
    "going on where kafka-reo has stopped: its copies lack headers, and nothing says where each is from. The link begins "
    "anew, so give its destination another name than kafka-reo's has (docs: guides/migration)"
)
Variables = dict[str, str | None]
"""None: a value that stands somewhere else."""


def of_text(text: str) -> dict[str, Variables]:
    """Of a file of variables, if it is one of its: by its name, of which there is none."""
    lines = (line.strip().removeprefix("export ").partition("=") for line in text.splitlines())
    found: Variables = {name: value for name, _, value in lines if name and not name.startswith("#")}
    return {"": found} if _SIGN in found else {}


def of_document(document: Any) -> dict[str, Variables]:
    """Those in a YAML document, by the name of what has them: services of Compose, containers of Kubernetes,
    or its own config.yaml."""
    if not isinstance(document, dict):
        return {}
    services = document.get("services")
    named = services.items() if isinstance(services, dict) else ()
    found = {str(name): _pairs(one.get("environment")) for name, one in named if _is_mapping(one)}
    found |= dict(_containers(document))
    if isinstance(kafka := document.get("kafka"), dict) and isinstance(kafka.get("clusters"), dict):
        found[""] = dict(_flat(document))
    return {name: variables for name, variables in found.items() if _SIGN in variables}


def _pairs(given: Any) -> Variables:
    if isinstance(given, list):
        split = (str(one).partition("=") for one in given)
        return {name: value if equals else None for name, equals, value in split}
    if not isinstance(given, dict):
        return {}
    return {str(name): None if value is None else scalar(value) for name, value in given.items()}


def _is_mapping(given: Any) -> bool:
    return isinstance(given, dict)


def _containers(given: Any) -> Iterator[tuple[str, Variables]]:
    """Of a workload, wherever in it containers stand."""
    if isinstance(given, dict):
        for key, below in given.items():
            if key == "containers" and isinstance(below, list):
                for one in filter(_is_mapping, below):
                    env = one.get("env")
                    named = filter(_is_mapping, env if isinstance(env, list) else ())
                    values = ((str(v.get("name")), v.get("value")) for v in named)
                    yield str(one.get("name")), _pairs(dict(values))
            else:
                yield from _containers(below)
    elif isinstance(given, list):
        for below in given:
            yield from _containers(below)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str | None]]:
    """Its config.yaml by the variables that it would take instead."""
    for key, below in value.items():
        name = f"{path}{key}".upper().replace("-", "_").replace(".", "_")
        if isinstance(below, Mapping):
            yield from _flat(below, f"{name}_")
        elif below is not None:
            yield name, scalar(below)


def converted(name: str, given: Variables) -> Converted:
    """Everything that was said is in one of its lists."""
    out = Converted(name or given.get("APPLICATION_NAME") or _DEFAULT_NAME, "kafka-reo's")
    out.set("APPLICATION_NAME", given.get("APPLICATION_NAME") or _DEFAULT_NAME)
    for variable, value in given.items():
        if value is None or "${" in value:
            out.missing.append(f"{variable}: its value stands elsewhere")
        elif variable != "APPLICATION_NAME":
            _one(variable, value, out)
    out.missing.append(_ANEW)
    must_load(out)
    return out


def _one(variable: str, value: str, out: Converted) -> None:
    old = OLD_VARIABLES.get(variable)
    if variable == _STAGING:
        out.unneeded.append(
            f"{variable}={value} (its records are kafka-reo's; the link makes a staging topic of its own)"
        )
    elif old is not None and old.setting == "REPLICATION_FACTOR" and value == "-1":
        out.unneeded.append(f"{variable}={value} (the cluster's default, as anyway)")
    elif old is not None and old.setting is not None:
        out.set(old.setting, value)
    elif old is not None and old.property is not None and old.kind is not None:
        if old.property in wire_properties.NO_EFFECT:
            out.unneeded.append(f"{variable}={value} ({old.property} has no effect on records)")
        else:
            name = old.property.upper().replace(".", "_")
            out.set(f"KAFKA_CLUSTERS_{_SIDES[old.kind]}_{name}", value)
    elif old is not None:
        out.unneeded.append(f"{variable}={value} ({old.meaning})")
    elif is_setting(variable):
        out.set(variable, value)
    elif variable.startswith(("KAFKA_", "APPLICATION_")):
        out.missing.append(said(variable.lower().replace("_", "."), value))
    else:
        why = "Kafka Streams' own" if variable.startswith("STREAMS_") else "none of kafka-reo's settings"
        out.unneeded.append(f"{variable} ({why})")
