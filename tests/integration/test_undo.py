"""`verbatim cutover --undo` on real brokers: after a cutover that came to nothing it says, after a look, that
nothing has to be undone, or takes back exactly what has to be."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from common.errors import SettingsError
from offsets.groups import Groups
from tests.conftest import Kafka, Names
from tests.integration.test_cutover import KEPT, cutover, load, refused_at, work
from tests.integration.test_group_moves import Killed, killed_at, rest
from tests.integration.test_offsets import commit, committed
from tests.support.brokers import Record, create_topic, member, produce, read_all
from tests.support.harness import Link
from tests.support.unchanged import assert_unchanged, everything
from verbatim.main import cli
from verbatim.moves.steps import Doubt


def undo(link: Link, *args: str, wait_s: float = 10) -> tuple[dict[str, Any], int]:
    """The report and the exit code; raises what kills it."""
    options = ["--undo", "--output", "json", "--wait", str(wait_s), *args]
    found = CliRunner().invoke(cli.commands["cutover"], options, env=link.variables, catch_exceptions=False)
    return json.loads(found.stdout), found.exit_code


def failed(link: Link, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cutover that has written the groups' offsets, and then refuses."""

    def differs(*_: Any) -> Any:
        raise Doubt("they differ")

    with monkeypatch.context() as patch:
        patch.setattr("verbatim.moves.cutover.verify_link", differs)
        report, code = cutover(link, memory)
    assert (code, refused_at(report)) == (1, "verify"), report


def test_under_load_a_group_goes_on_at_the_source_whether_it_has_read_at_the_target_or_not(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, to, topic = source.bootstrap_servers, target.bootstrap_servers, names.topic()
    stayed, strayed = f"{names.link}.stayed", f"{names.link}.strayed"
    create_topic(at, topic, 3, KEPT)
    link = Link(at, to, names.link, topic)
    written: list[bytes] = []
    seen: dict[str, list[bytes]] = {}
    with link.running():
        with load(at, topic, written):
            for group in (stayed, strayed):
                with closing(member(at, group, topic)) as consumer:
                    seen[group] = work(consumer, 60)
        failed(link, tmp_path / "memory.json", monkeypatch)
        assert any(committed(to, strayed, topic, p) is not None for p in range(3))
        stand = {at: [committed(at, stayed, topic, p) for p in range(3)] for at in (at, to)}
        report, code = undo(link)
        assert (code, report["groups"]) == (0, []), report
        assert "none of 2 groups has read on" in report["steps"][2]["found"][0]
        # Started at the target too early.
        with closing(member(to, strayed, topic)) as consumer:
            seen[strayed] += work(consumer, 20)
            report, code = undo(link)
            assert (code, refused_at(report)) == (1, "groups")
            assert f"{strayed} has members at the target" in report["refused"]
        # Killed once it is written, or before.
        for after in (False, True):
            with monkeypatch.context() as patch:
                killed_at(patch, Groups, "commit", after)
                with pytest.raises(Killed):
                    undo(link)
        report, code = undo(link)
        assert (code, report["groups"]) == (0, []), report
        assert stand == {at: [committed(at, stayed, topic, p) for p in range(3)] for at in (at, to)}
        with load(at, topic, written, first=1_000_000):
            for group in (stayed, strayed):
                with closing(member(at, group, topic)) as consumer:
                    seen[group] += work(consumer, 40)
            # The link copies on, and what it copies is not taken for somebody else's.
            report, code = undo(link)
            assert code == 0, report
    for group in (stayed, strayed):
        with closing(member(at, group, topic)) as consumer:
            seen[group] += rest(consumer, len(written) - len(seen[group]))
        assert Counter(seen[group]) == Counter(written), group


@pytest.mark.whole
def test_records_that_were_produced_at_the_target_are_named_and_nothing_is_changed(
    source: Kafka, target: Kafka, names: Names, tmp_path: Path
) -> None:
    at, to, topic, group = (
        source.bootstrap_servers,
        target.bootstrap_servers,
        names.topic(),
        f"{names.link}.g",
    )
    create_topic(at, topic, 2, KEPT)
    produce(at, topic, [Record(b"%d" % i, partition=i % 2) for i in range(20)])
    link = Link(at, to, names.link, topic, CONSUMER_GROUPS=rf"{names.link}\..*")
    assert link.copy() == (0, 0)
    commit(at, group, topic, 3)
    assert cutover(link, tmp_path / "memory.json", quiet_s=0.1)[1] == 0
    before = {bootstrap: everything(bootstrap) for bootstrap in (at, to)}
    text = CliRunner().invoke(cli.commands["cutover"], ["--undo"], env=link.variables)
    lines = text.stdout.splitlines()
    assert text.exit_code == 0 and lines[-1].startswith("ok: nothing has to be undone")
    assert "start again: replicator, deduplicator" in lines[-2]
    for bootstrap in (at, to):
        assert_unchanged(bootstrap, before[bootstrap])
    produce(to, topic, [Record(b"theirs", partition=1)])
    report, code = undo(link, wait_s=1)
    assert (code, refused_at(report)) == (1, "target")
    end = read_all(to, topic)[1][9].offset + 1
    assert f"{topic}-1: from offset {end} on are records that the link has not copied" in report["refused"]
    assert committed(at, group, topic) == 3
    with pytest.raises(SettingsError, match="--undo: goes with no .*--rehearse"):
        undo(link, "--rehearse")
