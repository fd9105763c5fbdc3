"""The versions of its pipeline that a link has had, as its control topic tells. Needs the target alone, and
changes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common.errors import SettingsError
from common.kafka.client import clients
from common.kafka.client.range_reader import records
from common.link import identity
from common.pipeline.definition import defined
from common.pipeline.models import Pipeline
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 60.0


@dataclass
class Version:
    """`since_ms`: when it was written, in ms since 1970."""

    number: int
    since_ms: int
    sha256: str
    definition: str

    @property
    def flows(self) -> int:
        return len(json.loads(self.definition)["flows"])

    def as_json(self) -> dict[str, Any]:
        since = {"version": self.number, "since_ms": self.since_ms}
        return {**since, "flows": self.flows, "sha256": self.sha256}

    def pipeline(self, keys: Mapping[str, str]) -> Pipeline | None:
        """None: it has no flows. `keys`: where those are that it names. Raises SettingsError."""
        return defined(self.definition, keys) if self.flows else None


def versions(settings: Settings) -> list[Version]:
    """Oldest first. Raises LinkRefused where there is no such link."""
    deadline = Deadline(CALL_S)
    _, control = identity.prepare(settings, False, deadline, make=False, ask_source=False)
    with closing(control):
        told = control.refresh(deadline).pipelines.copy()
    topic, config = settings.control_topic, settings.client_config("destination", "consumer")
    with closing(clients.reader(config)) as reader:
        return [
            Version(number, message.timestamp()[1], one.sha256, one.definition)
            for number, one in told.items()
            for message in records(reader, topic, {0: (one.at, one.at + 1)})
        ]


def numbered(settings: Settings, number: int | None, option: str) -> Version | None:
    """The version of a number, or the newest, if there is one. Raises SettingsError, which names the option,
    for a number that was never written."""
    known = versions(settings)
    if number is None:
        return known[-1] if known else None
    for version in known:
        if version.number == number:
            return version
    have = f"there are {', '.join(str(v.number) for v in known)}" if known else "the link has had none"
    raise SettingsError(f"{option}: there is no version {number} of the pipeline; {have}")
