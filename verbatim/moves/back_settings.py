"""The settings of the link that goes the other way, as a YAML file for `--config`: source and target change
places, each partition begins where the copies end. Pure.

Secrets are not written: a comment names the variable that each belongs into.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from common.config import loading
from common.config.client_properties import is_secret
from common.config.fields import CLUSTERS, KINDS, PREFIX, Cluster
from common.errors import SettingsError
from common.link.control_kinds import HandedOver

if TYPE_CHECKING:
    from common.config.settings import Settings

OTHER: dict[Cluster, str] = {"source": "DESTINATION", "destination": "SOURCE"}
"""What a cluster of the link is for the way back."""


def back_settings(settings: Settings, handed: Sequence[HandedOver], name: str) -> str:
    """The file's text. `handed`: where the copies of each topic end; one that was emptied at the source is
    copied back whole. Raises SettingsError for what would be no settings."""
    values = dict(_values(settings, handed, name))
    loading.load({}, flags=values)
    secrets = [line for cluster in CLUSTERS for line in _secrets(settings, cluster)]
    head = (
        f"Settings of the link {name} (docs: guides/disaster-recovery), written by `verbatim back` of the link {settings.application_name}: "
        "from where its copies end, back to its source. START_OFFSETS counts once, when the link begins."
    )
    comments = [
        head,
        *(f"NOTE: {note}" for note in _notes(settings, handed)),
        *(f"A secret, not written here: {variable}" for variable in secrets),
    ]
    lines = [line for comment in comments for line in _comment(comment)]
    lines += [f"{variable}: {json.dumps(value)}" for variable, value in values.items()]
    return "\n".join(lines) + "\n"


def _values(settings: Settings, handed: Sequence[HandedOver], name: str) -> Iterator[tuple[str, str]]:
    yield "APPLICATION_NAME", name
    yield f"{PREFIX}SOURCE_BOOTSTRAP_SERVERS", settings.destination_bootstrap_servers
    yield f"{PREFIX}DESTINATION_BOOTSTRAP_SERVERS", settings.source_bootstrap_servers
    for cluster in CLUSTERS:
        yield from _way_in(settings, cluster)
    yield f"{PREFIX}SOURCE_TOPIC", ",".join(of.destination for of in handed)
    if named := [f"{of.destination}={of.topic}" for of in handed if of.destination != of.topic]:
        yield f"{PREFIX}DESTINATION_TOPIC_MAP", ",".join(named)
    exact = [
        f"{of.destination}:{p}={end}" for of in handed if not of.emptied for p, end in enumerate(of.ends)
    ]
    yield "START_OFFSETS", ",".join(exact) or "earliest"
    yield "STAGING_PARTITIONS", str(settings.staging_partitions)
    if settings.group_name_template == "{group}":
        yield "CONSUMER_GROUPS", settings.consumer_groups
        if settings.consumer_groups_exclude:
            yield "CONSUMER_GROUPS_EXCLUDE", settings.consumer_groups_exclude


def _way_in(settings: Settings, cluster: Cluster) -> Iterator[tuple[str, str]]:
    prefix = f"{PREFIX}{OTHER[cluster]}_"
    file = settings.source_client_config if cluster == "source" else settings.destination_client_config
    if file:
        yield f"{prefix}CLIENT_CONFIG", file
    for family, name, value in _properties(settings, cluster):
        if not is_secret(name):
            yield f"{prefix}{family}_{_key(name)}", str(value)


def _secrets(settings: Settings, cluster: Cluster) -> Iterator[str]:
    file = settings.source_client_config if cluster == "source" else settings.destination_client_config
    for family, name, _ in _properties(settings, cluster):
        if is_secret(name):
            held = f", unless {file} has it" if file else ""
            yield f"{PREFIX}{OTHER[cluster]}_{family}_{_key(name)}{held}"


def _properties(settings: Settings, cluster: Cluster) -> Iterator[tuple[str, str, str | int]]:
    """Of what is said of a cluster's clients: for which of them, name, value."""
    of_kinds = {kind: settings.client_properties.get(f"{cluster}.{kind}", {}) for kind in KINDS}
    first = of_kinds[KINDS[0]]
    of_all = {
        name: value for name, value in first.items() if all(of.get(name) == value for of in of_kinds.values())
    }
    for name, value in sorted(of_all.items()):
        yield "PROPERTIES", name, value
    for kind, of in of_kinds.items():
        for name, value in sorted(of.items()):
            if name not in of_all:
                yield kind.upper(), name, value


def _key(name: str) -> str:
    return name.upper().replace(".", "_")


def _notes(settings: Settings, handed: Sequence[HandedOver]) -> Iterator[str]:
    if settings.group_name_template != "{group}":
        yield (
            f"GROUP_NAME of the link is {settings.group_name_template}, which can't be turned round: groups go back by the names that "
            "they have at the target"
        )
    if emptied := [of.topic for of in handed if of.emptied]:
        yield f"copied back whole, since they were emptied: {', '.join(emptied)}"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 108, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def back_name(link: str, given: str | None) -> str:
    """What the link back is called. Raises SettingsError for the link's own name: its topics are those of the
    way there."""
    if given == link:
        raise SettingsError(f"--name: {given} is the link that goes there; give the way back another name")
    return given or f"{link}.back"
