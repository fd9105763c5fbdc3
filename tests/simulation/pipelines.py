"""The pipelines of a simulated link: what its drivers find configured, and what each version must have made
of a record, told without the engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.config.settings import Settings
from common.link.control_records import NO_FLOWS
from common.pipeline import definition, loading
from replicator.driver.pipeline_file import NONE, Configured, PipelineFile

if TYPE_CHECKING:
    from tests.simulation.world import World

MARK = "by"
"""The header in which a version names itself."""
Headers = list[tuple[str, bytes | None]] | None
Routes = tuple[tuple[str, str], ...]
ROUTED = ("orders.a", "orders.b")
"""Where records are routed to."""


@dataclass(frozen=True)
class Rule:
    """What a version does: leaves out records whose offset ends with one of these digits, fails on those
    whose offset ends with one of the others, which become dead letters, with `payload` or without, and marks
    the rest, if it takes the topic at all. `routes`: to which topic those go whose offset ends with one of
    some digits; the first that has it counts."""

    mark: bytes | None = None
    left_out: str = ""
    dead: str = ""
    payload: bool = False
    routes: Routes = ()

    def goes_to(self, offset: int) -> str | None:
        """None: to the link's own destination."""
        return next((topic for digits, topic in self.routes if str(offset)[-1] in digits), None)

    def leaves_out(self, offset: int) -> bool:
        return str(offset)[-1] in self.left_out

    def fails_on(self, offset: int) -> bool:
        return str(offset)[-1] in self.dead and not self.leaves_out(offset)


class Pipelines:
    """Of one world: `configured` is what a driver finds when it looks."""

    def __init__(self) -> None:
        self.configured = NONE
        self._rules = {NO_FLOWS: Rule()}
        self.schemas: dict[int, int] | None = None
        """What the map says, where keys have schemas."""

    def key(self, at: int) -> bytes | None:
        """A record's at the source; of four after one another the schema is the same one."""
        if at % 3 == 0:
            return None
        return b"k%d" % at if self.schemas is None else _framed(1 + at // 4, at)

    def copied(self, key: bytes | None) -> bytes | None:
        """What must have become of it. Raises KeyError where nothing may."""
        if self.schemas is None or key is None:
            return key
        return _framed(self.schemas[int.from_bytes(key[1:5], "big")], int(key[6:]))

    def change(
        self,
        left_out: str,
        dead: str = "",
        payload: bool = False,
        tolerate: tuple[int, int] | None = None,
        routes: Routes = (),
    ) -> None:
        """Another one; where keys have schemas, their ids become the target's. `tolerate`: so many dead
        letters of so many offsets; None: any number."""
        rule = Rule(b"v%d" % len(self._rules), left_out, dead, payload, routes)
        assert rule.mark is not None
        stages: list[Any] = [{"headers": {"set": {MARK: rule.mark.decode()}}}]
        if left_out:
            stages.append({"filter": {"drop": _ending(left_out)}})
        if dead:
            stages.append({"when": _ending(dead), "key": "header.none"})
        wire: Any = {}
        if self.schemas is not None:
            wire = {"wire": {"key": "confluent"}}
            stages.append("schema-ids")
        if routes:
            cases = [{"when": _ending(digits), "topic": topic} for digits, topic in routes]
            stages.append({"route": {"cases": cases}})
        on_error: Any = {"dead-letter": {"payload": payload}} if dead else "halt"
        if tolerate is not None:
            on_error["tolerate"] = dict(zip(("records", "per"), tolerate, strict=True))
        flow = {"topics": [".*"], "onError": on_error, **wire, "stages": stages}
        at = {"source": {"url": "http://source"}, "target": {"url": "http://target"}}
        text = json.dumps({"version": 1, "registries": at, "schemas": {}, "flows": [flow]})
        made = loading.parse(text, Path("pipeline.yaml"))
        told = definition.definition(made, {})
        self._rules[told.decode()] = rule
        self.configured = Configured(told.decode(), definition.sha256(told), {})

    def remove(self) -> None:
        self.configured = NONE

    def rule(self, world: World, n: int) -> Rule:
        """The one of a number, which the first record of that number has given it."""
        told = (r["definition"] for r in world.said("pipeline") if r["n"] == n)
        return self._rules[next(told)] if n else Rule()

    @staticmethod
    def unmarked(headers: Headers) -> tuple[bytes | None, Headers]:
        """The mark of a copy, and its headers without that."""
        if not headers or headers[-1][0] != MARK:
            return None, headers
        return headers[-1][1], headers[:-1] or None


def _framed(schema_id: int, at: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + b"k%d" % at


def _ending(digits: str) -> Any:
    """Of the value, which says its record's offset."""
    return {"value": {"matches": rf".*/[0-9]*[{digits}]/[0-9]+"}}


class SimulatedFile(PipelineFile):
    """A driver's: it knows of what is configured what it has seen of it."""

    def __init__(self, pipelines: Pipelines, settings: Settings) -> None:
        super().__init__(settings)
        self._pipelines = pipelines
        self.configured = pipelines.configured

    def changed(self, at_once: bool = False) -> bool:
        before, self.configured = self.configured, self._pipelines.configured
        return self.configured != before
