"""`verify` of a partition that pipelines have gone over: a destination that the engine has made, version by
version, is right; and whatever is done to it is found where it is, with the version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kafka.wire.records import Rows, encode_rows, headers_of
from common.link import dead_letters, offset_mappings
from common.link.frame import Frame
from common.link.frame_errors import merged, split
from common.pipeline.batch import Origin
from common.pipeline.definition import definition
from common.pipeline.engine import Applied, Engine
from common.pipeline.models import Pipeline
from tests.support.pipelines import FEW, KEYS, Given, pipeline
from tests.support.pipelines import batches as some_records
from verbatim.verify.comparison import Batch, Kind, PartitionReport
from verbatim.verify.control import Said
from verbatim.verify.expected import Pipelines
from verbatim.verify.letters import Letter, LetterCheck, Letters, expired
from verbatim.verify.link_mappings import Mappings
from verbatim.verify.partition_check import LinkContext, Pair, check_partition
from verbatim.verify.pipeline.schema_ids import Ids
from verbatim.verify.reading import TopicState

TOPIC, LINK = "orders", "link"
OWN = "tests.support.own_stages"
FILTER = pipeline({"filter": {"drop": {"value.a": 1}}})
HMAC = pipeline({"mask": {"key": "k1", "fields": {"email": "hmac"}}})
ENCRYPT = pipeline({"mask": {"key": "k1", "fields": {"email": "encrypt"}}})
MANY = pipeline(
    {"when": {"value.a": {"exists": True}}, "fields": {"drop": ["b"], "set": {"id": "{topic}@{offset}"}}},
    {"headers": {"remove": ["x-a"], "set": {"of": "{link}"}}},
    {"filter": {"keep": {"size": {"lt": 60}}, "otherwise": "tombstone"}},
    onError="skip",
)
SKIPPING = pipeline({"mask": {"key": "k1", "fields": {"a": "hmac"}}}, {"key": "value.id"}, onError="skip")
Stretches = Sequence[tuple[int, int]]
"""Source records of each, and their version, 0 for none. Each is a mapping."""


class FakeCluster:
    """One partition; offsets from 0 on, None for what compaction has taken."""

    def __init__(self, contents: Sequence[Given | None], compacted: bool = False) -> None:
        self.contents = contents
        self.state = TopicState("id", 1, compacted, not compacted)

    def topic(self, _: str) -> TopicState:
        return self.state

    def bounds(self, *_: Any) -> tuple[int, int]:
        return 0, len(self.contents)

    settled = bounds

    def records(
        self, topic: str, partition: int, begin: int, end: int, prepare: Any, judge: Any
    ) -> Iterator[Batch]:
        for offset in range(begin, end):
            if (record := self.contents[offset]) is None:
                continue
            key, value, headers, timestamp = record
            found = judge(offset, timestamp, key, value, headers)
            if found is not None:
                yield [offset], [found]


class Copied(NamedTuple):
    """What a link has made: both sides, its mappings, its versions and its dead letters."""

    source: list[Given | None]
    destination: list[Given | None]
    mappings: list[offset_mappings.Mapping]
    versions: Mapping[int, Pipeline]
    letters: list[tuple[bytes | None, bytes | None, Any]]

    def altered(self, at: int, **change: Any) -> Copied:
        """A destination record with other contents."""
        names = ("key", "value", "headers", "timestamp")
        record = dict(zip(names, self.destination[at] or (), strict=True)) | change
        contents: Any = tuple(record[name] for name in names)
        return self._replace(destination=[*self.destination[:at], contents, *self.destination[at + 1 :]])


def copied(
    records: Sequence[Given], stretches: Stretches, versions: Mapping[int, Pipeline], ids: Ids | None = None
) -> Copied:
    """By the engine. `onError` is not halt, or no stage may fail; no record waits for its schema. `ids`:
    those that the lanes knew."""
    known = ids or {}
    destination: list[Given | None] = []
    mappings = []
    letters: list[tuple[bytes | None, bytes | None, Any]] = []
    ends = [sum(count for count, _ in stretches[:n]) for n in range(len(stretches) + 1)]
    for (start, end), (_, version) in zip(pairwise(ends), stretches, strict=True):
        keys, values, headers, timestamps = zip(*records[start:end], strict=True) if end > start else [()] * 4
        rows = encode_rows(range(start, end), timestamps, [1] * (end - start), keys, values, headers)
        flow = Engine(versions[version], KEYS, lambda *s: known.get(s)).flow_of(TOPIC) if version else None
        if flow is not None:
            applied = flow.apply(rows, Origin(LINK, TOPIC, 0))
            assert not applied.waits and (not applied.failures or applied.on_error != "halt")
            if applied.failures and applied.on_error == "dead-letter":
                letters += written(rows, applied, version)
            rows = applied.rows
        runs = [[int(offset), len(destination) + n, 1] for n, offset in enumerate(rows.column(0).to_pylist())]
        found = zip(
            *(rows.column(n).to_pylist() for n in (3, 4)),
            headers_of(rows),
            rows.column(1).to_pylist(),
            strict=True,
        )
        destination += found
        mappings.append(
            offset_mappings.Mapping(
                "c", TOPIC, "id", 0, start, end, TOPIC, 0, 1, len(runs), 0, 0, runs, version
            )
        )
    return Copied(list(records), destination, mappings, versions, letters)


def written(
    given: pa.RecordBatch, applied: Applied, version: int
) -> list[tuple[bytes | None, bytes | None, Any]]:
    """As phase 1 and 2 do it."""
    why = {failure.offset: (failure.stage, failure.reason) for failure in applied.failures}
    both, failed = merged(given, applied.rows, why, applied.payload)
    frame = Frame("c", TOPIC, "id", 0, 0, 0, 0, "w", pipeline=version, failed=failed)
    dead = split(Rows.of((), both))[1]
    assert dead is not None
    rows = dead_letters.letters(LINK, frame, dead, 5)
    return [*zip(rows.column(3).to_pylist(), rows.column(4).to_pylist(), headers_of(rows), strict=True)]


def checked(
    link: Copied,
    keys: Mapping[str, bytes] = KEYS,
    compacted: bool = False,
    sample: tuple[float, int] | None = None,
    new: Sequence[int] = (),
    others: Mapping[str, str] = MappingProxyType({}),
    ids: Ids | None = None,
) -> PartitionReport:
    """`new`: versions that come while it is compared. `others`: what they ran and is not what is here.
    `ids`: those of schemas that are known then."""
    definitions = {
        n: definition(made, KEYS, Engine(made, KEYS).code | dict(others)).decode()
        for n, made in link.versions.items()
    }
    source, destination = (FakeCluster(side, compacted) for side in (link.source, link.destination))
    said = Said(LINK, pipelines=definitions)
    letters = Letters(LINK, "c")
    for letter in link.letters:
        letters.add(*letter)
    with Mappings("c", {TOPIC: ("id", (TOPIC,))}) as mappings:
        for mapping in link.mappings:
            mappings.add(offset_mappings.encode(mapping)[1], first_of_log=mapping.start == 0)
        clusters: Any = {"source": source, "destination": destination}
        context = LinkContext(
            **clusters,
            mappings=mappings,
            said=said,
            hear=lambda: said.pipelines.update(dict.fromkeys(new, "")),
            destinations={TOPIC: [TOPIC]},
            from_earliest=True,
            clusters=None,
            sample=sample,
            ends={},
            pipelines=Pipelines(definitions, keys, LINK, ids),
            letters=letters,
            together={},
        )
        return check_partition(context, Pair(TOPIC, 0, source.state, TOPIC, destination.state))


@FEW
@given(some_records)
def test_what_a_function_makes_is_right_where_it_is_here_and_else_not_compared(records: list[Given]) -> None:
    made = pipeline(
        {"python": f"{OWN}:tidy"},
        {"fields": {"set": {"b": 1}}},
        {"python": f"{OWN}:unchanged"},
        onError="skip",
    )
    link = copied(records, [(len(records), 1)], {1: made})
    report = checked(link)
    assert (found(report), report.equal) == ({}, len(link.destination))
    report = checked(link, others={OWN: "acme 2.0, sha256 0"})
    assert (found(report), report.equal) == ({}, 0)
    assert not records or f"version 1: its module {OWN} is another one here: " in " ".join(report.notes)


def test_what_a_function_made_of_what_was_masked_is_not_compared_without_the_key() -> None:
    made = pipeline({"mask": {"key": "k1", "fields": {"a": "hmac"}}}, {"python": f"{OWN}:tidy"})
    link = copied(orders('{"a":"x"}', '{"a":"yy"}'), [(2, 1)], {1: made})
    assert found(checked(link)) == {} and checked(link).equal == 2
    report = checked(link, keys={})
    assert (found(report), report.equal) == ({}, 0) and "decides what becomes" in " ".join(report.notes)
    assert found(checked(link.altered(1, value=b"{}"))) == {"altered": (1, 1, 1, 1)}


def found(report: PartitionReport) -> dict[str, tuple[int, int | None, int | None, int]]:
    """Kind -> count, source and destination offset of the first, and its version."""
    return {
        kind.value: (f.count, f.source_offset, f.destination_offset, f.version)
        for kind, f in report.findings.items()
    }


def orders(*values: str) -> list[Given]:
    return [(b"k%d" % n, value.encode(), [("x-a", b"1")], 1000 + n) for n, value in enumerate(values)]


@FEW
@given(some_records, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=4))
def test_what_the_engine_makes_is_right_whatever_versions_follow_one_another(
    records: list[Given], stretches: list[tuple[int, int]]
) -> None:
    count = len(records)
    bounds = [
        0,
        *sorted(min(count, sum(n for n, _ in stretches[: at + 1])) for at in range(len(stretches) - 1)),
        count,
    ]
    parts = [
        (end - start, version) for (start, end), (_, version) in zip(pairwise(bounds), stretches, strict=True)
    ]
    link = copied(records, parts, {1: MANY, 2: SKIPPING})
    report = checked(link)
    assert (found(report), report.behind) == ({}, 0)
    assert report.equal == len(link.destination) == count - report.filtered
    changed = sum(
        link.source[s] != link.destination[d] for mapping in link.mappings for s, d, _ in mapping.runs
    )
    # Not where it is only written otherwise.
    assert report.transformed <= changed


RECORDS = orders(
    '{"a":0,"email":"x"}', '{"a": 1,"email":"y"}', '{"a":2 , "email":"z"}', '{"a":3}', '{"a":1}', '{"a":4,"email":"v"}'
)  # fmt: skip


def test_what_was_transformed_and_filtered_is_counted() -> None:
    report = checked(copied(RECORDS, [(2, 0), (2, 1), (2, 2)], {1: HMAC, 2: FILTER}))
    # Offset 2 is masked, 3 has nothing to mask, 4 is left out.
    assert (report.source_records, report.destination_records, report.equal) == (6, 5, 5)
    assert (report.transformed, report.filtered, found(report), report.notes) == (1, 1, {}, [])


def test_each_fault_is_found_where_it_is_with_its_version() -> None:
    versions = {1: FILTER, 2: HMAC}
    link = copied(RECORDS, [(3, 1), (3, 2)], versions)
    good = link.destination
    assert found(checked(link)) == {} and len(good) == 5
    masked = good[4]
    assert masked is not None and masked[1] is not None
    assert found(checked(link.altered(4, value=masked[1][:-3] + b'x"}'))) == {"altered": (1, 5, 4, 2)}
    assert found(checked(link.altered(4, value=RECORDS[5][1]))) == {"altered": (1, 5, 4, 2)}
    assert found(checked(link.altered(4, headers=None))) == {"altered": (1, 5, 4, 2)}
    assert found(checked(link.altered(1, timestamp=5))) == {"altered": (1, 2, 1, 1)}
    # A kept one is missing.
    missing = link._replace(destination=good[:3] + good[4:])
    assert found(checked(missing))["lost"] == (1, 4, None, 2)
    # A filtered one is delivered: without a mapping, and with one.
    delivered = link._replace(destination=[*good, RECORDS[1]])
    assert found(checked(delivered)) == {"foreign": (1, None, 5, 2)}
    none = copied(RECORDS, [(3, 0), (3, 2)], versions)
    mapped = none._replace(mappings=[replace(none.mappings[0], pipeline=1), none.mappings[1]])
    told = found(checked(mapped))
    assert told == {"foreign": (1, None, 1, 1), "mapping": (1, 1, 1, 1)}


@pytest.mark.parametrize(("told", "offset"), [(2, 2), (4, 3)])
def test_a_boundary_that_is_told_one_off_is_found(told: int, offset: int) -> None:
    """The new version masks what the old one kept; record 3 has nothing to mask, but a header."""
    versions = {1: pipeline({"headers": {"set": {"v": "1"}}}), 2: pipeline({"headers": {"set": {"v": "2"}}})}
    made = copied(RECORDS, [(3, 1), (3, 2)], versions)
    wrong = copied(RECORDS, [(told, 1), (6 - told, 2)], versions)
    assert found(checked(made)) == {}
    report = checked(made._replace(mappings=wrong.mappings))
    assert found(report) == {"altered": (1, offset, offset, 1 if told > 3 else 2)}


def test_what_no_stage_touches_is_compared_to_the_byte_also_in_a_flow_that_changes_json() -> None:
    link = copied(
        orders('{"id": 1}', '{"id": 2}'),
        [(2, 1)],
        {1: pipeline({"when": {"id": 2}, "fields": {"set": {"n": 1}}})},
    )
    assert found(checked(link)) == {}
    assert found(checked(link.altered(0, value=b'{"id":1}'))) == {"altered": (1, 0, 0, 1)}
    # What was put together anew is compared as JSON.
    assert found(checked(link.altered(1, value=b'{"id":2,"n":1}'))) == {}
    assert found(checked(link.altered(1, value=b'{"id":2,"n":1.0}'))) == {"altered": (1, 1, 1, 1)}


@pytest.mark.parametrize("made", [HMAC, ENCRYPT])
def test_without_its_key_all_but_what_is_masked_is_compared_and_that_is_said(made: Pipeline) -> None:
    link = copied(RECORDS, [(6, 1)], {1: made})
    assert checked(link).notes == []
    report = checked(link, {})
    assert found(report) == {} and "6 records were compared without their value" in report.notes[0]
    assert found(checked(link.altered(2, value=b"other"), {})) == {}
    assert found(checked(link.altered(2, timestamp=7), {})) == {"altered": (1, 2, 2, 1)}
    assert found(checked(link._replace(destination=link.destination[:-1]), {}))["lost"] == (1, 5, None, 1)


def test_without_the_extra_what_was_encrypted_is_not_compared_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = copied(RECORDS, [(6, 1)], {1: ENCRYPT})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    report = checked(link)
    assert (found(report), report.equal) == ({}, 0) and "needs the extra `encrypt`" in report.notes[0]


def test_where_what_is_masked_decides_nothing_is_compared_without_the_key_but_what_other_versions_made() -> (
    None
):
    deciding = pipeline(
        {"mask": {"key": "k1", "fields": {"email": "hmac"}}},
        {"filter": {"keep": [{"value.email": {"matches": "[0-7].*"}}, {"value.a": 3}]}},
    )
    link = copied(RECORDS, [(2, 0), (4, 1)], {1: deciding})
    assert found(checked(link)) == {} and checked(link).filtered
    report = checked(link, {})
    assert found(report) == {} and (report.equal, report.filtered) == (2, 0)
    assert "decides what becomes of records: 4 source records" in report.notes[0]
    assert found(checked(link.altered(0, value=b"x"), {})) == {"altered": (1, 0, 0, 0)}


def test_a_stage_that_fails_where_it_should_have_halted_is_a_loss_unless_that_was_accepted() -> None:
    halting = pipeline({"key": "value.email"})
    records = orders('{"email":"a"}', "{}", '{"email":"b"}', "{}")
    made = copied(records, [(4, 1)], {1: pipeline({"key": "value.email"}, onError="skip")})
    assert found(checked(made)) == {} and "2 of the records that were left out" in checked(made).notes[0]
    halted = made._replace(versions={1: halting})
    assert found(checked(halted)) == {"lost": (2, 1, None, 1)}
    accepted = replace(made.mappings[0], lost=1)
    assert found(checked(halted._replace(mappings=[accepted]))) == {"lost": (1, 1, None, 1)}


def test_what_is_behind_is_what_its_version_would_make_and_a_halted_record_is_behind() -> None:
    link = copied(RECORDS[:3], [(3, 1)], {1: FILTER})
    more = checked(link._replace(source=[*RECORDS, (b"k", b"no json", None, 5)]))
    assert (found(more), more.behind, more.first_behind, more.filtered) == ({}, 3, 3, 1)


@pytest.mark.parametrize(
    ("versions", "new"), [({1: HMAC, 2: FILTER}, ()), ({1: HMAC}, (2,))], ids=["before", "while"]
)
def test_what_a_new_version_has_not_reached_is_behind_and_nothing_else(
    versions: Mapping[int, Pipeline], new: Sequence[int]
) -> None:
    """It is not told by which version what has come since the last mapping was made, where the new one was
    written before it is compared, or while it is."""
    whole = copied(RECORDS, [(3, 1), (3, 2)], {1: HMAC, 2: FILTER})
    raced = whole._replace(mappings=whole.mappings[:1], versions=versions)
    report = checked(raced, new=new)
    assert (found(report), report.equal) == ({}, 3) and report.behind in (2, 3)
    assert "version 2 of the pipeline is new" in report.notes[0]
    # Without a new version what has come since is compared.
    seen = copied(RECORDS, [(6, 1)], {1: HMAC})
    report = checked(seen._replace(mappings=copied(RECORDS[:3], [(3, 1)], {1: HMAC}).mappings))
    assert (found(report), report.equal, report.behind, report.notes) == ({}, 6, 0, [])


def test_what_has_no_mapping_any_more_is_not_compared_since_its_version_is_not_known() -> None:
    link = copied(RECORDS, [(3, 1), (3, 2)], {1: HMAC, 2: FILTER})
    expired = link._replace(mappings=link.mappings[1:])
    report = checked(expired)
    assert (found(report), report.equal, report.filtered) == ({}, 2, 1)
    assert "below source offset 3" in report.notes[0]
    assert found(checked(expired.altered(4, value=b"x"))) == {"altered": (1, 5, 4, 2)}
    assert found(checked(link._replace(mappings=[]))) == {}


def test_a_sample_counts_and_finds_over_all_of_its_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verbatim.verify.common_part.SAMPLE_OFFSETS", 2)
    link = copied(RECORDS, [(3, 1), (3, 2)], {1: HMAC, 2: FILTER})
    report = checked(link, {}, sample=(1.0, 0))
    whole = checked(link, {})
    assert found(report) == {} and report.notes == whole.notes and len(report.notes) == 1
    assert (report.equal, report.transformed, report.filtered) == (
        whole.equal,
        whole.transformed,
        whole.filtered,
    )
    assert (whole.equal, whole.transformed, whole.filtered) == (5, 3, 1)
    assert found(checked(link.altered(4, value=b"x"), sample=(1.0, 0))) == {"altered": (1, 5, 4, 2)}


def test_json_that_is_nested_too_deeply_is_not_compared_and_that_is_said() -> None:
    deep = '{"a":' + "[" * 700 + "]" * 700 + "}"
    link = copied(orders('{"a":1}', deep, '{"a":2}'), [(3, 1)], {1: pipeline({"fields": {"set": {"b": 1}}})})
    report = checked(link)
    assert (found(report), report.equal) == ({}, 2)
    assert report.notes == ["1 source records are JSON nested too deeply to be compared"]


def test_a_version_that_the_control_topic_has_not_is_said() -> None:
    link = copied(RECORDS, [(3, 1), (3, 2)], {1: FILTER, 2: HMAC})
    report = checked(link._replace(versions={1: FILTER}))
    assert found(report) == {} and report.equal == 2
    assert any("version 2: the control topic has no such version: 3 source" in note for note in report.notes)


COMPACTED = [
    (b"a", b'{"a":0}', None, 1), (b"b", b'{"a":1}', None, 2), (b"a", b'{"a":5}', None, 3), (b"c", b'{"a":1}', None, 4),
]  # fmt: skip


def test_a_compacted_topic_is_held_against_what_the_pipeline_makes() -> None:
    tombstones = {1: pipeline({"filter": {"drop": {"value.a": 1}, "otherwise": "tombstone"}})}
    link = copied(COMPACTED, [(4, 1)], tombstones)
    report = checked(link, compacted=True)
    assert found(report) == {} and (report.transformed, report.filtered, report.equal) == (2, 0, 4)
    delivered = link.altered(1, value=b'{"a":1}')
    assert found(checked(delivered, compacted=True))["altered"] == (1, 1, 1, 1)
    # Compaction has taken the first record of the key, at the destination alone.
    assert found(checked(link._replace(destination=[None, *link.destination[1:]]), compacted=True)) == {}


def test_where_compacted_records_are_left_out_an_older_one_of_the_key_may_stay() -> None:
    before = [(b"c", b'{"a":7}', None, 0), *COMPACTED]
    link = copied(before, [(5, 1)], {1: FILTER})
    # At the source compaction has taken it, for a later one of the key that is left out.
    report = checked(link._replace(source=[None, *COMPACTED]), compacted=True)
    assert Kind.FOREIGN not in report.findings and report.filtered == 2


def test_a_compacted_topic_whose_keys_are_masked_is_not_compared_without_the_key() -> None:
    link = copied(COMPACTED, [(4, 1)], {1: pipeline({"mask": {"key": "k1", "fields": {"key": "hmac"}}})})
    assert found(checked(link, compacted=True)) == {} and checked(link, compacted=True).equal == 4
    report = checked(link, {}, compacted=True)
    assert (found(report), report.equal) == ({}, 0) and "keys of a compacted topic" in report.notes[-1]


DEAD = pipeline({"key": "value.email"}, onError="dead-letter")
WITH_PAYLOAD = pipeline({"key": "value.email"}, onError={"dead-letter": {"payload": True}})
SOME = orders('{"email":"a"}', "{}", '{"email":"b"}', "{}", "no json")


@FEW
@given(some_records, st.booleans())
def test_dead_letters_as_the_engine_makes_them_are_right(records: list[Given], payload: bool) -> None:
    said: Any = {"dead-letter": {"payload": True}} if payload else "dead-letter"
    made = pipeline({"mask": {"key": "k1", "fields": {"a": "hmac"}}}, {"key": "value.id"}, onError=said)
    link = copied(records, [(len(records), 1)], {1: made})
    report = checked(link)
    assert (found(report), report.dead_letters) == ({}, len(link.letters))
    assert report.source_records == len(records) == report.equal + report.filtered + report.dead_letters


@pytest.mark.parametrize("made", [DEAD, WITH_PAYLOAD])
def test_each_record_that_a_stage_fails_on_has_one_dead_letter(made: Pipeline) -> None:
    link = copied(SOME, [(5, 1)], {1: made})
    assert (found(checked(link)), checked(link).dead_letters) == ({}, 3)
    lost = checked(link._replace(letters=link.letters[1:]))
    assert found(lost) == {"lost": (1, 1, None, 1)} and "no dead letter" in lost.findings[Kind.LOST].detail
    twice = checked(link._replace(letters=[*link.letters, link.letters[2], link.letters[2]]))
    assert found(twice) == {"duplicated": (2, 4, None, 1)}
    other = checked(link._replace(versions={1: pipeline({"key": "value.email"}, onError="skip")}))
    assert found(other) == {"foreign": (3, 1, None, 1)}


@pytest.mark.parametrize("letters", [True, False])
def test_what_is_tolerated_is_right_and_more_than_that_is_noted(letters: bool) -> None:
    """What becomes of a record is the same: above the rate a halt was to come, which none can see."""
    says: Any = {"dead-letter": {}} if letters else {}
    few, many = (
        pipeline({"key": "value.email"}, onError={"tolerate": {"records": n, "per": 4}} | says)
        for n in (2, 1)
    )
    # Offsets 1, 3 and 4: two of the first window, one of the second.
    report = checked(copied(SOME, [(5, 1)], {1: few}))
    assert found(report) == {} and not any("tolerates" in note for note in report.notes)
    assert (report.dead_letters, report.filtered) == ((3, 0) if letters else (0, 3))
    report = checked(copied(SOME * 2, [(10, 1)], {1: many}))
    assert found(report) == {}
    (note,) = [note for note in report.notes if "tolerates" in note]
    assert note.startswith("pipeline version 1 tolerates 1 of 4 offsets; more were let by in 3 windows")
    assert "the first at source offset 3: " in note
    # Another version counts anew.
    report = checked(copied(SOME, [(3, 1), (2, 2)], {1: many, 2: many}))
    assert found(report) == {} and not any("tolerates" in note for note in report.notes)


def test_a_record_above_the_rate_has_no_dead_letter_where_an_operator_has_accepted_its_loss() -> None:
    said = {"tolerate": {"records": 1, "per": 4}, "dead-letter": {}}
    link = copied(SOME, [(3, 1), (1, 1), (1, 1)], {1: pipeline({"key": "value.email"}, onError=said)})
    without = link._replace(letters=[link.letters[0], link.letters[2]])
    report = checked(without)
    assert found(report) == {"lost": (1, 3, None, 1)}
    assert "no operator has accepted its loss" in report.findings[Kind.LOST].detail
    given_up = replace(link.mappings[1], lost=1)
    report = checked(without._replace(mappings=[link.mappings[0], given_up, link.mappings[2]]))
    assert found(report) == {}


def test_a_dead_letter_is_of_its_record_stage_and_version_and_has_what_was_asked_for() -> None:
    plain, full = (copied(SOME, [(5, 1)], {1: made}) for made in (DEAD, WITH_PAYLOAD))
    assert found(checked(plain._replace(letters=full.letters))) == {"altered": (3, 1, None, 1)}
    assert found(checked(full._replace(letters=plain.letters))) == {"altered": (3, 1, None, 1)}

    def changed(name: str, what: bytes) -> PartitionReport:
        key, value, headers = full.letters[1]
        changed = [(n, what if n == name else item) for n, item in headers]
        return checked(full._replace(letters=[full.letters[0], (key, value, changed), full.letters[2]]))

    for name, what in (
        ("verbatim.source.timestamp", b"77"),
        ("verbatim.stage", b"stage 11 (key)"),
        ("verbatim.pipeline", b"2"),
    ):
        assert found(changed(name, what)) == {"altered": (1, 3, None, 1)}, name
    for name, what in (
        ("verbatim.source.offset", b"0"),
        ("verbatim.source.offset", b"x"),
        ("verbatim.link", b"o"),
    ):
        assert found(changed(name, what))["lost"] == (1, 3, None, 1), name
    assert found(changed("verbatim.source.offset", b"0"))["foreign"] == (1, 0, None, 1)


def test_letters_that_have_expired_are_no_loss_and_strays_are_none_of_them() -> None:
    link = copied(SOME, [(5, 1)], {1: DEAD})
    letters = Letters(LINK, "c")
    for letter in [*link.letters[1:], (b"k", b"v", None), (b"k", b"v", [("a", b"b")] * 11)]:
        letters.add(*letter)
    dead = {"topic": "dead", "partition": 1, "runs": [[1, 7, 1], [3, 8, 2]]}
    expired(
        letters, {"topic": TOPIC, "topic_id": "id", "partition": 0, "dead_letters": dead}, {("dead", 1): 8}
    )
    of = letters.of(TOPIC, "id", 0)
    assert (of.expired, letters.strays, sorted(of.first)) == ({1}, 2, [3, 4])
    check = LetterCheck(of)
    for offset in (1, 2):
        check.must_be(offset, Letter(1, "stage 1", b""))
    report = PartitionReport(TOPIC, 0, TOPIC)
    check.finish(report)
    assert found(report) == {"lost": (1, 2, None, 0)} and "1 dead letters have expired" in report.notes[0]


def test_letters_of_a_topic_that_no_flow_takes_are_found() -> None:
    link = copied(SOME, [(5, 0)], {})
    stray = copied(SOME, [(5, 1)], {1: DEAD}).letters
    assert found(checked(link._replace(letters=stray))) == {"foreign": (3, 1, None, 0)}


def framed(schema_id: int, payload: bytes = b"x") -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


MAPPING = pipeline("schema-ids", value="bytes", wire={"value": "confluent"}, onError="skip")
WITH_SCHEMAS: list[Given] = [(b"k%d" % n, framed(n % 2 + 1, b"%d" % n), None, n) for n in range(6)]


def test_ids_of_schemas_are_judged_by_the_map_and_what_got_through_without_one_is_found() -> None:
    """Promise: another id, another payload, a record whose schema the map does not have: each is found. With
    more in the map than lanes had, what they have sent is still right."""
    known = {(".", 1): 10, (".", 2): 11}
    link = copied(WITH_SCHEMAS, [(6, 1)], {1: MAPPING}, known)
    report = checked(link, ids=known)
    assert (found(report), report.transformed, report.equal) == ({}, 6, 6)
    assert found(checked(link, ids={**known, (".", 3): 12})) == {}
    assert found(checked(link.altered(3, value=framed(12, b"3")), ids=known)) == {"altered": (1, 3, 3, 1)}
    assert found(checked(link.altered(3, value=framed(11, b"4")), ids=known)) == {"altered": (1, 3, 3, 1)}
    # As lanes would have done it that let through, as they are, those whose schema they don't know.
    through = copied(WITH_SCHEMAS, [(6, 1)], {1: MAPPING}, {**known, (".", 2): 2})
    assert found(checked(through, ids={(".", 1): 10})).keys() == {"lost", "foreign"}


def test_a_record_that_waits_for_its_schema_is_behind_and_one_that_was_given_up_is_not_missed() -> None:
    known = {(".", 1): 10}
    made = copied(WITH_SCHEMAS[:1], [(1, 1)], {1: MAPPING}, known)
    report = checked(made._replace(source=list(WITH_SCHEMAS)), ids=known)
    assert (found(report), report.behind, report.equal) == ({}, 5, 1)
    # 1 was given up, the rest copied.
    records = WITH_SCHEMAS[2::2]
    rest = copied([WITH_SCHEMAS[0], *records], [(1, 1), (2, 1)], {1: MAPPING}, known)
    moved = replace(rest.mappings[1], start=2, next=4, runs=[[2 + n, 1 + n, 1] for n in range(2)])
    gap = replace(rest.mappings[0], start=1, next=2, runs=[], records=0, lost=1)
    source: list[Given | None] = [WITH_SCHEMAS[0], WITH_SCHEMAS[1], *records]
    given_up = rest._replace(source=source, mappings=[rest.mappings[0], gap, moved])
    assert found(checked(given_up, ids=known)) == {}
    assert "lost" in found(
        checked(given_up._replace(mappings=[rest.mappings[0], replace(gap, lost=0), moved]), ids=known)
    )
