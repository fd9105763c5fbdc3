"""Pipelines in the path of records, on real brokers: what arrives is what a second implementation makes of
the source by the version that each mapping names, and nothing else does."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import count as counting
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from common.app.health import Health
from common.errors import LinkRefused, UncleanTransaction
from common.link.halt_reasons import HaltReason
from common.pipeline.encrypting import Cipher, Opener
from deduplicator.lane.fencing import FencingProducer
from deduplicator.lane.transaction import Transaction
from offsets.group_offsets import GroupKey
from tests.conftest import Names
from tests.integration.test_batches import batches_of
from tests.integration.test_offsets import commit, committed, group_offsets, once, run
from tests.support.brokers import Record, Seen, create_topic, delete_topic, produce, read_all
from tests.support.harness import Link, ThreadReplicator, assert_copied, eventually
from tests.support.metrics import sample
from verbatim.commands.accept_loss import accept_loss
from verbatim.local.kafka_cluster import Cluster
from verbatim.main import cli
from verbatim.verify.pipeline import definition as second
from verbatim.verify.pipeline.records import Record as Given

KEY = "0123456789abcdef" * 4
SECRET, OPEN = b"born-in-1970-at-the-sea", b"rather-likes-green-tea"
ASKED_FOR = b"let-me-see-what-it-was"
FIRST = """\
version: 1
keys: {pii: file:KEY}
flows:
  - topics: ['.*\\.customers']
    value: json
    stages:
      - filter: {keep: {kind: {in: [order, refund]}}}
      - mask: {key: pii, fields: {email: hmac, 'notes[*].secret': encrypt}}
      - headers: {remove: ['x-.*'], set: {origin: '{topic}/{partition}@{offset}'}}
"""
SECOND = FIRST.replace("[order, refund]", "[order, other]").replace("email: hmac", "email: redact")


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """A source, a target, and the folder of the target's logs."""
    folder = tmp_path_factory.mktemp("target")
    source, target = Cluster(), Cluster(data_folder=folder)
    try:
        source.start()
        target.start()
        yield source.bootstrap_servers, target.bootstrap_servers, folder
    finally:
        target.stop()
        source.stop()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text(KEY)
    path = tmp_path / "pipeline.yaml"
    say(path, FIRST)
    return path


def say(file: Path, text: str) -> None:
    file.write_text(text.replace("KEY", str(file.parent / "key")))


def link_of(clusters: tuple[str, str, Path], name: str, file: Path, **more: str) -> Link:
    # What a codec has packed could not be looked for.
    source, target, _ = clusters
    plain = {"KAFKA_CLUSTERS_DESTINATION_PRODUCER_COMPRESSION_TYPE": "none"}
    return Link(source, target, name, rf"{name}\.t\..*", PIPELINE=str(file), **plain, **more)


def customer(number: int, partition: int = 0) -> Record:
    kind = ("order", "refund", "other")[number % 3]
    value = b'{"kind":"%s", "n":1.10, "email":"%s%d@sea.org","likes":"%s","notes":[{"secret":"%s"}]}' % (
        kind.encode(), SECRET, number, OPEN, SECRET,
    )  # fmt: skip
    return Record(value, b"k%d" % number, partition, headers=[("x-trace", SECRET), ("kept", b"1")])


def keys(file: Path) -> dict[str, bytes]:
    return {"pii": (file.parent / "key").read_bytes()}


def assert_as_piped(link: Link, topic: str, file: Path) -> dict[int, list[int]]:
    """Each source offset is covered by one mapping, and by its version arrives as it must or not at all. The
    versions of each partition, in order."""
    versions = {
        n: second.Pipeline.of(v.definition.encode(), keys(file)) for n, v in link.control().pipelines.items()
    }
    there, here = read_all(link.source, topic), read_all(link.target, topic)
    found: dict[int, list[int]] = {}
    for partition, mappings in link.mappings(topic).items():
        assert all(a.next == b.start for a, b in pairwise(mappings))
        found[partition] = [mapping.pipeline for mapping in mappings]
        arrived = {seen.offset: seen for seen in here[partition]}
        wanted = []
        for seen in there[partition]:
            (mapping,) = [m for m in mappings if m.start <= seen.offset < m.next]
            given = Given(
                topic, partition, seen.offset, seen.timestamp, seen.key, seen.value,
                tuple(seen.headers or ()), link.settings.application_name,
            )  # fmt: skip
            result = versions[mapping.pipeline].apply(given)
            if result.outcome in ("kept", "tombstone"):
                (at,) = [d + seen.offset - s for s, d, n in mapping.runs if s <= seen.offset < s + n]
                copy = arrived[at]
                assert result.is_copied_as(copy.timestamp, copy.key, copy.value, copy.headers), seen
                wanted.append(at)
        assert wanted == [*arrived]
    return found


def count(health: Health, what: str, topic: str, partition: int) -> float:
    found = sample(health, f"verbatim_{what}_total", topic=topic, partition=str(partition))
    assert found is not None
    return found


def counts(health: Health, what: str, topic: str) -> list[float]:
    """Of partitions 0 and 1."""
    return [count(health, what, topic, partition) for partition in (0, 1)]


def logs_hold(folder: Path, what: bytes) -> set[str]:
    """The folders of partitions in which these bytes lie."""
    return {log.parent.name for log in folder.rglob("*.log") if what in log.read_bytes()}


def test_a_pipeline_that_changes_while_records_flow(
    clusters: tuple[str, str, Path], file: Path, names: Names
) -> None:
    """Promise: each record is copied once by exactly the version that its mapping names, or left out; what is
    masked lies nowhere at the target; a topic that no flow takes goes as it always did."""
    name = names.link
    customers, plain = f"{name}.t.customers", f"{name}.t.plain"
    link = link_of(clusters, name, file)
    for topic, partitions in ((customers, 2), (plain, 1)):
        create_topic(link.source, topic, partitions)
    big = Producer({"bootstrap.servers": link.source, "batch.size": 900_000, "linger.ms": 500})
    for i in range(3000):
        big.produce(plain, b"%d " % i * 40 + OPEN, b"%d" % i, 0, headers=[("x-trace", b"1")])
    big.flush(20)
    produce(link.source, customers, [customer(i, i % 2) for i in range(100)])
    with link.running() as (replicator, _):
        eventually(lambda: sum(link.arrived(customers)) >= 60, "the first records", 60)
        say(file, SECOND)
        number = 100
        while len(link.control().pipelines) < 2:
            produce(link.source, customers, [customer(number, number % 2)])
            number += 1
            assert number < 2000
        produce(link.source, customers, [customer(i, i % 2) for i in range(number, number + 100)])
        say(file, "version: 1\nflows: []\n")

        def all_there() -> bool:
            reached = {p: m[-1].next for p, m in link.mappings(customers).items() if m}
            return reached == {p: len(r) for p, r in enumerate(read_all(link.source, customers))}

        eventually(all_there, "all to be delivered", 60)
        health = replicator.application.health

        def counted() -> float:
            return sum(counts(health, "records", customers) + counts(health, "filtered", customers))

        eventually(lambda: counted() >= number + 100, "figures", 60)
        time.sleep(2)
        assert counted() == number + 100 and min(counts(health, "filtered", customers)) > 0
    versions = assert_as_piped(link, customers, file)
    assert {p: sorted(set(v)) for p, v in versions.items()} == {0: [1, 2], 1: [1, 2]}
    assert all(v == sorted(v) for v in versions.values()), "a version never goes back"
    assert set(link.control().pipelines) == {1, 2}, "a bad file is no version"
    for version in link.control().pipelines.values():
        assert KEY not in version.definition and '"keys":{"pii":"' in version.definition
    assert_copied(link, plain)
    assert {m.pipeline for m in link.mappings(plain)[0]} <= {1, 2}
    there, here = (batches_of(at, plain, 3000) for at in (link.source, link.target))
    wholes = [batch for header, batch in there if header.size >= 64 << 10]
    assert wholes and set(wholes) <= {batch for _, batch in here}, "batches of a topic that no flow takes"
    opener = Opener([Cipher(KEY.encode(), "pii")])
    copies = [seen for records in read_all(link.target, customers) for seen in records]
    for seen in copies:
        assert json.loads(opener.open(seen.value or b""))["notes"] == [{"secret": SECRET.decode()}]
    assert opener.opened == len(copies) > 0
    folder = clusters[2]
    assert {customers, f"{name}.staging"} <= {log.rpartition("-")[0] for log in logs_hold(folder, OPEN)}
    for hidden in (SECRET, KEY.encode()):
        assert logs_hold(folder, hidden) == set()


def test_a_stage_that_fails_halts_until_the_pipeline_is_another_or_the_record_is_given_up(
    clusters: tuple[str, str, Path], file: Path, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise: what is before the record arrives, nothing behind it does; an accepted loss skips that record
    alone; a new version goes on with it; nothing of the record is shown."""
    name = names.link
    customers = f"{name}.t.customers"
    link = link_of(clusters, name, file)
    create_topic(link.source, customers)
    bad = Record(b"{" + SECRET, b"bad")
    produce(link.source, customers, [customer(0), customer(1), bad, customer(3), bad, customer(6)])
    with link.running():
        eventually(lambda: link.halted() == {(customers, 0): HaltReason.STAGE_FAILED}, "the halt", 60)
        (halt,) = link.control().halts.values()
        assert (halt.application, halt.next, halt.available) == ("replicator", 2, 3)
        assert halt.detail == f"{customers}-0: record 2: stage 1 (filter) fails: the value is no JSON"
        eventually(lambda: link.arrived(customers) == [2], "what is before it")
        time.sleep(1)
        assert link.arrived(customers) == [2]
        done = CliRunner().invoke(accept_loss, [customers, "0", "--yes"], env=link.variables)
        assert "the loss of [2, 3) is accepted" in done.output, done
        eventually(lambda: link.arrived(customers) == [3], "what is behind the first")
        eventually(lambda: link.halted(), "the second halt")
        assert next(iter(link.control().halts.values())).next == 4
        say(file, FIRST.replace("    stages:", "    onError: skip\n    stages:"))
        eventually(lambda: link.arrived(customers) == [4], "what is behind the second")
        eventually(lambda: not link.halted(), "no halt")
    assert [r.key for r in read_all(link.target, customers)[0]] == [b"k0", b"k1", b"k3", b"k6"]
    assert [m.lost for m in link.mappings(customers)[0] if m.lost] == [1]
    assert SECRET.decode() not in caplog.text and KEY not in caplog.text


def test_without_a_pipeline_again_there_is_a_version_and_a_successor_without_its_key_says_so(
    clusters: tuple[str, str, Path], file: Path, names: Names
) -> None:
    """Promise: what comes after a pipeline is taken away is told from what came before; groups are translated
    over what was left out, and not back."""
    name = names.link
    customers = f"{name}.t.customers"
    link = link_of(clusters, name, file, CONSUMER_GROUPS="g")
    create_topic(link.source, customers)
    produce(link.source, customers, [customer(i) for i in range(6)])
    assert link.copy() == (0, 0)
    (file.parent / "key").rename(file.parent / "no-key")
    with pytest.raises(Exception, match="key pii: can't read"):
        ThreadReplicator(link.settings, True)
    del link.variables["PIPELINE"]
    produce(link.source, customers, [customer(i) for i in range(6, 12)])
    assert link.copy() == (0, 0)
    (file.parent / "no-key").rename(file.parent / "key")
    assert assert_as_piped(link, customers, file)[0] == sorted(assert_as_piped(link, customers, file)[0])
    assert {m.pipeline for m in link.mappings(customers)[0]} == {1, 2}
    assert json.loads(link.control().pipelines[2].definition)["flows"] == []
    # 2 and 5 were left out, 8 was not.
    for at, wanted in ((2, 3), (5, 6), (8, 8)):
        commit(link.source, "g", customers, at)
        once(link)
        found = group_offsets(link)[GroupKey("g", customers, 0)]
        copies = {s + i: d + i for m in link.mappings(customers)[0] for s, d, n in m.runs for i in range(n)}
        assert found.offset == committed(link.target, "g", customers) == copies[wanted]
    with pytest.raises(LinkRefused, match="--reverse: .*pipeline"):
        run(link, "--reverse")


DEAD = FIRST.replace("    stages:", "    onError: dead-letter\n    stages:")
PAYLOAD = FIRST.replace("    stages:", "    onError: {dead-letter: {payload: true}}\n    stages:")


def letters(link: Link, isolation: str = "read_committed") -> list[Seen]:
    found = read_all(link.target, link.settings.dead_letters_topic, isolation)
    return [letter for partition in found for letter in partition]


def places(found: list[Seen]) -> Counter[tuple[str, int, int]]:
    """Source topic, partition and offset of dead letters."""
    said = [{name: (item or b"").decode() for name, item in letter.headers or ()} for letter in found]
    return Counter(
        (s["verbatim.source.topic"], int(s["verbatim.source.partition"]), int(s["verbatim.source.offset"]))
        for s in said
    )


def dies_in_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each second owner of a staging partition is gone once all of a transaction's records are there, and
    leaves it open; whoever comes next finds it."""
    commit, numbers = Transaction.commit, defaultdict[int, Iterator[int]](counting)

    def killed(transaction: Transaction) -> None:
        if transaction.moved and next(numbers[transaction.state.partition]) % 2 == 0:
            assert transaction._producer is not None
            transaction._producer.flush(10)
            raise UncleanTransaction("gone here")
        commit(transaction)

    def left_open(fencing: FencingProducer, _: bool) -> None:
        fencing.client.close()
        fencing.keep_to_one()

    monkeypatch.setattr(Transaction, "commit", killed)
    monkeypatch.setattr(FencingProducer, "drop", left_open)


def verified(link: Link) -> tuple[int, list[dict[str, Any]]]:
    done = CliRunner().invoke(cli, ["verify", "--output", "json"], env=link.variables)
    assert done.exit_code in (0, 1) and done.stdout, (done, done.exc_info)
    return done.exit_code, json.loads(done.stdout)["partitions"]


@pytest.mark.whole
def test_records_that_a_stage_fails_on_become_dead_letters_once_whatever_becomes_of_transactions(
    clusters: tuple[str, str, Path], file: Path, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: each is one committed dead letter, and nothing of it is anywhere at the target; letters
    of transactions that were given up are seen by nobody; the others arrive once; `verify` counts all of it
    and finds what is done to it; groups are translated to the next record that was kept."""
    name = names.link
    customers = f"{name}.t.customers"
    say(file, DEAD)
    link = link_of(clusters, name, file, CONSUMER_GROUPS="g")
    create_topic(link.source, customers, 2)
    dies_in_transactions(monkeypatch)
    of_others = logs_hold(clusters[2], SECRET)
    bad = Record(b'{"kind":"order","email":"a","email":"%s"}' % SECRET, SECRET, headers=[("x", SECRET)])
    there: list[Record] = []
    with link.running() as (_, deduplicator):
        for i in range(40):
            there += [customer(i, i % 2), replace(bad, partition=i % 2)]
            produce(link.source, customers, there[-2:])
            time.sleep(0.05)

        def all_there() -> bool:
            reached = {p: m[-1].next for p, m in link.mappings(customers).items() if m}
            return reached == {0: 40, 1: 40}

        eventually(all_there, "all to be delivered", 120)
        health = deduplicator.application.health
        eventually(lambda: min(counts(health, "dead_letters", customers)) >= 20, "figures", 60)
        time.sleep(2)
        assert counts(health, "dead_letters", customers) == [20, 20]
    wanted = Counter((customers, p, n) for p in (0, 1) for n in range(1, 40, 2))
    found = letters(link)
    assert places(found) == wanted
    assert places(letters(link, "read_uncommitted")).total() > 40, "some were given up"
    assert {(letter.key, letter.value) for letter in found} == {(None, None)}
    said = dict(found[0].headers or ())
    assert said["verbatim.stage"] == b"stage 1 (filter)" or said["verbatim.stage"] == b"stage 2 (mask)"
    assert_as_piped(link, customers, file)
    mapped = [m for p in link.mappings(customers).values() for m in p if m.dead_letters is not None]
    assert sum(n for m in mapped if m.dead_letters for _, _, n in m.dead_letters.runs) == 40
    assert logs_hold(clusters[2], SECRET) <= of_others
    code, report = verified(link)
    assert code == 0, report
    assert [(p["dead_letters"], p["source_records"], p["findings"]) for p in report] == [(20, 40, {})] * 2

    commit(link.source, "g", customers, 1)
    once(link)
    copies = {s + i: d + i for m in link.mappings(customers)[0] for s, d, n in m.runs for i in range(n)}
    after = min(offset for offset in copies if offset > 1)
    assert committed(link.target, "g", customers) == copies[after]

    again = found[0]
    produce(link.target, link.settings.dead_letters_topic, [Record(None, None, headers=again.headers)])
    code, report = verified(link)
    assert (code, [list(p["findings"]) for p in report if p["findings"]]) == (1, [["duplicated"]])


def test_a_dead_letter_has_its_record_where_that_is_asked_for_and_a_topic_that_does_not_fit_halts_by_name(
    clusters: tuple[str, str, Path], file: Path, names: Names
) -> None:
    """Promise: what could not be written is, once it can, in order and once."""
    name = names.link
    customers, dead = f"{name}.t.customers", f"{name}.dead-letters"
    say(file, PAYLOAD)
    link = link_of(clusters, name, file)
    create_topic(link.source, customers)
    create_topic(link.target, dead, 1)
    bad = Record(b"{" + ASKED_FOR, b"bad", timestamp=7, headers=[("x", None), ("x", b"2")])
    produce(link.source, customers, [customer(0), bad, customer(1), bad, customer(3)])
    with link.running():
        halted = {(customers, 0): HaltReason.DEAD_LETTERS}
        eventually(lambda: link.halted() == halted, "the halt", 60)
        (halt,) = link.control().halts.values()
        assert f"topic {dead} has 1 partitions, the link needs 2" in halt.detail
        assert sum(link.arrived(customers)) == 0
        delete_topic(link.target, dead)
        eventually(lambda: link.arrived(customers) == [3] and not link.halted(), "all to go on", 60)
    found = letters(link)
    assert [(letter.key, letter.value, (letter.headers or [])[:2]) for letter in found] == [
        (b"bad", b"{" + ASKED_FOR, [("x", None), ("x", b"2")])
    ] * 2
    assert dict(found[0].headers or ())["verbatim.source.timestamp"] == b"7"
    assert places(found) == Counter([(customers, 0, 1), (customers, 0, 3)])
    code, report = verified(link)
    assert (code, report[0]["dead_letters"], report[0]["findings"]) == (0, 2, {})
    holders = {log.rpartition("-")[0] for log in logs_hold(clusters[2], b"{" + ASKED_FOR)}
    assert holders == {f"{name}.staging", dead}


def test_more_than_are_tolerated_halt_and_who_is_started_again_counts_on(
    clusters: tuple[str, str, Path], file: Path, names: Names
) -> None:
    """Promise: each start goes on with what those before it have let by; a halt is met again; what is let by
    is a dead letter once; with another rate the partition goes on, and `verify` has nothing to find."""
    name = names.link
    customers = f"{name}.t.customers"
    said = "onError: {tolerate: {records: 2, per: 1000}, dead-letter: {}}"
    say(file, FIRST.replace("    stages:", f"    {said}\n    stages:"))
    link = link_of(clusters, name, file)
    create_topic(link.source, customers)
    bad = Record(b"{" + SECRET, b"bad")
    for number, codes in enumerate(((0, 0), (0, 0), (3, 0), (3, 0))):
        produce(link.source, customers, [customer(0), bad] if number < 3 else [customer(0)])
        assert link.copy() == codes, number
    assert places(letters(link)) == Counter([(customers, 0, 1), (customers, 0, 3)])
    (halt,) = link.control().halts.values()
    assert (halt.reason, halt.next) == (HaltReason.STAGE_FAILED, 5)
    assert "of the offsets from 0 on, 2 of 1000 are tolerated" in halt.detail
    assert link.arrived(customers) == [3]
    say(file, file.read_text().replace("records: 2", "records: 3"))
    assert link.copy() == (0, 0) and link.arrived(customers) == [4]
    assert places(letters(link)) == Counter((customers, 0, n) for n in (1, 3, 5))
    code, report = verified(link)
    assert (code, report[0]["dead_letters"], report[0]["findings"]) == (0, 3, {}), report
    assert_as_piped(link, customers, file)


MODULE = """\
import pyarrow as pa
import pyarrow.compute as pc


def marked(rows):
    kept = rows.filter(pc.invert(pc.equal(rows.column("key"), b"k2")))
    for value in kept.column("value").to_pylist():
        value.decode()
    return kept.set_column(3, "value", pc.binary_join_element_wise(kept.column("value"), b"MARK", b" "))
"""


def test_a_function_of_ones_own_and_another_text_of_it(
    clusters: tuple[str, str, Path], file: Path, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: each record is what the function makes of it, by the text that its version names; `verify`
    says what it can't compare, since another text is there by now."""
    name = names.link
    customers = f"{name}.t.customers"
    module = f"module_of_{name.replace('-', '_').replace('.', '_')}"
    monkeypatch.syspath_prepend(file.parent)
    code = file.parent / f"{module}.py"
    code.write_text(MODULE.replace("MARK", "one"))
    say(
        file,
        f"version: 1\nflows: [{{topics: ['.*customers'], onError: skip, stages: [python: '{module}:marked']}}]",
    )
    link = link_of(clusters, name, file)
    create_topic(link.source, customers)
    sent = [Record(b"v%d" % n, b"k%d" % n, headers=[("h", b"%d" % n)]) for n in range(4)]
    produce(link.source, customers, [*sent, Record(b"\xff", b"k4")])
    with link.running():
        eventually(lambda: link.arrived(customers) == [3], "the first", 60)
        assert verified(link)[0] == 0
        code.write_text(MODULE.replace("MARK", "two"))
        eventually(lambda: len(link.control().pipelines) == 2, "the second version", 60)
        produce(link.source, customers, sent)
        eventually(lambda: link.arrived(customers) == [6], "what came behind", 60)
    copies = read_all(link.target, customers)[0]
    assert [copy.value for copy in copies] == [
        b"v0 one",
        b"v1 one",
        b"v3 one",
        b"v0 two",
        b"v1 two",
        b"v3 two",
    ]
    assert [copy.headers for copy in copies[:3]] == [[("h", b"0")], [("h", b"1")], [("h", b"3")]]
    told = [json.loads(version.definition)["code"] for version in link.control().pipelines.values()]
    assert [list(one) for one in told] == [[module]] * 2 and told[0] != told[1]
    code_, report = verified(link)
    assert (code_, report[0]["findings"], report[0]["equal"]) == (0, {}, 3), report
    assert f"its module {module} is another one here" in " ".join(report[0]["notes"])


SQL = """\
version: 1
flows:
  - topics: ['.*customers']
    value: json
    onError: dead-letter
    stages:
      - sql: |
          SELECT * REPLACE ((value->>'$.n')::BIGINT AS timestamp, value->>'$.name' AS key)
          FROM records WHERE value->>'$.bot' IS DISTINCT FROM 'true'
"""


def test_sql_in_the_path_of_records(clusters: tuple[str, str, Path], file: Path, names: Names) -> None:
    """Promise: each record is what the SELECT makes of it, row by row; what it fails on is a dead letter;
    what it leaves be stays to the byte; `verify`, which runs it again, has nothing to find."""
    name = names.link
    customers = f"{name}.t.customers"
    say(file, SQL)
    link = link_of(clusters, name, file)
    create_topic(link.source, customers, 2)
    # Of the past they would be gone by now, for the topic's retention.
    now = int(time.time() * 1000)
    values = [
        b'{"n":%d, "name":"a%d", "x" : 1.10, "bot":%s}' % (now + i, i, b"true" if i % 5 == 4 else b"false")
        for i in range(40)
    ]
    there = [Record(value, b"k", i % 2, headers=[("h", b"1"), ("h", None)]) for i, value in enumerate(values)]
    produce(link.source, customers, [*there, Record(b'{"n":"secret"}', b"k", 0), Record(b"{", b"k", 1)])
    assert link.copy() == (0, 0)
    here = [seen for partition in read_all(link.target, customers) for seen in partition]
    wanted = {i: values[i] for i in range(40) if i % 5 != 4}
    assert {seen.timestamp - now: seen.value for seen in here} == wanted and len(here) == len(wanted)
    assert all(seen.key == b"a%d" % (seen.timestamp - now) for seen in here)
    assert all(seen.headers == [("h", b"1"), ("h", None)] for seen in here)
    assert places(letters(link)) == Counter([(customers, 0, 20), (customers, 1, 20)])
    assert not any(b"secret" in (item or b"") for letter in letters(link) for _, item in letter.headers or ())
    code, report = verified(link)
    assert (
        code == 0 and [(p["dead_letters"], p["filtered"], p["findings"]) for p in report] == [(1, 4, {})] * 2
    )
    (version,) = link.control().pipelines.values()
    assert list(json.loads(version.definition)["code"]) == ["duckdb"]
