"""What `verbatim plan` says of a pipeline: which version it would be, which topics its flows take, and what
does not go with a compacted topic. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from common.link.control_records import NO_FLOWS, PipelineVersion
from common.pipeline.definition import defined
from common.pipeline.models import Flow
from common.pipeline.paths import parse
from common.pipeline.select_tree import SelectTree
from common.pipeline.selecting import CODE
from common.pipeline.stages import KEYED, Stage
from replicator.driver.pipeline_file import Configured

State = Literal["new", "same", "changed", "gone"]


@dataclass
class PipelinePlan:
    """`number`: the version that the link would have. `state`: beside the newest one it is the `new` first
    one, the `same`, a `changed` one, or one without flows (`gone`)."""

    number: int
    state: State
    sha256: str

    def text(self) -> str:
        beside = {
            "new": "",
            "changed": f", beside version {self.number - 1} changed",
            "gone": ", without flows",
        }
        what = "stays" if self.state == "same" else f"would be written{beside[self.state]}"
        return f"pipeline: version {self.number} {what} (sha256 {self.sha256[:12]})"


@dataclass
class TopicFlow:
    """The topic's flow, by its number in the file, None for one that has none any more; and what it is beside
    the newest version's."""

    flow: int | None
    state: State

    def text(self) -> str:
        return "no flow any more" if self.flow is None else f"flow {self.flow}, {self.state}"


class PipelineLook:
    """What is configured, beside the versions that the link has had. Raises SettingsError."""

    def __init__(self, configured: Configured, versions: Mapping[int, PipelineVersion]) -> None:
        self._number = next(reversed([*versions]), 0)
        newest = versions.get(self._number)
        before = NO_FLOWS if newest is None else newest.definition
        self._sha256 = configured.sha256
        self._same = configured.definition == before
        self._before: dict[str, Any] = json.loads(before)
        self._now: dict[str, Any] = json.loads(configured.definition)
        self._made = defined(configured.definition, configured.keys) if self._now["flows"] else None

    def version(self) -> PipelinePlan | None:
        """None: the link has no pipeline, and had none."""
        if self._same and not self._number:
            return None
        changed: State = "gone" if self._made is None else "changed" if self._number else "new"
        number = self._number + (not self._same)
        return PipelinePlan(number, "same" if self._same else changed, self._sha256)

    def topic(self, name: str) -> TopicFlow | None:
        """None: it is copied as it is, and was."""
        before = _flow_of(self._before, name)
        now = _flow_of(self._now, name)
        if now is None:
            return None if before is None else TopicFlow(None, "gone")
        state: State = "new" if before is None else "same" if before[1] == now[1] else "changed"
        return TopicFlow(now[0], state)

    def doubts(self, name: str, compacted: bool) -> Iterator[tuple[bool, str]]:
        """What does not go with the topic: whether it must be mended first, and why."""
        flow = None if self._made is None else self._made.flow_of(name)
        if flow is None or not compacted:
            return
        for number, stage in enumerate(flow.stages, 1):
            where = f"topic {name}: its destination is compacted, and stage {number} ({stage.name})"
            if stage.route is not None:
                yield False, f"{where} takes records elsewhere: an older one of their key stays"
            elif _changes_keys(stage):
                yield True, f"{where} makes other keys: what belongs to one key would be taken for another's"
            elif stage.python is not None:
                yield False, f"{where} may make other keys, and leave records out: no plan can tell"
            elif stage.sql is not None:
                yield False, f"{where} may leave records out: an older one of their key stays"
            elif stage.schema_ids is not None and flow.wire is not None and flow.wire.key is not None:
                yield (
                    False,
                    (
                        f"{where} changes ids in keys: where two schemas of the source are one at the target, two keys may become one"
                    ),
                )
            elif stage.filter is not None and stage.filter.otherwise == "drop":
                yield (
                    False,
                    (
                        f"{where} leaves records out: an older one of their key stays; `otherwise: tombstone` deletes it"
                    ),
                )
        if flow.failed != "halt":
            what = "skipped" if flow.failed == "skip" else "a dead letter"
            yield (
                False,
                f"topic {name}: its destination is compacted: of a record that is {what}, an older one stays",
            )


def _flow_of(told: dict[str, Any], topic: str) -> tuple[int, dict[str, Any]] | None:
    """A topic's flow in a definition: its number, and what decides what becomes of records."""
    for number, flow in enumerate(told["flows"], 1):
        if Flow.model_construct(topics=flow["topics"]).takes(topic):
            code = {
                name: told["code"][name]
                for s in flow["stages"]
                for name in told.get("code", ())
                if _runs(s, name)
            }
            return number, {name: value for name, value in flow.items() if name != "topics"} | {"code": code}
    return None


def _runs(stage: dict[str, Any], name: str) -> bool:
    """Whether a stage of a definition runs code of this name."""
    return str(stage.get("python", "")).partition(":")[0] == name or ("sql" in stage and name == CODE)


def _changes_keys(stage: Stage) -> bool:
    """Whether two keys may become one, or one two. Under a method with a key they stay as different as they
    were."""
    if stage.mask is not None:
        return any(
            parse(path, stage.mask.side).root == "key" and method not in KEYED
            for path, method in stage.mask.fields.items()
        )
    if stage.sql is not None:
        return "key" in SelectTree(stage.sql).replaced
    return stage.key is not None or any(
        options is not None and options.side == "key" for options in (stage.fields, stage.convert)
    )
