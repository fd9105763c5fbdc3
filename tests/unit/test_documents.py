"""The documents say what the program does, name what is there, and are where the program sends its reader."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.app.group_state import GroupState
from common.app.health import Health, Heartbeat
from common.app.links import pages as links_pages
from common.app.metrics import PARTITIONS, WHOLE, HealthCollector
from common.link.halt_reasons import HaltReason
from common.link.lane_work import Work
from common.link.throttling import Limit
from common.pipeline import loading
from common.pipeline.options import Model
from common.spark.usage import Usage
from deduplicator.lane import lane as deduplicator_lane
from offsets import commit_rule, translation_index
from replicator.lane import lane as replicator_lane
from replicator.lane.throttle import Throttle
from tests import documents, versions
from tests.documents import BLOCKS, DOCS, FILES, ROOT
from verbatim.pipeline import examples

README = (ROOT / "README.md").read_text()
PAGES = sorted(DOCS.rglob("*.md"))
CODE = ("common", "replicator", "deduplicator", "offsets", "schemas", "verbatim", "k8s", "container")


def page(name: str) -> str:
    return (DOCS / name).read_text()


@pytest.mark.parametrize(("name", "title", "block"), BLOCKS, ids=[f"{b[0]}: {b[1]}" for b in BLOCKS])
def test_what_a_page_takes_from_the_code_is_as_the_code_has_it(
    name: str, title: str, block: Callable[[], str]
) -> None:
    assert documents.written(page(name), title, block()) == page(name), "run: python -m tests.documents"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_what_the_chart_takes_from_the_code_is_as_the_code_has_it(file: Path) -> None:
    assert FILES[file]() == file.read_text(), "run: python -m tests.documents"


def test_the_reference_of_pipelines_has_all_that_a_file_may_say() -> None:
    def below(kind: type[Model]) -> Iterator[str]:
        for one in kind.__subclasses__():
            yield one.__name__
            yield from below(one)

    said_elsewhere = {"Expected", "Formats", "PartialMethod"}
    assert set(below(Model)) - {one.__name__ for one in documents.PIPELINE_MODELS} == said_elsewhere


def test_every_pipeline_in_a_page_loads_and_what_it_expects_comes_out() -> None:
    """Also of pages that show no record before and after."""
    blocks = [
        (path, block)
        for path in PAGES
        for block in re.findall(r"^ *```yaml[^\n]*\n(.*?)^ *```$", path.read_text(), re.DOTALL | re.MULTILINE)
        if re.search(r"^version: 1$", block, re.MULTILINE)
    ]
    assert len(blocks) >= 9
    for path, block in blocks:
        made = loading.parse(block, path)
        verdicts = examples.run(made, dict.fromkeys(made.keys, b"0123456789abcdef" * 4))
        assert not [one for one in verdicts if one.differences], path


def test_a_page_without_its_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="each once"):
        documents.written("no markers", "settings", "block")


def test_every_outcome_of_a_group_and_every_reason_against_exactness_is_explained() -> None:
    text = page("guides/consumer-groups.md")
    whys = (
        translation_index.AHEAD,
        translation_index.BEFORE_ORIGIN,
        translation_index.BEFORE_HISTORY,
        translation_index.THINNED,
        translation_index.MISSING,
        translation_index.NOTHING_COPIED,
    )
    for word in (*commit_rule.MEANINGS, *whys):
        assert f"| `{word}` |" in text, word


def test_every_reason_for_a_halt_has_a_runbook_and_every_runbook_a_reason() -> None:
    assert len(list(HaltReason)) >= 10
    assert documents.runbooks().keys() == {str(reason) for reason in HaltReason}


def metrics() -> set[str]:
    """What is on /metrics of any instance, but of its process."""
    health = Health("replicator", "leader", True, True, epochs=1, folds=1)
    health.groups, health.spark = {"g": GroupState(in_step_ms=1)}, Usage(1, 1, 1)
    health.exports["otlp"] = health.exports_failed["otlp"] = 1
    health.heartbeat, health.limits = Heartbeat(1.0, 1), {"*": Limit(1, 1)}
    health.work = Work(
        Counter(dict.fromkeys(WHOLE, 1)), {("orders", 0): Counter(dict.fromkeys(PARTITIONS, 1))}
    )
    health.work.delays.took(1, 1)
    endings = {"counter": "_total", "info": "_info"}
    of_one = {m.name + endings.get(m.type, "") for m in HealthCollector(health).collect()}
    return of_one | {links_pages.FAILED[0]}


def test_whatever_lanes_count_is_a_metric() -> None:
    lanes = (
        replicator_lane.Lane._work,
        replicator_lane._counts,
        Throttle.counts,
        deduplicator_lane.Lane._work,
        deduplicator_lane._work_of,
    )
    code = "".join(inspect.getsource(one) for one in lanes)
    counted = set(re.findall(r"(\w+)=(?!=)", code)) | set(re.findall(r'\["(\w+)"\] (?:=|\+=)', code))
    assert counted == {*WHOLE, *PARTITIONS} - {
        *("offsets_written", "rounds", "schemas_registered", "subjects_failed")
    }


def test_every_metric_is_explained_and_no_other() -> None:
    assert len(metrics()) > 15
    assert (
        set(re.findall(r"^\| `(verbatim_\w+)` \|", page("reference/metrics.md"), re.MULTILINE)) == metrics()
    )


def test_every_field_of_the_health_endpoint_is_explained() -> None:
    health = Health("replicator", "leader", True, True, heartbeat=Heartbeat(1.0, 1))
    fields = page("reference/metrics.md").partition("## `/healthz`")[2]
    for name in health.report():
        assert f"`{name}`" in fields, name


def test_the_reference_tells_which_versions_were_tried_and_none_failed() -> None:
    text = versions.PAGE.read_text()
    assert versions.BEGIN + versions.table() + "\n" + versions.END in text
    assert not [r for r in versions.results() if r["outcome"].startswith("failed")]


def test_the_invariants_have_their_numbers_as_anchors_and_are_listed_once_each() -> None:
    text = page("internals/invariants.md")
    headings = re.findall(r"^## (\d+)\. .* \{#inv-(\d+)\}$", text, re.MULTILINE)
    numbers = [int(number) for number, anchor in headings if number == anchor]
    assert len(numbers) == text.count("\n## ") >= 86
    assert numbers == sorted(set(numbers))
    listed = [
        int(n) for row in re.findall(r"^\| .* \| ([\d, ]+) \|$", text, re.MULTILINE) for n in row.split(", ")
    ]
    assert sorted(listed) == numbers


def cited() -> Iterator[tuple[str, str, str]]:
    """(page, file, name or nothing) of all files that pages name by their path."""
    for path in PAGES:
        for file, name in re.findall(r"`([\w.-]+/[\w./-]+\.\w+)(?::(\w+))?`", path.read_text()):
            if file.partition("/")[0] in (*documents.ROOMS, "tests", "container", "k8s", "docs"):
                yield path.relative_to(DOCS).as_posix(), file, name


def test_every_file_that_a_page_names_is_there_and_defines_what_it_is_named_for() -> None:
    found = list(cited())
    assert len(found) > 100
    assert [(where, file) for where, file, _ in found if not (ROOT / file).exists()] == []
    undefined = [
        (where, file, name)
        for where, file, name in found
        if name and not re.search(rf"^\s*(def |class )?{name}\b", (ROOT / file).read_text(), re.MULTILINE)
    ]
    assert undefined == []


def test_every_class_and_method_that_the_internals_name_is_there() -> None:
    source = "\n".join(path.read_text() for room in CODE for path in (ROOT / room).rglob("*.py"))
    for path in sorted((DOCS / "internals").glob("*.md")):
        for owner, name in re.findall(r"`([A-Z]\w+)\.(\w+)`", path.read_text()):
            body = re.search(rf"^class {owner}\b.*?(?=^\S|\Z)", source, re.MULTILINE | re.DOTALL)
            assert body and re.search(rf"\b{name}\b", body[0]), f"{path.name}: {owner}.{name}"


def sent_to() -> Iterator[tuple[str, str, str]]:
    """(file, page, anchor or nothing) of all places in the code that name a page."""
    for room in CODE:
        for path in (ROOT / room).rglob("*"):
            if path.suffix in (".py", ".yaml", ".env"):
                for name, anchor in re.findall(r"docs: ([\w-]+/[\w-]+)(?:#([\w-]+))?", path.read_text()):
                    yield path.relative_to(ROOT).as_posix(), name, anchor


def test_every_page_that_the_program_sends_its_reader_to_is_there() -> None:
    found = list(sent_to())
    assert len(found) > 4
    for where, name, anchor in found:
        assert (DOCS / f"{name}.md").exists(), (where, name)
        slugs = {
            re.sub(r"[^\w]+", "-", h.lower())
            for h in re.findall(r"^#+ (.*)$", page(f"{name}.md"), re.MULTILINE)
        }
        assert not anchor or anchor in slugs, (where, name, anchor)


def test_the_readme_is_short_and_leads_on() -> None:
    assert len(README.encode()) < 8192
    assert "uv run verbatim quickstart " in README and "uv run pytest " in README
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", README)
    assert len(links) > 20
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []
