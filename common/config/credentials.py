"""What a plan says of a client, or of an exporter of spans, instead of its secrets, and how these are found
where the plan is carried out; makes none.

Plans are rows: they pass through Spark's memory, its RPC and its spill files. A lane takes passwords and keys
from the environment and the files of the machine that it runs on, as its driver did.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from common.config import telemetry
from common.config.client_properties import Kind, Value, is_secret
from common.errors import SettingsError

if TYPE_CHECKING:
    from common.config.fields import Cluster
    from common.config.settings import Settings

log = logging.getLogger(__name__)

KEY = "credentials"
"""Stands among a client's properties in a plan, where secrets were left out."""

_WITH_SECRETS = frozenset({"sasl.username", "sasl.oauthbearer.client.id"})
"""Names that a secret belongs to: taken from where it is, for a file that was changed has both anew."""


def for_plan(settings: Settings, cluster: Cluster, kind: Kind) -> dict[str, Any]:
    """`settings.client_config` without secrets; under KEY, where there are any, what `found` needs to find
    them."""
    config: dict[str, Any] = {**settings.client_config(cluster, kind)}
    if not any(map(is_secret, config)):
        return config
    names = sorted(name for name in config if is_secret(name) or name in _WITH_SECRETS)
    file = settings.source_client_config if cluster == "source" else settings.destination_client_config
    return {name: value for name, value in config.items() if name not in names} | {
        KEY: {
            "cluster": cluster,
            "kind": kind,
            "names": names,
            "file": file and os.path.abspath(file),
            "config_file": settings.config_file and os.path.abspath(settings.config_file),
        }
    }


def found(config: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> dict[str, Value]:
    """The properties that `for_plan` was given, secrets as this machine has them. Raises SettingsError,
    naming the variable, without them."""
    rest = {name: value for name, value in config.items() if name != KEY}
    wanted = config.get(KEY)
    if wanted is None:
        return rest
    # Not for a lane that needs no secrets: it costs a quarter of a second.
    from common.config.loading import client_properties_here

    here = client_properties_here(
        wanted["cluster"],
        wanted["kind"],
        str(rest["bootstrap.servers"]),
        wanted["file"],
        wanted["config_file"],
        os.environ if environ is None else environ,
    )
    for name in wanted["names"]:
        if name not in here:
            variable = f"KAFKA_CLUSTERS_{wanted['cluster']}_PROPERTIES_{name.replace('.', '_')}".upper()
            also = f", nor in {wanted['file']} there" if wanted["file"] else ""
            raise SettingsError(
                f"{variable}: not set on {socket.gethostname()}, where a lane runs{also}; secrets don't travel with plans (docs: guides/several-machines#secrets-do-not-travel)"
            )
    return rest | {name: here[name] for name in wanted["names"]}


def found_in_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    """A lane's plan with all secrets of its clients. Raises SettingsError."""
    return {
        name: found(value) if isinstance(value, dict) and KEY in value else value
        for name, value in plan.items()
    }


class TracesPlan(TypedDict):
    """Of an exporter of spans: its name, OpenTelemetry's variables without those that hold a secret, which
    `secret` names, and where the driver was given them."""

    exporter: str
    variables: dict[str, str | None]
    secret: list[str]
    config_file: str | None


def traces_for_plan(settings: Settings) -> TracesPlan | None:
    """None where no spans are wanted."""
    if settings.traces_exporter == telemetry.NONE:
        return None
    variables = settings.otel_variables
    secret = [name for name in variables if telemetry.secrets({name: variables[name]})]
    return {
        "exporter": settings.traces_exporter,
        "variables": {name: value for name, value in variables.items() if name not in secret},
        "secret": secret,
        "config_file": settings.config_file and os.path.abspath(settings.config_file),
    }


def traces_found(plan: TracesPlan, environ: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """The variables that `traces_for_plan` was given, secrets as this machine has them. One that it lacks is
    told: records go on without."""
    environ = os.environ if environ is None else environ
    found = dict(plan["variables"])
    file = plan["config_file"]
    for name in plan["secret"]:
        value = environ.get(name)
        if not value and file and Path(file).exists():
            from common.config.sources import Sources

            value = given.value if (given := Sources.read({}, file, {}).get(name)) else None
        if not value:
            log.warning(
                "%s: not set on %s, where a lane runs; secrets don't travel with plans (docs: guides/several-machines#secrets-do-not-travel)",
                name,
                socket.gethostname(),
            )
        found[name] = value or None
    return found
