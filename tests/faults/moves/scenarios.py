"""The scenarios: each is one command as an operator runs it, with what goes before and comes behind, under
load. `play` runs the command, kills it, and runs it again."""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
import yaml

from common.errors import KafkaTimeout
from deduplicator.lane.delivery import IDLE_POSITION_S
from offsets.service import Service
from tests.faults.moves import oracle
from tests.faults.moves.oracle import SOURCE, TARGET, Partition
from tests.faults.moves.stage import DEDUPLICATOR, OFFSETS, REPLICATOR, Stage
from tests.support.brokers import Record, produce
from tests.support.harness import Link, eventually
from tests.support.hooks import hooks
from tests.support.unchanged import everything

WAIT = ("--wait", "40s")
QUIET = ("--quiet", "0.3s")
READ_ON_S = 0.6


class Play(Protocol):
    """Runs a command until it is done: what it says then; None where it was given up after a kill, or for
    good."""

    random: random.Random
    passed: list[str]
    """The points that were passed."""

    def __call__(self, *words: str, may_give_up: bool = False) -> dict[str, Any] | None: ...


@dataclass(frozen=True)
class Scenario:
    """`drive` plays it on a stage that has begun; `variables` are the link's own."""

    drive: Callable[[Stage, Play], None]
    variables: tuple[tuple[str, str], ...] = ()


# Groups


def move_group(stage: Stage, play: Play) -> None:
    """Two groups go to the target while producers stay; the third reads on at the source."""
    stage.stop_reading(1, 2)
    moved = play("move-group", stage.group(1), stage.group(2), *WAIT, may_give_up=True)
    if moved is None and play.random.random() < 0.5:
        _take_back(stage)
    there = () if moved is None else (1, 2)
    stage.finish(dict.fromkeys(stage.topics.values(), SOURCE), at_target=there)
    _copied_on(stage)


def move_group_back(stage: Stage, play: Play) -> None:
    """They have read on at the target, and go to the source again."""
    stage.stop_reading(1, 2)
    _done(stage, "move-group", stage.group(1), stage.group(2), *WAIT)
    stage.read_at(TARGET, 1, 2)
    time.sleep(READ_ON_S)
    stage.stop_reading(1, 2)
    play("move-group", "--back", stage.group(1), stage.group(2), *WAIT)
    stage.finish(dict.fromkeys(stage.topics.values(), SOURCE))
    _copied_on(stage)


def _take_back(stage: Stage) -> None:
    """Given up, they are taken back: refused where nothing had begun."""
    ended = stage.command("move-group", "--back", stage.group(1), stage.group(2), *WAIT)
    refused = [g["refused"] for g in ended.report.get("groups", ()) if g["state"] == "refused"]
    if ended.code and not (refused and all("was not moved" in why for why in refused)):
        stage.problems.append(f"move-group --back ended with {ended.code}: {refused or ended.said[-200:]}")


# The whole link


def cutover(stage: Stage, play: Play) -> None:
    _stand_still(stage)
    moved = play("cutover", *WAIT, *QUIET, may_give_up=True)
    if moved is None:
        stage.finish(dict.fromkeys(stage.topics.values(), SOURCE))
        _copied_on(stage)
        return
    _handed_over(stage, "cutover")
    stage.finish(dict.fromkeys(stage.topics.values(), TARGET))
    stage.compare({SOURCE: (), TARGET: stage.topics.values()})


def undo(stage: Stage, play: Play) -> None:
    """The cutover was killed somewhere, or came to its end; two groups were started at the target."""
    _stand_still(stage)
    wish = play.random.choice([None, *(f"step {name} 1" for name in ("lag", "groups", "verify", "still"))])
    ended = stage.command("cutover", *WAIT, *QUIET, wish=wish)
    if not (ended.killed or ended.code == 0):
        stage.problems.append(f"the cutover before ended with {ended.code}: {ended.report.get('refused')}")
    if "step groups 1" in ended.passed:  # before, nobody can have thought that all was well
        stage.read_at(TARGET, 1, 2)
        time.sleep(READ_ON_S)
        stage.stop_reading(1, 2)
    play("cutover", "--undo", *WAIT)
    stage.finish(dict.fromkeys(stage.topics.values(), SOURCE))
    _copied_on(stage)


def rehearse(stage: Stage, play: Play) -> None:
    """Whenever it is killed, nothing has changed."""
    _stand_still(stage)
    stage.command("cutover", "--rehearse", *WAIT, *QUIET)  # until then some is on its way, and groups follow
    # What the applications write of themselves, if nothing happens.
    own = stage.link.settings.positions_topic

    def seen() -> dict[str, dict[Any, Any]]:
        clusters = (stage.link.source, stage.link.target)
        found = {f"{at} {what}": of for at in clusters for what, of in everything(at).items()}
        for of in found.values():
            of.pop(own, None)
        return found

    before = seen()
    for _ in range(9):  # the deduplicator commits a position that moved over duplicates only a little later
        time.sleep(IDLE_POSITION_S + 1)
        if before == (before := seen()):
            break
    play("cutover", "--rehearse", *WAIT, *QUIET)
    after = seen()
    for what, of in before.items():
        now = after[what]
        # A group without members and offsets Kafka forgets by itself.
        keys = now if what.endswith(" groups") else of.keys() | now.keys()
        if changed := sorted(str(key) for key in keys if of.get(key) != now.get(key)):
            stage.problems.append(f"{what}: changed: {', '.join(changed[:3])}")
    written = {p for p in play.passed if not p.startswith(("step ", "group's offsets"))}
    stage.problems += [f"a rehearsal came by: {name}" for name in sorted(written)]
    stage.finish(dict.fromkeys(stage.topics.values(), SOURCE))
    _copied_on(stage)


def failover(stage: Stage, play: Play) -> None:
    """Of a source that has nothing that was not copied."""
    _stand_still(stage)
    _on_record(stage)
    stage.stop(REPLICATOR, OFFSETS)
    play("failover", *WAIT)
    _handed_over(stage, "failover")
    stage.finish(dict.fromkeys(stage.topics.values(), TARGET))
    stage.compare({SOURCE: (), TARGET: stage.topics.values()})


def drill(stage: Stage, play: Play) -> None:
    """Killed in it, the operator lets the source back and starts what was stopped, and drills again."""
    _stand_still(stage)
    _on_record(stage)
    proxy = stage.world.proxy

    def cut() -> None:
        proxy.unreachable.add(1)
        proxy.cut(True)

    def ready() -> None:
        proxy.unreachable.clear()
        stage.start(*({REPLICATOR, *([OFFSETS] if stage.offsets else [])} - stage.apps.keys()))
        eventually(lambda: _leads(stage, REPLICATOR), "the replicator to lead", 60)

    def stop() -> None:
        with suppress(KafkaTimeout):  # A process has ended, too, if it has given up.
            stage.stop(REPLICATOR, OFFSETS)

    doing = {"cut": cut, "stop": stop, "restore": proxy.unreachable.clear}
    with hooks(stage.folder, doing) as options:
        stage.before_command = ready
        report = play("drill", *options, *WAIT)
        stage.before_command = lambda: None
    if report is not None and report["rpo"]["records"]:
        stage.problems.append(f"drill: {report['rpo']['records']} records are said to be lost, and none is")
    ready()
    stage.finish(dict.fromkeys(stage.topics.values(), SOURCE))
    _copied_on(stage)


def back(stage: Stage, play: Play) -> None:
    """There, and back again; at the source somebody may have written what was never copied."""
    _stand_still(stage)
    _done(stage, "cutover", *WAIT, *QUIET)
    stage.stop(*stage.apps)
    stage.load.write(stage.topics.values(), TARGET)
    stage.read_at(TARGET)
    eventually(lambda: _have_read_copies(stage), "groups to have read all that was copied", 60)
    file, export = stage.folder / "back.yaml", stage.folder / "export.jsonl"
    tails = play.random.choice(["refuse", "keep", "empty"])
    left = [] if tails == "refuse" else [Record(b"left %d" % i, partition=i % 2) for i in range(5)]
    produce(stage.link.source, stage.topics["a"], left)
    options = [] if tails == "refuse" else ["--tails", tails, "--export", str(export)]
    play("back", "--settings", str(file), *options, *WAIT)
    if left:
        exported = [
            base64.b64decode(orjson.loads(line)["value"]) for line in export.read_bytes().splitlines()
        ]
        stage.problems += [] if sorted(exported) == [r.value for r in left] else [f"exported: {exported}"]
    if not stage.link.control().steering.pauses:
        stage.problems.append("back is done, and the link is not paused")
    _turn_round(stage, {name: str(value) for name, value in yaml.safe_load(file.read_text()).items()})
    stage.finish(dict.fromkeys(stage.topics.values(), SOURCE))
    if tails == "keep":
        stage.kept = {record.value.decode() for record in left if record.value}
    stage.compare({SOURCE: stage.topics.values(), TARGET: ()})


def _turn_round(stage: Stage, said: dict[str, str]) -> None:
    """The link back copies, and its cutover comes to its end."""
    link = stage.link
    said = {**said, "LOG_LEVEL": "ERROR", "TOPIC_REFRESH_INTERVAL": "1s"}
    turned = Link(
        link.target, link.source, said["APPLICATION_NAME"], said["KAFKA_CLUSTERS_SOURCE_TOPIC"], **said
    )
    stage.start(REPLICATOR, DEDUPLICATOR, link=turned)
    try:
        eventually(lambda: turned.control().topics, "the link back to know its topics", 60)
        stage.link = turned
        ended = stage.command("accept-destination", *stage.topics.values(), json=False)
        stage.stop_reading()
        stage.load.write(stage.topics.values(), None)
        if ended.code:
            stage.problems.append(f"accept-destination ended with {ended.code}: {ended.said[-200:]}")
        _done(stage, "cutover", *WAIT, *QUIET)
    finally:
        stage.link = link
    stage.stop(*stage.apps)


# Single topics


def topics_move(stage: Stage, play: Play) -> None:
    """Two topics go to the target, the third stays; a group that reads of both is parted."""
    goes = stage.named("a", "c")
    stage.load.write(goes, None)
    stage.stop_reading(1, 2)
    moved = play("cutover", *_named(goes), *WAIT, *QUIET, may_give_up=True)
    if moved is None:
        ended = stage.command("demote", *goes, *QUIET)
        why = ended.report.get("refused") or ended.said[-200:]
        if ended.code:
            stage.problems.append(f"demote ended with {ended.code}: {why}")
        _at_home(stage)
        return
    _gone(stage)


def producers_first(stage: Stage, play: Play) -> None:
    """Producers go, consumers follow."""
    goes = stage.named("a", "c")
    stage.load.write(goes, None)
    play("cutover", *_named(goes), "--producers-first", *WAIT, *QUIET)
    stage.load.write(goes, TARGET)
    time.sleep(READ_ON_S)
    stage.stop_reading(1, 2)
    play("cutover", *_named(goes), *WAIT, *QUIET)
    _gone(stage)


def demote(stage: Stage, play: Play) -> None:
    """They were promoted, nobody has written there, and the link copies them again."""
    goes = stage.named("a", "c")
    stage.load.write(goes, None)
    stage.stop_reading(1, 2)
    _done(stage, "cutover", *_named(goes), *WAIT, *QUIET)
    stage.given_back = True
    play("demote", *goes, *QUIET)
    _at_home(stage)


def _gone(stage: Stage) -> None:
    goes = stage.named("a", "c")
    states = stage.promotions()
    stage.problems += [f"topic {t} is {states.get(t)}" for t in goes if states.get(t) != "promoted"]
    told = stage.link.control().steering.promotions
    ends: dict[Partition, tuple[int, int]] = {
        (t, p): at for t, of in told.items() for p, at in enumerate(zip(of.ends, of.copied, strict=False))
    }
    stage.problems += oracle.ends("promotion", ends, stage.copied_until(goes))
    _settled(stage)
    # A producer that was forgotten: nothing of it is copied.
    for topic in goes:
        produce(stage.link.source, topic, [Record(b"forgotten", partition=p) for p in (0, 1)])
    stage.kept = {"forgotten"}
    stage.finish({**dict.fromkeys(goes, TARGET), stage.topics["b"]: SOURCE})
    stage.compare({SOURCE: stage.named("b"), TARGET: stage.topics.values()})


def _at_home(stage: Stage) -> None:
    stage.problems += [f"topic {t} is {state}" for t, state in stage.promotions().items()]
    stage.finish(dict.fromkeys(stage.topics.values(), SOURCE))
    _copied_on(stage)
    _settled(stage)


def _named(topics: list[str]) -> list[str]:
    return [word for topic in topics for word in ("--topic", topic)]


def _settled(stage: Stage) -> None:
    """Who may write is right in the end."""
    found: list[str] = []

    def right() -> bool:
        found[:] = stage.writable(settled=True)
        return not found

    try:
        eventually(right, "the access rules", 20)
    except TimeoutError:
        stage.problems += found


# What they share


def _stand_still(stage: Stage) -> None:
    """Producers and consumers of the source are stopped."""
    stage.stop_reading()
    stage.load.write(stage.topics.values(), None)


def _done(stage: Stage, *words: str) -> None:
    """A command that nothing befalls."""
    ended = stage.command(*words)
    if ended.code:
        raise RuntimeError(
            f"{words[0]} ended with {ended.code}: {ended.report.get('refused')} {ended.said[-300:]}"
        )


def _on_record(stage: Stage) -> None:
    """All is copied, and where the groups stand is known, as `offsets` would have seen in time."""
    eventually(lambda: stage.names_in(SOURCE) == stage.names_in(TARGET), "all to be copied", 60)
    if stage.offsets:
        stage.stop(OFFSETS)
    assert Service(stage.link.settings, once=True)._run() == 0
    if stage.offsets:
        stage.start(OFFSETS)


def _leads(stage: Stage, application: str) -> bool:
    from common.ports import Deadline
    from offsets.groups import Groups

    groups = Groups(stage.link.settings.client_config("destination", "admin"), "target")
    try:
        return groups.members(Deadline(10)).get(f"{stage.name}.{application}.leader", False)
    finally:
        groups.close()


def _have_read_copies(stage: Stage) -> bool:
    written = stage.history.written.items()
    return all(
        len(stage.history.read[group]) >= sum(at.count(SOURCE) for (topic, _), at in written if topic in due)
        for group, due in stage.history.due.items()
    )


def _handed_over(stage: Stage, by: str) -> None:
    """Where the copies end is on record, as it is."""
    told = stage.link.control().handed_over.values()
    ends: dict[Partition, tuple[int, int]] = {
        (of.topic, p): at for of in told for p, at in enumerate(zip(of.delivered, of.ends, strict=True))
    }
    stage.problems += oracle.ends(by, ends, stage.copied_until(stage.topics.values()))


def _copied_on(stage: Stage) -> None:
    """Home again: the link copies all that there is."""
    stage.compare({SOURCE: stage.topics.values(), TARGET: stage.topics.values()})


SCENARIOS = {
    "move-group": Scenario(move_group),
    "move-group --back": Scenario(move_group_back),
    "cutover": Scenario(cutover),
    "cutover --topic": Scenario(topics_move),
    "cutover --producers-first": Scenario(producers_first),
    "demote": Scenario(demote),
    "cutover --undo": Scenario(undo),
    "cutover --rehearse": Scenario(rehearse),
    "back": Scenario(back, (("ACL_SYNC", "off"), ("ACL_READ_ONLY", "false"))),
    "failover": Scenario(failover),
    "drill": Scenario(
        drill, (("ACL_SYNC", "off"), ("ACL_READ_ONLY", "false"), ("TOPIC_REFRESH_INTERVAL", "1h"))
    ),
}
