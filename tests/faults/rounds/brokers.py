"""What befalls brokers: killed, paused, with another time, without room, leading again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from tests.faults.rounds.proxy import wait_for
from tests.faults.rounds.scene import REACH_S, NotReached, Said, Scene, state_of
from tests.faults.rounds.world import NODES, SMALL_LOG_NODE, STAGING_PARTITIONS, Side


def _source(scene: Scene) -> int:
    """The leader of a source partition; killed or stopped for long it is another then, and it again once it
    is back and preferred."""
    return scene.world.source.leader(scene.random.choice(scene.topics), 0)


def _source_controller(scene: Scene) -> int:
    return scene.world.source.controller()


def _source_first(_: Scene) -> int:
    """The first of the bootstrap servers."""
    return 1


def _leader(scene: Scene) -> int:
    topic = scene.random.choice([*scene.topics, scene.staging()[0], scene.link.mappings])
    try:
        return scene.world.target.leader(topic, 0)
    except KeyError:
        raise NotReached(f"{topic} is not there yet") from None


def _transactions(scene: Scene) -> int:
    partition = scene.random.randrange(STAGING_PARTITIONS)
    return scene.world.target.transaction_coordinator(f"{scene.link.name}.{partition}")


def _groups(scene: Scene) -> int:
    group = scene.random.choice(["deduplicator", "deduplicator.leader", "replicator.leader"])
    return scene.world.target.group_coordinator(f"{scene.link.name}.{group}")


def _controller(scene: Scene) -> int:
    return scene.world.target.controller()


ROLES: dict[str, Callable[[Scene], int]] = {
    "source": _source,
    "source-controller": _source_controller,
    "source-first": _source_first,
    "leader": _leader,
    "transaction-coordinator": _transactions,
    "group-coordinator": _groups,
    "controller": _controller,
}


def side_of(scene: Scene, role: str) -> Side:
    return scene.world.source if role.startswith("source") else scene.world.target


def must_have_healed(side: Side) -> None:
    if not side.healthy():
        raise NotReached("the cluster had not healed from before")


def kill_broker(role: str, shortest: float, longest: float, scene: Scene) -> Said:
    """kill -9 of the broker that has a role; started again after a while."""
    side = side_of(scene, role)
    must_have_healed(side)
    node = ROLES[role](scene)
    down = scene.random.uniform(shortest, longest)
    side.cluster.kill(node)
    time.sleep(down)
    side.cluster.restart(node, 90)
    return {"node": node, "down_s": round(down, 1)}


def lead_again(scene: Scene) -> Said:
    """A source broker dies, comes back, and leads its partitions again, as the preferred one."""
    side = scene.world.source
    must_have_healed(side)
    topic = scene.random.choice(scene.topics)
    preferred = side.admin.list_topics(topic, timeout=10).topics[topic].partitions[0].replicas[0]
    if not wait_for(lambda: side.leader(topic, 0) == preferred, REACH_S):
        raise NotReached(f"{preferred} did not lead {topic}-0")
    side.cluster.kill(preferred)
    try:
        moved = wait_for(lambda: side.leader(topic, 0) not in (preferred, -1), REACH_S)
    finally:
        side.cluster.restart(preferred, 90)
    if not (moved and wait_for(lambda: side.leader(topic, 0) == preferred, REACH_S)):
        raise NotReached(f"{topic}-0 was not led by others and by {preferred} again")
    return {"node": preferred}


def pause_broker(role: str, shortest: float, longest: float, scene: Scene) -> Said:
    """SIGSTOP of the broker that has a role: its connections stay, and nothing answers."""
    side = side_of(scene, role)
    must_have_healed(side)
    node = ROLES[role](scene)
    return {"node": node, "pause_s": _pause_nodes(side, [node], shortest, longest, scene)}


def pause_nodes(side: str, count: int, shortest: float, longest: float, scene: Scene) -> Said:
    """The same of so many brokers. Of two of three what is left is no quorum, and no partition has the
    replicas that writing takes; of all, their sessions may be over then, and metadata name none of them."""
    cluster = side_of(scene, side)
    must_have_healed(cluster)
    nodes = sorted(scene.random.sample(range(1, NODES + 1), count))
    return {"nodes": nodes, "pause_s": _pause_nodes(cluster, nodes, shortest, longest, scene)}


def set_clock(role: str, apart_s: int, scene: Scene) -> Said:
    """The clock of the broker that has a role jumps, and back again. Kafka's own clients go by it: one that
    lost a connection while it was ahead makes no other for as long as it was. Then the broker is started
    again, as an operator would."""
    side = side_of(scene, role)
    if not side.clocks:
        raise NotReached("clocks can't be set apart (that takes a C compiler)")
    must_have_healed(side)
    node = ROLES[role](scene)
    for_s = scene.random.uniform(4, 12)
    side.set_clock(node, apart_s)
    try:
        time.sleep(for_s)
        told = side.time_of(node)
    finally:
        side.set_clock(node, 0)
    if told is None or abs(told - time.time() - apart_s) > 120:
        raise NotReached(f"its clock stood at {told}")
    if not (healed := side.healthy(20)):
        side.cluster.kill(node)
        side.cluster.restart(node, 90)
    return {"node": node, "apart_s": apart_s, "for_s": round(for_s, 1), "healed": healed}


def fill_log(scene: Scene) -> Said:
    """The file system of one target broker's logs is full: the broker ends, and is started again once there
    is room."""
    side = scene.world.target
    if not scene.world.small_log:
        raise NotReached("no broker's logs are on a file system of their own (that takes root)")
    must_have_healed(side)
    filler = side.cluster.folder / f"node-{SMALL_LOG_NODE}" / "filler"
    try:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 64):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"\0" * size)
        ended = wait_for(lambda: not side.cluster.is_running(SMALL_LOG_NODE), REACH_S)
    finally:
        filler.unlink(missing_ok=True)
    if not ended:
        raise NotReached("the broker went on")
    side.cluster.restart(SMALL_LOG_NODE, 90)
    return {"node": SMALL_LOG_NODE}


def _pause_nodes(side: Side, nodes: Sequence[int], shortest: float, longest: float, scene: Scene) -> float:
    """Stop them one after the other, and let them go on in the same order; for how many seconds."""
    pause = scene.random.uniform(shortest, longest)
    try:
        for node in nodes:
            side.cluster.pause(node)
        time.sleep(0.1)
        states = {state_of(side.cluster.pid(node)) for node in nodes}
        time.sleep(pause)
    finally:
        for node in nodes:
            side.cluster.resume(node)
    if states != {"T"}:
        raise NotReached(f"what was stopped was in states {states}")
    return round(pause, 1)
