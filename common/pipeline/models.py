"""The file of a pipeline as a whole: what may be written, and what is refused, with where it stands. Whoever
has a Pipeline can run it. Pure."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from common.config.topic_names import check_topic_name, is_name
from common.pipeline.conditions import Formats, is_map
from common.pipeline.options import Model, checked, expression, located, wrong
from common.pipeline.registries import Registries, Schemas, Secret
from common.pipeline.route_names import takes
from common.pipeline.stages import Convert, Stage
from common.pipeline.wire import DEFAULT_CONTEXT, Wire, check_wire


def _topic(text: str) -> object:
    return check_topic_name(text) if is_name(text) else expression(text)


TopicText = Annotated[str, checked(_topic)]
MOST_TOLERATED = 1000
"""Which these are goes with each position that the replicator writes down."""


DEFINED = {"of": "a definition"}
"""Context of the validation of what was a file once: it says nothing of registries."""


class DeadLetters(Model):
    """Of records that a stage fails on, what the topic of dead letters holds."""

    payload: bool = False
    """whether key, value and headers come with them, as they are at the source: nothing of them is masked"""


class Tolerate(Model):
    """How many records a stage may fail on. Offsets of a source partition are counted by windows: from 0 on,
    from `per` on, and so forth."""

    records: int = Field(ge=1, le=MOST_TOLERATED)
    """so many of a window; one more halts the partition"""
    per: int = Field(ge=2, le=1_000_000_000)
    """how many offsets a window has"""

    @model_validator(mode="after")
    def _fewer(self) -> Tolerate:
        if self.records >= self.per:
            raise wrong("is no more than records: that would tolerate all", "per")
        return self


class OnError(Model):
    """What becomes of a record that a stage fails on, with options: one of them, or both."""

    dead_letter: DeadLetters | None = Field(None, alias="dead-letter")
    """it goes to the link's topic of dead letters; otherwise it is left out"""
    tolerate: Tolerate | None = None
    """as long as no more than so many are; otherwise, all"""

    @model_validator(mode="after")
    def _some(self) -> OnError:
        if self.dead_letter is None and self.tolerate is None:
            raise wrong("say dead-letter, tolerate, or both")
        return self

    @property
    def payload(self) -> bool:
        return self.dead_letter is not None and self.dead_letter.payload


class Flow(Formats):
    """What is done with the records of some topics."""

    topics: list[TopicText] = Field(min_length=1)
    """names, or regular expressions that match whole names"""
    on_error: Annotated[
        Annotated[OnError, Tag("map")] | Annotated[Literal["halt", "skip", "dead-letter"], Tag("other")],
        Discriminator(is_map),
    ] = Field("halt", alias="onError")
    """what becomes of a record that a stage fails on: `halt`, `skip`, `dead-letter`, or options, such as
    `{dead-letter: {payload: true}}` and `{tolerate: {records: 10, per: 100000}}`"""
    wire: Wire | None = None
    """where ids of schemas are, for the stage `schema-ids`"""
    stages: list[Stage] = Field(min_length=1)
    """in order"""

    @field_validator("on_error")
    @classmethod
    def _plainly(cls, given: OnError | str) -> OnError | str:
        """Two spellings of one thing are one version."""
        if isinstance(given, OnError) and given.tolerate is None and not given.payload:
            return "dead-letter"
        return given

    @property
    def failed(self) -> str:
        """What becomes of a record that a stage fails on, in a word."""
        if isinstance(self.on_error, str):
            return self.on_error
        return "skip" if self.on_error.dead_letter is None else "dead-letter"

    @property
    def payload(self) -> bool:
        """Whether its dead letters have the records in them."""
        return isinstance(self.on_error, OnError) and self.on_error.payload

    @property
    def tolerate(self) -> Tolerate | None:
        """How many records a stage may fail on; None: any number, or none where that halts."""
        return self.on_error.tolerate if isinstance(self.on_error, OnError) else None

    @model_validator(mode="after")
    def _fits(self) -> Flow:
        *formats, last = self.formats
        for number, (stage, before) in enumerate(zip(self.stages, formats, strict=True)):
            with located("stages", number):
                stage.check(before)
                if before.avro and not stage.fits_avro:
                    raise wrong(
                        f"not built for Avro: {', '.join(before.avro)} of this flow; convert makes JSON of it",
                        stage.name,
                    )
                if stage.convert is not None and stage.convert.to == "avro":
                    self._must_get_the_targets_id(stage.convert)
                if stage.route is not None and number < len(self.stages) - 1:
                    raise wrong("comes last: no stage stands behind it", "route")
        check_wire(self.wire, {"key": last.key, "value": last.value}, [stage.name for stage in self.stages])
        return self

    def _must_get_the_targets_id(self, convert: Convert) -> None:
        if self.wire is None or getattr(self.wire, convert.side) != "confluent":
            what = (
                f"its id is the source's: say schema-ids behind it, and wire: {{{convert.side}: confluent}}"
            )
            raise wrong(what, "convert")

    @property
    def formats(self) -> list[Formats]:
        """What keys and values are before each stage, and behind the last."""
        found: list[Formats] = [self]
        for stage in self.stages:
            found.append(stage.behind(found[-1]))
        return found

    @property
    def context(self) -> str:
        """The context of the registry in which ids in front of keys and values are."""
        ids = [stage.schema_ids for stage in self.stages if stage.schema_ids is not None]
        return ids[0].context if ids else DEFAULT_CONTEXT

    def takes(self, topic: str) -> bool:
        return takes(self.topics, topic)


SchemaId = Annotated[str, Field(pattern="^[0-9]+$")]
Wired = dict[Literal["key", "value"], Annotated[int, Field(ge=0, lt=1 << 63)]]


class Record(Model):
    """A record of a test."""

    topic: str
    """where it comes from"""
    key: Any = None
    """text, or JSON where the flow says so; of Avro what it is as JSON, as `convert` makes it; null: none"""
    value: Any = None
    """likewise"""
    headers: dict[str, str | None] = Field({})
    """name: text"""
    timestamp: int = Field(0, ge=0)
    """ms since 1970"""
    partition: int = Field(0, ge=0)
    """the source's"""
    offset: int = Field(0, ge=0)
    """the source's"""
    ids: Wired = Field({})
    """`key`, `value`: the schema id in front of it, where the flow has `wire` or Avro"""


class Expected(Model):
    """What is expected; what is not named here is not looked at. Text may be `{matches: expression}`."""

    outcome: Literal["kept", "left-out", "tombstone", "failed", "waits"] | None = None
    key: Any = None
    value: Any = None
    headers: dict[str, Any] | None = None
    timestamp: int | None = None
    topic: Any = None
    ids: Wired | None = None


class Example(Model):
    """A record, and what becomes of it."""

    given: Record
    """a record, as below"""
    expect: Expected | Literal["left-out", "tombstone", "failed", "waits"]
    """`left-out`, `tombstone`, `failed` or `waits`; or `key`, `value`, `headers`, `timestamp`, `ids` of what
    goes on, and the `topic` that a stage routes it to, where `{matches: expression}` stands for a text,
    `{exists: false}` for nothing, `topic: null` for the link's own destination, and what is not named may be
    anything"""
    name: str | None = None
    """what the test is called"""
    map: dict[SchemaId, int] = Field({})
    """for `schema-ids`: id at the source: id at the target"""
    schemas: dict[SchemaId, Any] = Field({})
    """for Avro: id at the source: the schema"""


class Pipeline(Model):
    """The whole file."""

    NOT_BUILT: ClassVar[frozenset[str]] = frozenset({"settings"})

    version: Literal[1]
    """of the file's format: 1"""
    registries: Registries | None = None
    """where schemas are, at both ends"""
    schemas: Schemas | None = None
    """which of them `schemas` keeps in step, and how"""
    keys: dict[str, Secret] = Field({})
    """name: where the secret is, as `file:PATH` or `env:NAME`"""
    flows: list[Flow] = Field([])
    """the first one that takes a topic is the topic's; needed but where there are `schemas`"""
    tests: list[Example] = Field([])
    """for `verbatim pipeline test`"""

    @model_validator(mode="after")
    def _whole(self, info: ValidationInfo) -> Pipeline:
        if not self.flows and self.schemas is None:
            raise wrong("is missing, or nothing is in it", "flows")
        if self.schemas is not None and self.registries is None:
            raise wrong("is missing: say where the schemas are", "registries")
        if self.schemas is None and info.context is not DEFINED:
            for f, flow in enumerate(self.flows):
                if flow.avro:
                    what = "is read by what `schemas` writes down: say schemas"
                    raise wrong(what, "flows", f, flow.avro[0])
                for s, stage in enumerate(flow.stages):
                    if stage.schema_ids is not None:
                        what = "takes what `schemas` writes down: say schemas"
                        raise wrong(what, "flows", f, "stages", s, "schema-ids")
        return self

    @model_validator(mode="after")
    def _keys(self) -> Pipeline:
        for f, flow in enumerate(self.flows):
            for s, stage in enumerate(flow.stages):
                key = stage.mask.key if stage.mask else None
                if key is not None and key not in self.keys:
                    raise wrong(f"there is no key {key}", "flows", f, "stages", s, "mask", "key")
        return self

    def flow_of(self, topic: str) -> Flow | None:
        """The first flow that takes a topic; None: its records are not looked at."""
        return next((flow for flow in self.flows if flow.takes(topic)), None)
