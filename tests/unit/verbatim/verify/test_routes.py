"""`verify` of a partition whose records pipelines take to several topics: each topic that the engine has made
is right, and whatever is done to it is found where it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kafka.wire.records import Rows, encode_rows, headers_of
from common.link import dead_letters, offset_mappings
from common.link.frame import Frame
from common.link.frame_errors import merged, split
from common.link.offset_mappings import Routed
from common.pipeline.batch import Origin
from common.pipeline.definition import definition
from common.pipeline.engine import Engine
from common.pipeline.models import Pipeline
from common.pipeline.route_names import topic_and_partition
from tests.support.control_json import encode
from tests.support.pipelines import FEW, KEYS, Given, pipeline
from tests.support.pipelines import batches as some_records
from verbatim.verify.comparison import Batch, PartitionReport, as_it_is
from verbatim.verify.control import Said
from verbatim.verify.expected import Pipelines
from verbatim.verify.letters import Letters
from verbatim.verify.link import _pairs
from verbatim.verify.link_mappings import Mappings, place_of
from verbatim.verify.partition_check import LinkContext, check_partition
from verbatim.verify.reading import TopicState

OWN, LINK = "orders", "link"
STATE = TopicState("id", 1, False, True)


def routing(*cases: tuple[Any, str], **more: Any) -> dict[str, Any]:
    return {"route": {"cases": [{"when": when, "topic": topic} for when, topic in cases], **more}}


ALL = pipeline({"route": {"topic": "eu.{topic}"}})
BY_A = pipeline(
    {"filter": {"drop": {"value.b": 1}}},
    routing(({"value.a": 1}, "de"), ({"value.a": 5}, "{link}.{topic}"), ({"value.a": 6}, OWN)),
    onError="dead-letter",
)
REST = pipeline(
    {"mask": {"fields": {"id": "redact"}}},
    {**routing(({"value.a": 1}, "fr"), **{"else": "rest"}), "when": {"key": {"exists": True}}},
    onError="skip",
)
SPREAD = pipeline(
    {
        **routing(({"value.a": 1}, "de"), **{"else": "keyed"}, partition={"hash": 3}),
        "when": {"value.b": {"exists": False}},
    },
    onError="skip",
)
VERSIONS = {1: ALL, 2: BY_A, 3: REST, 4: SPREAD}


@dataclass
class Copied:
    """What a link has made: the source, each topic at the target, mappings and dead letters."""

    source: list[Given]
    versions: Mapping[int, Pipeline]
    there: dict[str, list[Given]] = field(default_factory=dict)
    mappings: list[offset_mappings.Mapping] = field(default_factory=list)
    letters: list[Any] = field(default_factory=list)


class FakeCluster:
    """One partition of each topic; offsets from 0 on."""

    def __init__(self, topics: Mapping[str, Sequence[Given]]) -> None:
        self.topics = topics

    def topic(self, name: str) -> TopicState | None:
        if any(one.startswith(f"{name}/") for one in self.topics):
            return TopicState("id", 3, False, True)
        return STATE if name in self.topics else None

    def _of(self, topic: str, partition: int) -> Sequence[Given]:
        """What stands under the topic's name is in its first partition."""
        first = self.topics.get(topic, ()) if partition == 0 else ()
        return [*first, *self.topics.get(f"{topic}/{partition}", ())]

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return 0, len(self._of(topic, partition))

    def high_watermark(self, topic: str, partition: int) -> int:
        return len(self._of(topic, partition))

    def settled(self, topic: str, partition: int, _: int) -> tuple[int, int]:
        return self.bounds(topic, partition)

    def records(
        self, topic: str, partition: int, begin: int, end: int, prepare: Any = None, judge: Any = as_it_is
    ) -> Iterator[Batch]:
        for offset in range(begin, end):
            key, value, headers, timestamp = self._of(topic, partition)[offset]
            if (found := judge(offset, timestamp, key, value, headers)) is not None:
                yield [offset], [found]


def copied(records: Sequence[Given], stretches: Sequence[tuple[int, int]]) -> Copied:
    """By the engine: so many records of each version, 0 for none; each stretch is a mapping."""
    link = Copied(list(records), VERSIONS, {OWN: []})
    ends = [sum(count for count, _ in stretches[:n]) for n in range(len(stretches) + 1)]
    for (start, end), (_, version) in zip(pairwise(ends), stretches, strict=True):
        keys, values, headers, timestamps = zip(*records[start:end], strict=True) if end > start else [()] * 4
        rows = encode_rows(range(start, end), timestamps, [1] * (end - start), keys, values, headers)
        flow = Engine(VERSIONS[version], KEYS).flow_of(OWN) if version else None
        to: list[str | None] = [None] * len(rows)
        if flow is not None:
            applied = flow.apply(rows, Origin(LINK, OWN, 0))
            if applied.failures and applied.on_error == "dead-letter":
                why = {failure.offset: (failure.stage, failure.reason) for failure in applied.failures}
                both, failed = merged(rows, applied.rows, why, False)
                frame = Frame("c", OWN, "id", 0, 0, 0, 0, "w", pipeline=version, failed=failed)
                dead = split(Rows.of((), both))[1]
                assert dead is not None
                made = dead_letters.letters(LINK, frame, dead, 5)
                link.letters += zip(
                    made.column(3).to_pylist(), made.column(4).to_pylist(), headers_of(made), strict=True
                )
            rows, to = applied.rows, applied.topics
        runs: dict[str, list[list[int]]] = {OWN: []}
        columns = (rows.column(n).to_pylist() for n in (3, 4))
        contents = zip(*columns, headers_of(rows), rows.column(1).to_pylist(), strict=True)
        for offset, topic, content in zip(rows.column(0).to_pylist(), to, contents, strict=True):
            its = link.there.setdefault(topic or OWN, [])
            # What an earlier version took to the topic is in its first partition.
            before = len(link.there.get("de", ())) if topic == "de/0" else 0
            runs.setdefault(topic or OWN, []).append([offset, before + len(its), 1])
            its.append(content)
        own = runs.pop(OWN)
        places = [(*topic_and_partition(topic), its) for topic, its in runs.items()]
        routed = tuple(Routed(topic, its, partition) for topic, partition, its in places)
        link.mappings.append(
            offset_mappings.Mapping(
                "c", OWN, "id", 0, start, end, OWN, 0, 1, len(rows), 0, 0, own, version, routed=routed
            )
        )
    return link


def checked(
    link: Copied, let_in: Sequence[str] | None = None, sample: tuple[float, int] | None = None
) -> dict[str, PartitionReport]:
    """Destination -> report. `let_in`: the routes that the link has let in; all that are there."""
    definitions = {n: definition(made, KEYS).decode() for n, made in link.versions.items()}
    pipelines = Pipelines(definitions, KEYS, LINK)
    targets = (OWN, *sorted(pipelines.targets(OWN) - {OWN}))
    ends = {place_of(name, 0): len(its) for name, its in link.there.items() if "/" in name}
    said = Said(LINK, pipelines=definitions)
    for name in {topic_and_partition(name)[0] for name in link.there} if let_in is None else let_in:
        of = {"topic": OWN, "topic_id": "id", "destination": name, "partitions": 1, "max_message_bytes": 1}
        said.add(0, encode("route", **of))
    letters = Letters(LINK, "c")
    for letter in link.letters:
        letters.add(*letter)
    with Mappings("c", {OWN: ("id", targets)}, several=True) as mappings:
        for mapping in link.mappings:
            mappings.add(offset_mappings.encode(mapping)[1], first_of_log=mapping.start == 0)
        clusters: Any = {"source": FakeCluster({OWN: link.source}), "destination": FakeCluster(link.there)}
        context = LinkContext(
            **clusters,
            mappings=mappings,
            said=said,
            hear=lambda: None,
            destinations={OWN: targets},
            from_earliest=True,
            clusters=None,
            sample=sample,
            ends=ends,
            pipelines=pipelines,
            letters=letters,
            together={},
        )
        pairs = _pairs({OWN: STATE}, context, clusters["destination"])
        return {pair.target: check_partition(context, pair) for pair in pairs}


def found(reports: Mapping[str, PartitionReport]) -> dict[str, dict[str, tuple[int, int | None, int | None]]]:
    """Destination -> kind -> count, source and destination offset of the first."""
    return {
        topic: {k.value: (f.count, f.source_offset, f.destination_offset) for k, f in report.findings.items()}
        for topic, report in reports.items()
        if report.findings
    }


def orders(*given: str) -> list[Given]:
    return [(b"k%d" % n, b'{"a":' + a.encode() + b"}", None, 1000 + n) for n, a in enumerate(given)]


SOME = orders("1", "0", "5", "1", "6", "1,", "0", "1")
"""By the second version: de, own, link.orders, de, own by name, a dead letter, own, de."""
LINKED = [(len(SOME), 2)]


@FEW
@given(some_records, st.lists(st.integers(0, 4), min_size=1, max_size=3))
def test_what_the_engine_makes_of_any_records_is_right_in_each_topic(
    records: Any, versions: list[int]
) -> None:
    share = len(records) // len(versions)
    counts = [share] * (len(versions) - 1) + [len(records) - share * (len(versions) - 1)]
    versions = sorted(versions)
    reports = checked(copied(records, list(zip(counts, versions, strict=True))))
    assert found(reports) == {}
    own = reports[OWN]
    assert own.source_records == len(records) and all(report.behind == 0 for report in reports.values())
    assert own.routed == sum(r.destination_records for topic, r in reports.items() if topic != OWN)


MANY = orders(*"12121212121212")
KEYED = [(len(MANY), 4)]


def test_of_keys_that_are_spread_each_partition_is_compared() -> None:
    reports = checked(copied(MANY, KEYED))
    assert found(reports) == {}
    assert reports.keys() >= {"de/0", "de/1", "de/2", "keyed/0", "keyed/1", "keyed/2"}
    assert (
        sum(r.equal for t, r in reports.items() if t.startswith("keyed/"))
        == 7
        == sum(r.equal for t, r in reports.items() if t.startswith("de/"))
    )
    assert reports[OWN].routed == 14


def test_a_record_in_another_partition_than_its_keys_is_found_though_its_mapping_leads_there() -> None:
    link = copied(MANY, KEYED)
    (name,) = [name for name in ("keyed/0", "keyed/1", "keyed/2") if len(link.there.get(name, ())) >= 2][:1]
    other = next(one for one in ("keyed/0", "keyed/1", "keyed/2") if one != name)
    moved = link.there[name].pop()
    there = link.there.setdefault(other, [])
    there.append(moved)
    at, runs = (
        topic_and_partition(name)[1],
        {one.partition: one for one in link.mappings[0].routed if one.topic == "keyed"},
    )
    offset = runs[at].runs.pop()[0]
    of = topic_and_partition(other)[1]
    routed = [one for one in link.mappings[0].routed if (one.topic, one.partition) != ("keyed", of)]
    its = sorted([*(runs[of].runs if of in runs else []), [offset, len(there) - 1, 1]])
    link.mappings[0] = replace(link.mappings[0], routed=(*routed, Routed("keyed", its, of)))
    wrong = found(checked(link))
    assert wrong.keys() == {name, other} and "lost" in wrong[name]


def test_what_nobody_has_mapped_into_a_partition_of_keys_is_found_once() -> None:
    link = copied(MANY, KEYED)
    name = next(name for name in link.there if name.startswith("keyed/"))
    link.there[name].append((b"stray", b"x", None, 5))
    assert found(checked(link)) == {name: {"foreign": (1, None, len(link.there[name]) - 1)}}


def test_what_was_counted_is_told_of_each_topic() -> None:
    reports = checked(copied(SOME, LINKED))
    counts = {t: (r.source_records, r.equal, r.routed, r.dead_letters) for t, r in reports.items() if r.equal}
    assert counts == {OWN: (8, 3, 4, 1), "de": (3, 3, 0, 0), "link.orders": (1, 1, 0, 0)}
    assert found(reports) == {}


def test_a_record_that_is_also_in_the_own_destination_is_found() -> None:
    link = copied(SOME, LINKED)
    link.there[OWN].insert(1, link.source[3])
    link.mappings[0].runs[1][1] += 1
    link.mappings[0].runs[2][1] += 1
    assert found(checked(link)) == {OWN: {"foreign": (1, None, 1)}}


def test_a_record_that_is_in_another_topic_than_its_own_is_found_in_both() -> None:
    """Also where its mapping says so."""
    link = copied(SOME, LINKED)
    moved = link.there["de"].pop(1)
    link.there["link.orders"].append(moved)
    de, other = link.mappings[0].routed
    routed = (Routed("de", [de.runs[0], [7, 1, 1]]), Routed(other.topic, [*other.runs, [3, 1, 1]]))
    link.mappings = [replace(link.mappings[0], routed=routed)]
    assert found(checked(link)) == {
        "de": {"lost": (1, 3, None)},
        "link.orders": {"foreign": (1, None, 1), "mapping": (1, 3, 1)},
    }


def test_a_record_that_is_missing_in_one_topic_is_lost() -> None:
    link = copied(SOME, LINKED)
    del link.there["de"][1]
    of = found(checked(link))
    assert of.keys() == {"de"} and of["de"]["lost"] == (1, 3, None)


def test_records_of_a_topic_in_another_order_are_found() -> None:
    link = copied(SOME, LINKED)
    de = link.there["de"]
    de[0], de[1] = de[1], de[0]
    of = found(checked(link))
    assert of.keys() == {"de"} and "reordered" in of["de"]


def test_a_mapping_that_does_not_tell_of_one_topic_is_found() -> None:
    link = copied(SOME, LINKED)
    link.versions = {2: BY_A}
    link.mappings = [replace(link.mappings[0], routed=link.mappings[0].routed[1:])]
    assert found(checked(link)) == {"de": {"mapping": (3, 0, None)}}


def test_what_is_not_copied_yet_is_behind_where_it_belongs() -> None:
    link = copied(SOME, [(4, 2)])
    link.versions = {2: BY_A}
    reports = checked(link)
    assert found(reports) == {}
    assert {t: r.behind for t, r in reports.items() if r.behind} == {OWN: 2, "de": 1}


def test_a_topic_that_was_never_let_in_is_somebody_elses() -> None:
    """Its records are none of the link's; those that belong there are behind."""
    link = copied(orders("0", "0", "1"), [(2, 2)])
    link.versions = {2: BY_A}
    link.there["de"] = orders("9", "9")
    reports = checked(link, let_in=())
    assert found(reports) == {} and reports["de"].behind == 1
    assert found(checked(link, let_in=("de",)))["de"]["foreign"][0] == 2


def test_a_route_that_is_refused_is_told_of_that_topic() -> None:
    said = Said(LINK)
    of = {"topic": OWN, "topic_id": "i/d=", "destination": "de", "partitions": 1, "max_message_bytes": 1}
    said.add(0, encode("route", **of, refused="it is full"))
    assert [halt.why for halt in said.halts("i_d", 0, "de")] == ["destination-refused: it is full"]
    assert said.halts("i_d", 0, OWN) == [] and said.let_in == set()
    said.add(1, encode("route", **of))
    assert said.halts("i_d", 0, "de") == [] and said.let_in == {("i_d", "de")}


@pytest.mark.parametrize("topic", ["de", OWN])
def test_a_sample_finds_what_is_altered_in_each_topic(topic: str) -> None:
    link = copied(SOME, LINKED)
    key, value, headers, _ = link.there[topic][1]
    link.there[topic][1] = (key, value, headers, 5)
    of = found(checked(link, sample=(1.0, 0)))
    assert of.keys() == {topic} and of[topic]["altered"][0] == 1
