"""The commands `verbatim pipeline ...`: options and output."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import yaml

from common.app.cli import aligned, echo_json, settings_options
from common.config import loading as settings_loading
from common.config.loading import NO_SOURCE
from common.errors import SettingsError
from common.log_lines import setup_logging
from common.pipeline import definition, loading
from common.pipeline.avro_values import Texts, no_texts
from common.pipeline.encrypting import Opener
from common.pipeline.engine import Engine
from common.pipeline.models import Pipeline
from common.pipeline.schema_ids import Targets, unknown
from verbatim.commands.failover import utc
from verbatim.commands.top import printable
from verbatim.pipeline import examples
from verbatim.pipeline.beginnings import beginnings
from verbatim.pipeline.keys import ciphers
from verbatim.pipeline.link_versions import numbered, versions
from verbatim.pipeline.newest_records import newest_records
from verbatim.pipeline.trying import Pair, TopicTried, Tried, differing, lines, record_lines, tried

if TYPE_CHECKING:
    from common.config.settings import Settings

FAILED, PARTLY = 1, 3
"""Exit codes."""
SAMPLE = 100


def _output(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option("--json", "output", flag_value="json", help="The same as --output json.")(command)
    choice = click.Choice(["text", "json"])
    return click.option("--output", type=choice, default="text", show_default=True)(command)


@click.group()
def pipeline() -> None:
    """Try a pipeline's file, and show the link's: what is done with records on their way (docs:
    guides/pipelines)."""


@pipeline.command()
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The pipeline's file.",
)
@click.option("--show", is_flag=True, help="Show the record of each test before and after.")
@click.option(
    "--sample",
    type=click.IntRange(1),
    metavar="N",
    help="Show the N newest records of each topic that a flow takes, as they are at the source and as they would be"
    " at the destination.",
)
@click.option(
    "--against",
    type=click.IntRange(1),
    metavar="VERSION",
    help="Count which of these would come out differently than by this version of the link's pipeline; with --sample,"
    f" only those are shown, without it, {SAMPLE} records of each topic are read.",
)
@click.option("--topic", "only", multiple=True, help="Only records of this source topic (may be repeated).")
@click.option(
    "--config",
    metavar="FILE",
    help="For --sample and --against: YAML file with the link's settings; they are taken from the environment too.",
)
@_output
@click.pass_context
def test(
    context: click.Context,
    file: Path,
    show: bool,
    sample: int | None,
    against: int | None,
    only: tuple[str, ...],
    config: str | None,
    output: str,
) -> None:
    """Check a file, and run the tests in it. Connects to nothing, but for --sample and --against: these read
    records of the source, and change nothing.

    Exit code: 0 all is as expected, 1 something is not, or a stage failed on a record where that halts, 2 the
    file is wrong.
    """
    made = loading.load(file)
    keys = _keys(made)
    verdicts = examples.run(made, keys)
    failed = [verdict for verdict in verdicts if verdict.differences]
    found = _Sample(made, keys, only, config).look(sample, against) if sample or against else None
    if output == "json":
        tests = [{"name": one.name, "differences": one.differences} for one in verdicts]
        its = definition.sha256(definition.definition(made, keys, Engine(made, keys).code))
        told: dict[str, Any] = {"sha256": its, "tests": tests}
        echo_json(told if found is None else told | {"topics": [_as_json(*one) for one in found]})
    else:
        for verdict, example in zip(verdicts, made.tests, strict=True):
            click.echo(f"{'FAILED' if verdict.differences else 'ok'}  {verdict.name}")
            for line in (*verdict.differences, *(examples.shown(made, keys, example) if show else ())):
                click.echo(f"        {printable(line)}")
        click.echo(f"{file}: sound; {len(verdicts) - len(failed)} of {len(verdicts)} tests passed")
        if found == []:
            click.echo("no source topic is selected that a flow takes and that has records")
        for one in found or ():
            click.echo("\n".join(printable(line) for line in _as_text(*one)))
    halts = any(one.halts and one.outcomes["failed"] for one, _, _ in found or ())
    context.exit(FAILED if failed or halts else 0)


Found = tuple[TopicTried, list[Pair] | None, bool]
"""What the file makes of a topic's records; those that a version makes something else of, as both do, None
where that was not asked; and whether records are to be shown."""


class _Sample:
    """Tries a file on records of the source."""

    def __init__(
        self, made: Pipeline, keys: Mapping[str, bytes], only: tuple[str, ...], config: str | None
    ) -> None:
        self._made = made
        self._keys = dict(keys)
        self._before = ""
        self._only = only
        self._settings: Settings = settings_loading.load(config_file=config)
        setup_logging(self._settings.log_level, self._settings.log_format)

    def look(self, sample: int | None, against: int | None) -> list[Found]:
        """Raises SettingsError, LinkRefused, and what reading raises."""
        pipelines = [self._made]
        if against is not None:
            pipelines += [] if (before := self._version(against)) is None else [before]

        def wanted(topic: str) -> bool:
            asked = not self._only or topic in self._only
            return asked and any(one.flow_of(topic) is not None for one in pipelines)

        link = self._settings.application_name
        rows = newest_records(self._settings, wanted, sample or SAMPLE)
        targets, texts = (
            self._schemas() if any(_asks_for_schemas(p) for p in pipelines) else (unknown, no_texts)
        )
        new = tried(Engine(self._made, self._keys, targets, texts), link, rows)
        if against is None:
            return [(one, None, True) for one in new.values()]
        engine = Engine(pipelines[1], self._keys, targets, texts) if pipelines[1:] else None
        if engine is not None:
            definition.must_be_its_code(self._before, engine.code)
        old = tried(engine, link, rows)
        return [(one, differing(old[topic], one), sample is not None) for topic, one in new.items()]

    def _schemas(self) -> tuple[Targets, Texts]:
        from schemas.look import map_of

        found = map_of(self._settings)
        return found.target, found.avro

    def _version(self, number: int) -> Pipeline | None:
        version = numbered(self._settings, number, "--against")
        if version is None:
            return None
        self._before = version.definition
        names = list(json.loads(version.definition)["keys"])
        self._keys = {name: _made_up(name) for name in names} | self._keys
        return version.pipeline({name: self._made.keys.get(name, f"env:{name}") for name in names})


def _asks_for_schemas(pipeline: Pipeline) -> bool:
    return any(
        flow.avro or any(stage.schema_ids is not None for stage in flow.stages) for flow in pipeline.flows
    )


def _as_text(one: TopicTried, pairs: list[Pair] | None, show: bool) -> Iterator[str]:
    counts = ", ".join(f"{count:,} {word}" for word, count in one.outcomes.most_common())
    if pairs is None:
        for record in one.records:
            yield from record_lines(one.topic, record)
    else:
        for before, now in pairs if show else ():
            place = f"{one.topic}/{now.partition} offset {now.offset}: {_way(before, now)}"
            yield from lines(place, before.after or before.before, now.after)
    yield f"{one.topic}: {len(one.records):,} records: {counts}; {one.us:.1f} us a record"
    if pairs is not None:
        ways = ", ".join(f"{count:,} {way}" for way, count in _ways(pairs).most_common())
        yield f"{one.topic}: {len(pairs):,} of these come out differently{': ' if ways else ''}{ways}"


def _ways(pairs: list[Pair]) -> Counter[str]:
    return Counter(_way(before, now) for before, now in pairs)


def _way(before: Tried, now: Tried) -> str:
    if before.outcome != now.outcome:
        return f"{before.outcome} -> {now.outcome}"
    return f"{now.outcome} {'otherwise' if before.topic == now.topic else 'elsewhere'}"


def _as_json(one: TopicTried, pairs: list[Pair] | None, show: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "topic": one.topic,
        "records": len(one.records),
        "outcomes": one.outcomes,
        "us_a_record": round(one.us, 1),
    }
    if pairs is not None:
        told |= {"differently": len(pairs), "ways": _ways(pairs)}
    if show:
        shown = [(None, record) for record in one.records] if pairs is None else pairs
        told["shown"] = [
            asdict(now) | ({"by_version": asdict(before)} if before else {}) for before, now in shown
        ]
    return told


def _keys(made: Pipeline) -> dict[str, bytes]:
    """Where a file is tested its keys may not be: made-up ones stand in, which are the same each time."""
    try:
        return definition.read_keys(made, os.environ)
    except SettingsError as error:
        click.echo(f"{error}; made-up keys stand in for all", err=True)
        return {name: _made_up(name) for name in made.keys}


def _made_up(name: str) -> bytes:
    """One that fits `encrypt` too."""
    return hashlib.sha512(name.encode()).hexdigest().encode()


@pipeline.command()
@functools.partial(settings_options, assumed=NO_SOURCE)
@click.option("--number", type=click.IntRange(1), help="This version; without it, the newest.")
@_output
def show(settings: Settings, number: int | None, output: str) -> None:
    """Print a version of the link's pipeline: when it was written, its sha256, its flows; of keys the names.

    Changes nothing, and needs the target alone.
    """
    version = numbered(settings, number, "--number")
    if output == "json":
        echo_json(version and version.as_json() | {"definition": json.loads(version.definition)})
    elif version is None:
        click.echo(f"link {settings.application_name} has had no pipeline")
    else:
        click.echo(f"# version {version.number}, since {utc(version.since_ms)}, sha256 {version.sha256}")
        told = yaml.safe_dump(json.loads(version.definition), sort_keys=False, allow_unicode=True, width=110)
        click.echo(told, nl=False)


@pipeline.command()
@functools.partial(settings_options, assumed=NO_SOURCE)
@click.option(
    "--partitions",
    is_flag=True,
    help="Tell too from which source offset on each partition is of which version. Reads all offset mappings.",
)
@_output
def history(settings: Settings, partitions: bool, output: str) -> None:
    """List the versions of the link's pipeline, oldest first. Changes nothing, and needs the target alone."""
    found = versions(settings)
    began = beginnings(settings) if partitions else {}
    if output == "json":
        told = [version.as_json() for version in found]
        for one in told if partitions else ():
            one["partitions"] = [asdict(place) for place in began.get(one["version"], ())]
        echo_json(told)
        return
    rows = [[str(v.number), utc(v.since_ms), str(v.flows or "none"), v.sha256] for v in found]
    click.echo(aligned([["VERSION", "SINCE", "FLOWS", "SHA256"], *rows]))
    for version in found:
        for place in began.get(version.number, ()):
            click.echo(
                f"version {version.number}: {place.topic}/{place.partition} from offset {place.offset}"
            )


@pipeline.command()
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="A pipeline's file: its keys are taken, those that can be read here.",
)
@click.argument("given", type=click.File("rb"), default="-")
@click.pass_context
def decrypt(context: click.Context, file: Path, given: BinaryIO) -> None:
    """Copy a file, or what comes in, to the output, and put back what the mask `encrypt` has encrypted,
    wherever it stands: JSON in JSON, else the text that there was. Connects to nothing.

    Exit code: 0 all was put back, 3 some is as it was, since its key is not there, or does not open it.
    """
    opener = Opener(ciphers(loading.load(file), file))
    for line in given:
        click.echo(opener.open(line), nl=False)
    click.echo(f"{opener.opened:,} put back", err=True)
    for key_id, count in opener.unknown.items():
        click.echo(f"{count:,} not: no key that can be read here has the id {key_id}", err=True)
    if opener.changed:
        click.echo(f"{opener.changed:,} not: made with another key, or changed since", err=True)
    context.exit(PARTLY if opener.unknown or opener.changed else 0)


@pipeline.command()
def schema() -> None:
    """Print the JSON Schema of the file, for editors."""
    click.echo(json.dumps(definition.schema(), indent=2))
