"""Settings, read and checked: the first of flag, environment variable, YAML file (`--config`, the same keys),
default counts.

An empty variable counts as not set; APPLICATION_NAME, and what is required, may not be.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from common.config import client_properties
from common.config.checks import check_state_path, check_together, doubts
from common.config.client_properties import Given, Kind
from common.config.fields import CLUSTERS, FIELDS, KINDS, PREFIX, Cluster, flag_of
from common.config.legacy import OLD_VARIABLES, SAME_ANYWAY
from common.config.near_misses import near_misses
from common.config.settings import Settings
from common.config.sources import Sources, is_setting, read_text
from common.errors import SettingsError

_NEVER_EMPTY = {"APPLICATION_NAME"} | {
    variable for variable, field in FIELDS.items() if Settings.model_fields[field].is_required()
}
"""Elsewhere an empty variable counts as not set. Here that would be another link, or is no link at all."""
NOWHERE = "nowhere:9092"
NO_SOURCE = {f"{PREFIX}SOURCE_BOOTSTRAP_SERVERS": NOWHERE, f"{PREFIX}SOURCE_TOPIC": ".*"}
"""What is assumed for who never asks the source."""
NO_TARGET = {f"{PREFIX}DESTINATION_BOOTSTRAP_SERVERS": NOWHERE, f"{PREFIX}SOURCE_TOPIC": ".*"}
"""The same of the target, and all topics."""


def load(
    environ: Mapping[str, str] | None = None,
    config_file: str | os.PathLike[str] | None = None,
    flags: Mapping[str, str | None] | None = None,
    spark_conf: Mapping[str, str] | None = None,
    assumed: Mapping[str, str] | None = None,
) -> Settings:
    """Read every source; `environ` is os.environ unless given, `flags` maps variables' names to text.
    `assumed`: what counts where a variable is not given, for who can do without it.

    Raises SettingsError, one line that begins with the name of the variable at fault.
    """
    environ = os.environ if environ is None else environ
    sources = Sources.read(environ, config_file, flags or {})
    values: dict[str, Any] = {}
    labels: dict[str, str] = {}
    warnings = [
        f"{name}: there is no such setting, so it has no effect; did you mean {meant}?"
        for name, meant in near_misses(environ, [*FIELDS, *OLD_VARIABLES], is_setting).items()
    ]
    old = {}
    for variable, successor in OLD_VARIABLES.items():
        given = sources.get(variable)
        if given is None:
            continue
        if successor.setting is None:
            if successor.property is None and (variable, given.value.lower()) not in SAME_ANYWAY:
                warnings.append(f"{given.label}: {successor.meaning}")
            continue
        if variable == "KAFKA_CONFIG_CONSUMER_AUTO_RESET" and given.value.lower() not in (
            "earliest",
            "latest",
        ):
            raise SettingsError(f"{given.label}: expected earliest or latest, not {given.value[:40]!r}")
        if variable == "STREAMS_REPLICATION_FACTOR" and given.value.strip() == "-1":
            continue  # Kafka Streams' way to say: the cluster's default
        old[successor.setting] = given
    for variable, field in FIELDS.items():
        given, older = sources.get(variable), old.get(variable)
        if given and older and variable not in OLD_VARIABLES and given.value != older.value:
            warnings.append(f"{older.label}: ignored, {variable} is set")
        given = given or older
        if given is None and variable in _NEVER_EMPTY and sources.mentions(variable):
            raise SettingsError(f"{variable}: is empty; give it a value, or leave it out")
        if given:
            values[field], labels[field] = given.value.strip(), given.label
    settings = _validated({FIELDS[name]: value for name, value in (assumed or {}).items()} | values, labels)
    check_together(settings)
    properties: dict[str, dict[str, str | int]] = {}
    for cluster in CLUSTERS:
        for kind in KINDS:
            found, more = _client_properties(settings, sources, labels, cluster, kind)
            properties[f"{cluster}.{kind}"] = found
            warnings += [warning for warning in more if warning not in warnings]
    warnings += doubts(settings)
    conf = dict(spark_conf or {})
    if "spark.master" in conf:
        raise SettingsError("SPARK_MASTER: set it instead of --conf spark.master")
    check_state_path(settings, labels)
    return settings.model_copy(
        update={
            "client_properties": properties,
            "config_file": str(config_file) if config_file else None,
            "spark_conf": conf,
            "warnings": warnings,
        }
    )


def _validated(values: Mapping[str, Any], labels: Mapping[str, str]) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = str(first["loc"][0])
        variable = next((name for name, of in FIELDS.items() if of == field), field)
        if first["type"] == "missing":
            message = f"not set; it is required (variable, flag {flag_of(variable)} or --config file)"
        else:
            message = first["msg"].removeprefix("Value error, ")
            message = message[0].lower() + message[1:]
        raise SettingsError(f"{labels.get(field, variable)}: {message}") from None


def _client_properties(
    settings: Settings, sources: Sources, labels: Mapping[str, str], cluster: Cluster, kind: Kind
) -> tuple[dict[str, str | int], list[str]]:
    """older system's variables < file < PROPERTIES_ < the kind's own."""
    older = []
    for variable, successor in OLD_VARIABLES.items():
        given = sources.get(variable) if successor.kind == kind else None
        if given and successor.property:
            older.append(Given(successor.property, given.value, given.label))
    path = settings.source_client_config if cluster == "source" else settings.destination_client_config
    file = []
    if path:
        label = labels[f"{cluster}_client_config"]
        file = client_properties.parse_properties(read_text(Path(path), label), f"{label}: {path}")
    prefix = f"{PREFIX}{cluster.upper()}_"
    servers = (
        settings.source_bootstrap_servers if cluster == "source" else settings.destination_bootstrap_servers
    )
    layers = [
        (True, older),
        (False, file),
        (False, sources.family(cluster, "PROPERTIES")),
        (True, sources.family(cluster, kind.upper())),
    ]
    return client_properties.resolve(
        kind,
        layers,
        Given("bootstrap.servers", servers, prefix + "BOOTSTRAP_SERVERS"),
        (cluster, kind) in (("source", "consumer"), ("destination", "producer")),
    )


def client_properties_here(
    cluster: Cluster,
    kind: Kind,
    servers: str,
    file: str | None,
    config_file: str | None,
    environ: Mapping[str, str],
) -> dict[str, str | int]:
    """One kind of client's properties as another machine than the driver's has them; a file that is not there
    says nothing."""
    sources = Sources.read(environ, config_file if config_file and Path(config_file).exists() else None, {})
    given: dict[str, Any] = {f"{cluster}_bootstrap_servers": servers}
    if file and Path(file).exists():
        given[f"{cluster}_client_config"] = file
    labels = {f"{cluster}_client_config": f"{PREFIX}{cluster.upper()}_CLIENT_CONFIG"}
    return _client_properties(Settings.model_construct(**given), sources, labels, cluster, kind)[0]
