"""The faults, by name. Each makes its harm, makes sure that it happened, undoes what would not heal by
itself, and says what it did.

A fault that could not be brought about raises NotReached: its round is no evidence for it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults.processes import Process
from tests.faults.rounds.brokers import (
    ROLES,
    fill_log,
    kill_broker,
    lead_again,
    pause_broker,
    pause_nodes,
    set_clock,
    side_of,
)
from tests.faults.rounds.destinations import delete_destination
from tests.faults.rounds.executors import kill_one
from tests.faults.rounds.proxy import (
    NEXT_TRANSACTION_S,
    AnswerLate,
    Delay,
    HoldCommit,
    Proxy,
    Stall,
    SwallowCommitAnswer,
    wait_for,
)
from tests.faults.rounds.scene import REACH_S, SESSION_S, NotReached, Said, Scene, state_of
from tests.faults.rounds.world import (
    APPLICATIONS,
    HANGS_S,
    NODES,
    OFFSETS,
    TRANSACTION_MS,
)
from tests.support.brokers import create_topic

HANGS = "though others have: it hangs"
"""What a driver says of a lane that it ends for that."""

# Applications


def kill_application(application: str, everything: bool, scene: Scene) -> Said:
    """kill -9 of all processes of an application, or of its driver alone."""
    process = scene.link.running.get(application)
    if process is None or not process.alive():
        raise NotReached("it was not running")
    with scene.link.unwatched():
        family = process.family()
        process.kill(everything)
        code = process.wait(1)
    if code != -signal.SIGKILL:
        raise NotReached(f"it ended by itself with {code}")
    return {"processes": len(family)}


def kill_worker(application: str, scene: Scene) -> Said:
    """kill -9 of a Python worker: a lane is gone, its driver is not."""
    process = _with_workers(scene, application)
    pid = scene.random.choice(process.workers())
    os.kill(pid, signal.SIGKILL)
    if not wait_for(lambda: state_of(pid) in ("", "Z"), 5):
        raise NotReached("it did not die")
    return {"pid": pid}


def freeze_worker(application: str, scene: Scene) -> Said:
    """SIGSTOP of a Python worker, which nobody wakes: its driver is to kill it and all of its epoch."""
    process = _with_workers(scene, application)
    pid = scene.random.choice(process.workers())
    before = process.said().count(HANGS)
    os.kill(pid, signal.SIGSTOP)
    try:
        if not wait_for(lambda: process.said().count(HANGS) > before, HANGS_S + REACH_S):
            raise NotReached("nobody noticed it")
        if not wait_for(lambda: state_of(pid) in ("", "Z"), 15):
            raise NotReached("it was not killed")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return {"pid": pid}


def kill_executor(application: str, scene: Scene) -> Said:
    """An executor is gone, with its lanes or from under them."""
    said = kill_one(_with_workers(scene, application), scene.random)
    if not said:
        raise NotReached("it had no executor")
    return dict(said)


def pause_application(application: str, shortest: float, longest: float, scene: Scene) -> Said:
    """SIGSTOP of all processes of an application."""
    process = _with_workers(scene, application) if application != OFFSETS else scene.link.running[OFFSETS]
    pause = scene.random.uniform(shortest, longest)
    with scene.link.unwatched():
        process.pause()
        wait_for(lambda: _stopped(process), 1)
        states = {state_of(pid) for pid in process.family()}
        time.sleep(pause)
        process.resume()
    if not states <= {"T", "Z"}:
        raise NotReached(f"its processes were in states {states}")
    return {"pause_s": round(pause, 1)}


def _stopped(process: Process) -> bool:
    """Whether all its processes stand still. What one of them had just started is stopped as well."""
    if all(state_of(pid) in ("T", "Z") for pid in process.family()):
        return True
    process.pause()
    return False


def _with_workers(scene: Scene, application: str) -> Process:
    deadline = time.monotonic() + REACH_S
    while time.monotonic() < deadline:
        process = scene.link.running[application]
        if process.alive() and process.workers():
            return process
        time.sleep(0.3)
    raise NotReached(f"the {application} had no workers in time")


def successor(application: str, scene: Scene) -> Said:
    """The leader stops, for the deduplicator in the middle of a transaction or between two; another instance
    takes over and works; then the first one wakes up in its old belief."""
    link = scene.link
    _with_workers(scene, application)
    second = link.launch(application, link.starts + 1)
    log = second.log
    link.standby[application] = second
    try:
        if not wait_for(lambda: "standing by" in second.said(), 2 * REACH_S):
            raise NotReached("the second instance did not come to stand by")
        # Between two transactions, with frames in hand: nothing but fencing keeps what it does next from
        # counting.
        inside = scene.random.choice(["mapping-after", "commit-after"])
        where = inside if application == "deduplicator" else "frame-after"
        stopped = _stopped_at(scene, application, where)
        first = link.running[application]
        if not wait_for(lambda: bool(_stopped_of(first)), 2.0):
            # What a fault before this one did cost it its lead, and the second's lane came by.
            raise NotReached("the second instance leads already")
        with link.unwatched():
            first.pause()
            became_leader = wait_for(lambda: "leading as" in second.said(), 30)
            went_on = became_leader and link.moves(40)
            time.sleep(scene.random.uniform(0, 1))
            first.resume()
        if not became_leader:
            raise NotReached("the second instance did not take over")
        time.sleep(3)
        link.replace(application, second)
        link.standby[application] = first
        code = _terminated(first)
        return {
            "stopped_at": stopped,
            "went_on_meanwhile": went_on,
            "first_ended_with": code,
            "log": log.name,
        }
    finally:
        other = link.standby.pop(application)
        if other is not link.running[application]:
            other.end()


def _terminated(process: Process) -> int | None:
    with contextlib.suppress(Exception):
        return process.terminate(20)
    return None


def _stopped_of(process: Process) -> list[int]:
    return [pid for pid in process.family() if state_of(pid) == "T"]


def _stopped_at(scene: Scene, application: str, point: str) -> str:
    armed = scene.link.arm(application, point, scene.random.randint(1, 20), "stop")
    try:
        if not wait_for(armed.fired, REACH_S):
            raise NotReached(f"nobody came by {point}")
    finally:
        armed.disarm()
    return point


# Crash points

POINTS: dict[str, dict[str, int]] = {
    # application -> point -> how many passages it may let go by
    "replicator": {
        "frame-before": 60,
        "frame-after": 60,
        "frame-acknowledged": 60,
        "position-before": 5,
        "position-after": 5,
        "position-acknowledged": 5,
        "epoch-ended-before": 1,
        "epoch-ended-after": 1,
        "plan-after": 1,
    },
    "deduplicator": {
        "produce-before": 200,
        "produce-after": 200,
        "mapping-before": 30,
        "mapping-after": 30,
        "offsets-before": 3,
        "offsets-after": 3,
        "commit-before": 10,
        "commit-after": 10,
        "fenced": 2,
        "history-before": 1,
        "history-after": 1,
        "delta-before": 1,
        "delta-after": 1,
        "fold-after": 1,
    },
}


def crash(application: str, point: str, passages: int, scene: Scene) -> Said:
    """A process kills itself, or the whole application, as it comes by a point for the n-th time."""
    passage = scene.random.randint(1, passages)
    action = scene.random.choice(["kill", "kill-all"])
    armed = scene.link.arm(application, point, passage, action)
    try:
        if point in ("fenced", "epoch-ended-before", "epoch-ended-after", "plan-after"):
            _provoke(scene, application)
        if not wait_for(armed.fired, REACH_S):
            raise NotReached(f"passage {passage} did not come in {REACH_S:.0f} s")
    finally:
        armed.disarm()
    return {"passage": passage, "action": action}


def _provoke(scene: Scene, application: str) -> None:
    """Make a new epoch: by a new topic for the replicator, for the deduplicator by the death of a worker."""
    if application == "replicator":
        name = f"{scene.topics[0]}.more{scene.random.randrange(10**6)}"
        create_topic(scene.world.source.direct, name, 1, {"retention.ms": "-1"})
    else:
        os.kill(scene.random.choice(_with_workers(scene, application).workers()), signal.SIGKILL)


def outlast_transaction(scene: Scene) -> Said:
    """A delivery stops inside a transaction for longer than the transaction may last, and wakes up when the
    broker has aborted it."""
    armed = scene.link.arm("deduplicator", "mapping-after", scene.random.randint(1, 20), "stop")
    pause = TRANSACTION_MS / 1000 + scene.random.uniform(3, 6)
    try:
        if not wait_for(armed.fired, REACH_S):
            raise NotReached("nobody came by mapping-after")
        process = scene.link.running["deduplicator"]
        stopped = _stopped_of(process)
        time.sleep(pause)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    finally:
        armed.disarm()
    if not stopped:
        raise NotReached("no process was stopped")
    return {"pause_s": round(pause, 1), "stopped": len(stopped)}


# The network


def cut(side: str, reset: bool, scene: Scene) -> Said:
    """Connections break, several times in a row."""
    proxy = _flowing(side_of(scene, side).proxy)
    times, broken = scene.random.randint(1, 4), 0
    for _ in range(times):
        broken += proxy.cut(reset)
        time.sleep(scene.random.uniform(0.05, 0.7))
    if not broken:
        raise NotReached("there was no connection")
    return {"times": times, "connections": broken}


def delay(side: str, scene: Scene) -> Said:
    """Each request and answer takes longer, for a while."""
    return _slow(side, Delay(scene.random.uniform(0.02, 0.3)), 3, 8, scene)


def crawl(side: str, scene: Scene) -> Said:
    """The line takes some kilobytes a second, for a while."""
    rate = scene.random.uniform(10_000, 100_000)
    return _slow(side, Delay(bytes_per_second=rate), 4, 12, scene) | {"bytes_per_second": round(rate)}


def _slow(side: str, rule: Delay, shortest: float, longest: float, scene: Scene) -> Said:
    proxy = _flowing(side_of(scene, side).proxy)
    with hanging(proxy.add, proxy.remove, rule):
        time.sleep(scene.random.uniform(shortest, longest))
    if not rule.hits:
        raise NotReached("nothing passed")
    return {"delayed": rule.hits}


def stall(side: str, scene: Scene) -> Said:
    """Nothing passes for a while; then all of it does, late."""
    proxy = _flowing(side_of(scene, side).proxy)
    rule = Stall()
    pause = scene.random.uniform(1, 9)
    with hanging(proxy.add, proxy.let_go, rule):
        time.sleep(pause)
    if not rule.hits:
        raise NotReached("nothing was held up")
    return {"pause_s": round(pause, 1), "held_up": rule.hits}


def unreachable(side: str, scene: Scene) -> Said:
    """Nobody gets through to one broker, which is in good health and leads on."""
    proxy = _flowing(side_of(scene, side).proxy)
    node = scene.random.randint(1, NODES)
    before = proxy.turned_away
    proxy.unreachable.add(node)
    try:
        broken = proxy.cut(True, node)
        time.sleep(scene.random.uniform(3, 15))
    finally:
        proxy.unreachable.discard(node)
    if not broken and proxy.turned_away == before:
        raise NotReached("nobody wanted to get through to it")
    return {"node": node, "broken": broken, "turned_away": proxy.turned_away - before}


def answer_late(scene: Scene) -> Said:
    """Coordinators end transactions, and say so minutes later than any client waits."""
    proxy = _flowing(scene.world.target.proxy)
    rule = AnswerLate(300)
    with hanging(proxy.add, proxy.remove, rule):
        if not wait_for(lambda: rule.hits > 0, REACH_S):
            raise NotReached("no transaction was ended")
        time.sleep(scene.random.uniform(5, 20))
    return {"late": rule.hits}


def swallow_commit_answer(scene: Scene) -> Said:
    """A commit succeeds, and the client never hears of it."""
    proxy = scene.world.target.proxy
    rule = SwallowCommitAnswer(scene.transactional_ids())
    with hanging(proxy.add, proxy.remove, rule):
        if not wait_for(lambda: rule.hits > 0, REACH_S):
            raise NotReached("no transaction was committed")
    return {"swallowed": rule.hits}


def kill_at_commit(scene: Scene) -> Said:
    """The worker dies when its commit has reached the broker and the answer is on its way."""
    proxy = scene.world.target.proxy
    workers = _with_workers(scene, "deduplicator").workers()

    rule = SwallowCommitAnswer(scene.transactional_ids(), partial(_kill, workers))
    with hanging(proxy.add, proxy.remove, rule):
        if not wait_for(lambda: rule.hits > 0, REACH_S):
            raise NotReached("no transaction was committed")
        if not wait_for(lambda: all(state_of(pid) in ("", "Z") for pid in workers), 5):
            raise NotReached("the workers did not die")
    return {"workers": len(workers)}


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def commit_arrives_late(scene: Scene) -> Said:
    """A commit is repeated by the client, and its first request arrives in that producer's next transaction;
    then the workers die, so that whatever it committed of that transaction is all there is of it."""
    proxy = scene.world.target.proxy
    workers = _with_workers(scene, "deduplicator").workers()
    rule = HoldCommit(scene.transactional_ids(), partial(_kill, workers))
    with hanging(proxy.add, proxy.remove, rule):
        if not wait_for(lambda: rule.hits > 0, REACH_S):
            raise NotReached("no transaction was committed")
        if not wait_for(lambda: rule.released and rule.error_code is not None, NEXT_TRANSACTION_S + 15):
            raise NotReached("the late request was not answered")
    if not (rule.repeated and rule.next_transaction):
        raise NotReached(
            f"the request was late, but not into a next transaction (repeated: {rule.repeated}, next: {rule.next_transaction})"
        )
    return {"answer_to_late_commit": rule.error_code}


def _flowing(proxy: Proxy) -> Proxy:
    """The proxy, once requests pass through it: an application that is starting has nothing to break."""
    before = proxy.passed
    if not wait_for(lambda: proxy.passed > before + 20, REACH_S):
        raise NotReached("nothing passed through the proxy in time")
    return proxy


@contextmanager
def hanging(add: Callable[[Any], None], remove: Callable[[Any], None], rule: Any) -> Iterator[None]:
    """A rule that hangs on a proxy for as long as the block lasts."""
    add(rule)
    try:
        yield
    finally:
        remove(rule)


# Files


def full_state(scene: Scene) -> Said:
    """The file system of the Delta tables is full for some folds, and then has room again."""
    if not scene.world.small_state:
        raise NotReached("STATE_PATH is not on a file system of its own (that takes root)")
    filler = scene.world.state / "filler"
    log = scene.link.log("deduplicator")
    before = log.stat().st_size
    try:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 65536)
        with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(b"\0" * 64)
        complained = wait_for(lambda: "could not" in log.read_text(errors="replace")[before:], 45)
    finally:
        filler.unlink(missing_ok=True)
    if not complained:
        raise NotReached("no fold failed")
    return {}


def delete_state(scene: Scene) -> Said:
    """The Delta tables vanish while the deduplicator runs."""
    folder = scene.world.state / scene.link.name
    files = sum(1 for f in folder.rglob("*") if f.is_file())
    if not files:
        raise NotReached("there were no tables yet")
    shutil.rmtree(folder, ignore_errors=True)
    return {"files": files}


def truncate_state(scene: Scene) -> Said:
    """Half of the newest file of the state table's log is missing, and the deduplicator starts on that; the
    operator then takes the damaged table away."""
    folder = scene.world.state / scene.link.name / "state"
    newest = _newest(folder / "_delta_log", "*.json")
    if newest is None:
        raise NotReached("there was no table yet")
    with newest.open("r+b") as file:
        file.truncate(max(1, newest.stat().st_size // 2))
    said = kill_application("deduplicator", True, scene)
    log = scene.link.log("deduplicator")
    try:
        if not wait_for(lambda: "could not read" in log.read_text(errors="replace"), REACH_S):
            raise NotReached("the damage was not noticed")
        moved = scene.link.moves(REACH_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {**said, "file": newest.name, "went_on_without_table": moved}


def _newest(folder: Path, pattern: str) -> Path | None:
    return max(folder.glob(pattern), key=lambda p: p.name, default=None)


# The deck

Fault = Callable[[Scene], Said]


OF_SPARK = (
    "state/",
    "point/replicator-epoch-ended-",
    "point/replicator-plan-",
    "point/deduplicator-history-",
    "point/deduplicator-delta-",
    "point/deduplicator-fold-",
)
"""What needs Spark, its files or the Delta tables to happen."""


def deck(
    long: bool = False, light: bool = False, clocks: bool = False, executors: bool = False
) -> dict[str, Fault]:
    """Name -> fault. `long` adds pauses of more than a minute, the deliveries' real transaction time-out;
    `light`: those without Spark; `clocks` adds brokers' clocks that jump, `executors` those of a cluster."""
    found = _all(long)
    if clocks:
        for role in ROLES:
            # By more than any transaction may take.
            found[f"broker/clock-ahead-{role}"] = partial(set_clock, role, 3600)
            found[f"broker/clock-behind-{role}"] = partial(set_clock, role, -3600)
    if executors:
        for application in APPLICATIONS:
            found[f"app/kill-{application}-executor"] = partial(kill_executor, application)
    return {name: fault for name, fault in found.items() if not (light and name.startswith(OF_SPARK))}


def _all(long: bool) -> dict[str, Fault]:
    found: dict[str, Fault] = {}
    for role in ROLES:
        found[f"broker/kill-{role}"] = partial(kill_broker, role, 0.5, 6.0)
        found[f"broker/pause-{role}"] = partial(pause_broker, role, 1.0, 3.5)
        found[f"broker/pause-{role}-past-session"] = partial(pause_broker, role, 5.0, 12.0)
        if long:
            found[f"broker/pause-{role}-past-minute"] = partial(pause_broker, role, 62.0, 70.0)
    # Records were lost about one of these, in the engine before (seed 103, round 4).
    found["broker/kill-transaction-coordinator-briefly"] = partial(
        kill_broker, "transaction-coordinator", 0.0, 1.0
    )
    found["broker/pause-target-past-session"] = partial(pause_nodes, "target", NODES, 9.0, 13.0)
    for side in ("source", "target"):
        found[f"broker/pause-most-of-{side}"] = partial(pause_nodes, side, 2, 6.0, 14.0)
    found["broker/lead-again-source"] = lead_again
    found["broker/disk-full"] = fill_log
    if long:
        # Each call of the clients' gives up before, and so does each time-out of the brokers'.
        found["broker/pause-target-past-everything"] = partial(pause_nodes, "target", NODES, 190.0, 200.0)
    for application in APPLICATIONS:
        found[f"app/kill-{application}"] = partial(kill_application, application, True)
        found[f"app/kill-{application}-driver"] = partial(kill_application, application, False)
        found[f"app/kill-{application}-worker"] = partial(kill_worker, application)
        found[f"app/freeze-{application}-worker"] = partial(freeze_worker, application)
        found[f"app/pause-{application}"] = partial(pause_application, application, 1.0, SESSION_S - 1.5)
        found[f"app/pause-{application}-past-session"] = partial(
            pause_application, application, SESSION_S + 1.5, 14.0
        )
        if long:
            found[f"app/pause-{application}-past-minute"] = partial(
                pause_application, application, 62.0, 70.0
            )
        found[f"app/successor-{application}"] = partial(successor, application)
        for point, passages in POINTS[application].items():
            found[f"point/{application}-{point}"] = partial(crash, application, point, passages)
    found[f"app/kill-{OFFSETS}"] = partial(kill_application, OFFSETS, True)
    found[f"app/pause-{OFFSETS}"] = partial(pause_application, OFFSETS, 1.0, SESSION_S - 1.5)
    found[f"app/pause-{OFFSETS}-past-session"] = partial(pause_application, OFFSETS, SESSION_S + 1.5, 14.0)
    found["app/outlast-transaction"] = outlast_transaction
    for side in ("source", "target"):
        found[f"net/drop-{side}"] = partial(cut, side, False)
        found[f"net/reset-{side}"] = partial(cut, side, True)
        found[f"net/delay-{side}"] = partial(delay, side)
        found[f"net/stall-{side}"] = partial(stall, side)
        found[f"net/crawl-{side}"] = partial(crawl, side)
        found[f"net/unreachable-{side}"] = partial(unreachable, side)
    found["net/answer-late"] = answer_late
    found["net/swallow-commit-answer"] = swallow_commit_answer
    found["net/kill-at-commit"] = kill_at_commit
    found["net/commit-arrives-late"] = commit_arrives_late
    found["data/destination-deleted"] = delete_destination
    found["state/full"] = full_state
    found["state/deleted"] = delete_state
    found["state/truncated"] = truncate_state
    return found
