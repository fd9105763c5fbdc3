"""Several links in one process: each stops, fails and begins anew by itself."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest

from common.app.links import links as links_module
from common.app.links import runner as runner_module
from common.app.links.links import Links
from common.app.links.pages import state_of
from common.app.links.runner import NoSlot
from common.errors import LinkRefused
from tests.support.harness import eventually
from tests.support.made_up_links import LINK, links_of, refusing, running


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for long."""
    monkeypatch.setattr(links_module, "LOOK_S", 0.05)
    monkeypatch.setattr(links_module, "TURN_S", 0.02)
    monkeypatch.setattr(runner_module, "FIRST_WAIT_S", 0.3)
    monkeypatch.setattr(runner_module, "LOOK_S", 0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("east", "north", "west"):
        (tmp_path / f"{name}.yaml").write_text(LINK)
    return tmp_path


def states(links: Links) -> dict[str, str]:
    return {name: state_of(runner) for name, runner in links.runners.items()}


def test_files_that_come_and_go_are_links_that_begin_and_end(folder: Path) -> None:
    with running(links_of(folder)) as links:
        eventually(lambda: states(links) == dict.fromkeys(("east", "north", "west"), "leads"), "all to lead")
        east = links.runners["east"]
        (folder / "north.yaml").unlink()
        (folder / "south.yaml").write_text(LINK)
        eventually(lambda: states(links) == dict.fromkeys(("east", "south", "west"), "leads"), "the new one")
        assert links.runners["east"] is east, "what has not changed goes on"
    assert all(runner.join(0) for runner in links.runners.values())


def test_a_link_that_fails_stops_only_itself_and_begins_anew(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), running(links_of(folder, refusing("north"))) as links:
        eventually(
            lambda: states(links) == {"east": "leads", "north": "failed", "west": "leads"}, "one to fail"
        )
        eventually(lambda: links.runners["north"].failures >= 3, "it to be tried again")
        assert links.runners["north"].failed == "north is refused"
        assert {links.runners[name].failures for name in ("east", "west")} == {0}
        (folder / "north.yaml").write_text(f"{LINK}APPLICATION_NAME: south\n")
        eventually(lambda: states(links)["north"] == "leads", "other settings to help")
    assert any("begins anew" in m and "north is refused" in m for m in caplog.messages)


def test_a_file_that_says_nonsense_is_that_links_failure(folder: Path) -> None:
    (folder / "north.yaml").write_text("NO_SUCH_SETTING: 1\n")
    with running(links_of(folder)) as links:
        eventually(
            lambda: states(links) == {"east": "leads", "north": "failed", "west": "leads"}, "one to fail"
        )
        assert "NO_SUCH_SETTING (in " in (links.runners["north"].failed or "")


def test_of_two_links_with_one_name_the_second_is_refused(folder: Path) -> None:
    (folder / "north.yaml").write_text(f"{LINK}APPLICATION_NAME: east\n")
    with running(links_of(folder)) as links:
        eventually(
            lambda: sorted(states(links).values()) == ["failed", "leads", "leads"], "one to be refused"
        )
        (why,) = (runner.failed for runner in links.runners.values() if runner.failed)
        assert why.startswith("APPLICATION_NAME: east is the link of ")


def test_a_change_that_takes_a_restart_restarts_that_link_alone(folder: Path) -> None:
    with running(links_of(folder)) as links:
        eventually(lambda: set(states(links).values()) == {"leads"}, "all to lead")
        instances = {name: runner.instance for name, runner in links.runners.items()}
        (folder / "west.yaml").write_text(f"{LINK}STAGING_PARTITIONS: 3\n")

        def anew() -> bool:
            found = links.runners["west"].instance
            return found is not None and found.settings.staging_partitions == 3

        eventually(anew, "the link to begin anew")
        assert links.runners["east"].instance is instances["east"]
        assert links.runners["west"].failures == 0


def test_a_folder_that_can_not_be_read_for_a_while_ends_nothing(folder: Path) -> None:
    with running(links_of(folder)) as links:
        eventually(lambda: set(states(links).values()) == {"leads"}, "all to lead")
        instances = {name: runner.instance for name, runner in links.runners.items()}
        folder.rename(folder.with_name("away"))
        time.sleep(0.3)
        folder.with_name("away").rename(folder)
        time.sleep(0.2)
        assert {name: runner.instance for name, runner in links.runners.items()} == instances


def test_links_that_end_by_themselves_end_the_process_with_the_greatest_code(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = threading.Event()

    def does(name: str) -> int:
        if name == "west":
            ended.wait(10)
            return 1
        ended.set()
        return refusing("north")(name) or 0

    assert links_of(folder, does, once=True).serve() == LinkRefused.exit_code > 1
    assert "error: north: north is refused" in capsys.readouterr().err


def test_a_link_that_ends_by_itself_waits_for_a_slot_until_others_have_ended(folder: Path) -> None:
    """Promise: a run to the end takes all links, however few slots there are."""
    waits, ended = threading.Event(), threading.Event()

    def does(name: str) -> int:
        if name == "north" and not ended.is_set():
            waits.set()
            raise NoSlot("its file comes last")
        if name == "east":
            assert waits.wait(10)
            ended.set()
        return 0

    links = links_of(folder, does, once=True)
    assert links.serve() == 0
    assert links.runners["north"].code == 0 and links.runners["north"].failures >= 1


def test_each_line_of_the_log_names_its_link(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    from common import log_lines

    seen: dict[str, str] = {}

    def does(name: str) -> int:
        seen[name] = log_lines.link()
        return 0

    assert links_of(folder, does, once=True).serve() == 0
    assert seen == {name: name for name in ("east", "north", "west")}
    assert log_lines.link() == ""
