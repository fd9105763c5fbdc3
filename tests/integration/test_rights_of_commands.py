"""The least rights of the commands that move topics, groups and links: enough, each needed, and nothing else
is tried.

The rights are those of common/link/permissions.py, which the reference shows. One link goes through all of
the commands, each as a user of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from common.errors import VerbatimError
from common.link.permissions import (
    BACK,
    COMMANDS,
    CUTOVER,
    DEDUPLICATOR,
    DEMOTE,
    DRILL,
    MOVES,
    OFFSETS,
    REHEARSE,
    REPLICATOR,
    SOURCE,
    TARGET,
    UNDO,
    Right,
)
from tests.support.brokers import Record, create_topic, produce
from tests.support.guarded import Guarded, commit, includes, variables
from tests.support.harness import Running, stop_all
from tests.support.hooks import hooks
from tests.support.secured import Denied, SecuredCluster
from verbatim.main import cli

NAME = "moved"


def of(command: str) -> list[Right]:
    return [right for right in COMMANDS if right.principal == command]


class Operators:
    """Users of a link's commands."""

    def __init__(self, link: Guarded, folder: Path) -> None:
        self.link = link
        self.folder = folder
        self.environ = {command: self._let_in(command) for command in MOVES}

    def user(self, command: str) -> str:
        return f"{NAME}-{command.replace(' ', '')}"

    def _let_in(self, command: str) -> dict[str, str]:
        mine = dict(self.link.links[OFFSETS].variables)
        for which, name in (("SOURCE", SOURCE), ("DESTINATION", TARGET)):
            at, user = self.link.clusters[name], self.user(command)
            mine |= variables(which, at.user(user), at.folder)
            at.grant(user, [self.link.on(right) for right in of(command) if right.cluster == name])
        return mine

    def run(self, command: str, *args: str) -> tuple[int, str]:
        """Its exit code, and what it says."""
        if command in (CUTOVER, REHEARSE):
            args = (*args, "--memory", str(self.folder / "memory.json"), "--quiet", "0.2", "--wait", "20")
        elif command != DEMOTE:
            args = (*args, "--wait", "60")
        done = CliRunner().invoke(cli, [*command.split(), *args], env=self.environ[command])
        if isinstance(done.exception, VerbatimError):
            return done.exception.exit_code, str(done.exception)
        return done.exit_code, done.output

    def denied(self, command: str) -> list[Denied]:
        return [one for at in self.link.clusters.values() for one in at.denied(self.user(command))]

    def does(self, command: str, *args: str) -> None:
        """With its rights, and tries nothing else."""
        tried = len(self.denied(command))
        code, said = self.run(command, *args)
        assert code == 0, (command, said)
        assert self.denied(command)[tried:] == [], command

    def refuses(self, right: Right, *args: str) -> None:
        """Without it, and those that include it: names what it is about, and says that it is a right."""
        taken = [right, *(r for r in of(right.principal) if includes(r, right))]
        at, user = self.link.clusters[right.cluster], self.user(right.principal)
        at.revoke(user, [self.link.on(one) for one in taken])
        try:
            code, said = self.run(right.principal, *args)
        finally:
            at.grant(user, [self.link.on(one) for one in taken])
        lines = [line for line in said.splitlines() if _is_about_rights(line)]
        name = self.link.on(right).name.removesuffix("*")
        assert code != 0 and [line for line in lines if name in line], f"{right}: {code}\n{said}"


def _is_about_rights(line: str) -> bool:
    return any(words in line for words in ("not allowed", "uthorization failed", "grant "))


@contextmanager
def at_work(link: Guarded) -> Iterator[list[Running]]:
    running = [link.start(principal, bounded=False) for principal in (REPLICATOR, DEDUPLICATOR)]
    try:
        yield running
    finally:
        stop_all(running, 60)


@pytest.mark.timeout(900)
@pytest.mark.whole
def test_each_move_does_with_the_rights_of_the_reference_tries_nothing_else_and_names_one_that_it_lacks(
    guarded: tuple[SecuredCluster, SecuredCluster], tmp_path: Path
) -> None:
    """Promise: a topic alone and back, all of the link, undone, a drill with records that are never copied,
    and turned round with these deleted: each as a user with what the reference lists for it. Without one of
    those rights the command refuses in a line that names topic or group, and may be run again."""
    link = Guarded(guarded, NAME)
    at, to = (link.clusters[which].bootstrap_servers for which in (SOURCE, TARGET))
    # A driver that looks for topics while the source is away ends only after that.
    for principal in (REPLICATOR, DEDUPLICATOR):
        link.links[principal].variables["TOPIC_REFRESH_INTERVAL"] = "1h"
    single, whole = link.topic("single"), link.topic("whole")
    for topic in (single, whole):
        create_topic(at, topic, 1, {"retention.ms": "-1"})
        produce(at, topic, [Record(b"%d" % n) for n in range(10)])
        commit(at, f"{NAME}-g.{topic}", topic, 5)
    assert [link.run(principal) for principal in (REPLICATOR, DEDUPLICATOR, OFFSETS)] == [0, 0, 0]
    operators = Operators(link, tmp_path)

    def a_right(command: str, operation: str, name: str) -> Right:
        (found,) = [right for right in of(command) if (right.operation, right.name) == (operation, name)]
        return found

    with at_work(link) as running:
        operators.does(REHEARSE)
        for right in of(REHEARSE):
            if not right.when.startswith("else "):
                operators.refuses(right)
        operators.does(CUTOVER, "--topic", single, "--producers-first")
        for operation, name in (("WRITE", "<link>.control"), ("READ", "<destinations>")):
            operators.refuses(a_right(DEMOTE, operation, name), single, "--quiet", "0.2")
        operators.does(DEMOTE, single, "--quiet", "0.2")
        commit(at, f"{NAME}-g.{whole}", whole, 6)
        operators.does(CUTOVER)
        commit(to, f"{NAME}-g.{whole}", whole, 8)
        operators.refuses(a_right(UNDO, "READ", "<groups>"))
        operators.does(UNDO)
        commit(at, f"{NAME}-g.{whole}", whole, 9)

        def stop() -> None:
            running[0].application.stopping.set()
            running[0].wait(60)

        def restore() -> None:
            guarded[0].resume()
            produce(at, whole, [Record(b"never copied")])

        with hooks(tmp_path, {"cut": guarded[0].pause, "stop": stop, "restore": restore}) as commands:
            operators.does(DRILL, *commands)
    file = tmp_path / "back.yaml"
    args = ["--settings", str(file), "--tails", "empty", "--export", str(tmp_path / "tail")]
    for operation, name in (
        ("DESCRIBE", "<link>.*"),
        ("DESCRIBE", "<link>.back.control"),
        ("WRITE", "<link>.control"),
        ("DELETE", "<topics>"),
    ):
        operators.refuses(a_right(BACK, operation, name), *args)
    operators.does(BACK, *args)
    assert f"{NAME}.back" in file.read_text()
