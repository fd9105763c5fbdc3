"""What befalls a world. Each takes the world and `pick(n)`, a number below n, and says whether it did
anything.

The first kind loses nothing for good, so nothing may halt after it; the second kind loses records at the
source.
"""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaError

from tests.simulation.cluster import Log
from tests.simulation.pipelines import ROUTED
from tests.simulation.scheduler import Process
from tests.simulation.world import Instance, World
from tests.support.control_json import encode

Pick = Callable[[int], int]
Fault = Callable[[World, Pick], bool]


def _instance(w: World, pick: Pick) -> Instance:
    return w.instances[pick(len(w.instances))]


def _lane(w: World, pick: Pick, name: str | None = None) -> Process | None:
    found = [
        q.attempts[lane].process
        for app in ("replicator", "deduplicator")
        if name in (None, app)
        for q, lane in w.lanes_of(app)
    ]
    return found[pick(len(found))] if found else None


def _anybody(w: World, pick: Pick) -> Process:
    lane = _lane(w, pick)
    return lane if lane is not None and pick(3) else _instance(w, pick).process


def _topic(w: World, pick: Pick) -> str:
    return w.topics[pick(len(w.topics))] if len(w.topics) > 1 else w.topics[0]


def end_epoch(w: World, name: str) -> bool:
    """The driver that leads, if any has begun an epoch, wants its lanes to end, and starts them again."""
    leader = w.leading(name)
    if leader is None or leader.app is None or not leader.app.epoch:
        return False
    said = encode("end-epoch", application=name, term=leader.app.term, epoch=leader.app.epoch)
    w.target.log(w.settings.control_topic, 0).append(None, said)
    return True


def produce(w: World, pick: Pick) -> bool:
    topic = _topic(w, pick)
    p = pick(len(w.source.topics[topic].logs))
    w.produce(p, [1, 2, 4][pick(3)], [0, 0, 1, 3][pick(4)], [0, 0, 2][pick(3)], topic)
    return True


def kill_lane(w: World, pick: Pick) -> bool:
    process = _lane(w, pick)
    if process is not None:
        w.kill(process)
    return process is not None


def kill_driver(w: World, pick: Pick) -> bool:
    w.kill_driver(_instance(w, pick), executors_too=bool(pick(2)))
    return True


def lose_lane(w: World, pick: Pick) -> bool:
    """Spark runs a lane a second time, and the first goes on."""
    found = [
        (q, lane)
        for app in ("replicator", "deduplicator")
        for q, lane in w.lanes_of(app)
        if lane not in q.rows
    ]
    if not found or len(w.zombies) > 4:
        return False
    q, lane = found[pick(len(found))]
    w.zombies.append(q.lose(lane))
    w.visited(f"zombie {q.name}")
    return True


def pause(w: World, pick: Pick) -> bool:
    _anybody(w, pick).paused = True
    return True


def go_on(w: World, pick: Pick) -> bool:
    everybody = [i.process for i in w.instances] + list(w.zombies)
    everybody += [a.process for q in w.queries for a in q.attempts.values()]
    paused = [p for p in everybody if p.paused]
    if paused:
        paused[pick(len(paused))].paused = False
    return bool(paused)


def cut_off(w: World, pick: Pick) -> bool:
    _anybody(w, pick).cut_off_until = w.scheduler.now + [3.0, 20.0, 70.0][pick(3)]
    return True


def another_instance(w: World, pick: Pick) -> bool:
    if len(w.instances) > 3:
        return False
    w.start(["replicator", "deduplicator"][pick(2)])
    return True


def lose_offsets(w: World, pick: Pick) -> bool:
    """The group's offsets expire, or a plain commit of some zombie moves them back."""
    for at in list(w.target.group_offsets):
        if pick(2):
            del w.target.group_offsets[at]
        else:
            w.target.group_offsets[at] = max(0, w.target.group_offsets[at] - 1 - pick(4))
    w.visited("group offsets lost")
    return True


def retention_of_delivered(w: World, pick: Pick) -> bool:
    """The source forgets what the destination has."""
    for topic in w.topics:
        for p in range(len(w.source.topics[topic].logs)):
            reached = w.reached.get((w.ids[topic], p), 0)
            w.source_log(p, topic).trim(max(0, reached - [0, 0, 1, 2][pick(4)]))
    w.visited("source retention at the heels of the destination")
    return True


def retention_of_mappings(w: World, pick: Pick) -> bool:
    """What was folded an hour ago, the least that a link's mappings are kept for. Nobody sleeps through all
    of that time."""
    folded = dict(w.table.folded)
    for process in w.zombies:
        w.kill(process)
    while go_on(w, lambda n: 0):
        pass
    w.run_for(3600.0)
    for p, offset in folded.items():
        w.target.log(w.settings.mappings_topic, p).trim(offset)
        w.visited("mappings trimmed")
    return bool(folded)


def lose_table(w: World, pick: Pick) -> bool:
    logs = w.target.topics[w.settings.mappings_topic].logs
    if any(log.start for log in logs) or not w.table.exists:
        return False
    w.table.lose()
    w.visited("table lost")
    return True


def _staging(w: World, pick: Pick) -> Log:
    logs = w.target.topics[w.settings.staging_topic].logs
    return logs[pick(len(logs))]


def harm_frames(w: World, pick: Pick) -> bool:
    """Frames near the end of staging are gone, or do not read as they should."""
    log = _staging(w, pick)
    if not log.entries:
        return False
    last = len(log.entries) - [0, 0, 1, 2][pick(4)]
    first = max(0, last - [1, 1, 2, 4][pick(4)])
    how = pick(4)
    for i in range(first, last):
        e = log.entries[i]
        if how == 0:
            e.marker = True
        elif how == 1 and e.value:
            e.value = e.value[:-1] + bytes([e.value[-1] ^ 1])
        elif how == 2 and e.headers:
            e.headers = e.headers[1:]
        elif e.headers:
            e.headers = [(k, b"999" if k == "count" else v) for k, v in e.headers]
    w.harmed = True
    w.visited("frames harmed")
    return True


def wipe_staging(w: World, pick: Pick) -> bool:
    log = _staging(w, pick)
    log.trim(max(0, log.end - [0, 0, 1, 3][pick(4)]))
    w.harmed = True
    w.visited("staging wiped")
    return True


def repeat_frame(w: World, pick: Pick) -> bool:
    log = _staging(w, pick)
    if not log.entries:
        return False
    e = log.entries[pick(len(log.entries))]
    if e.marker:
        return False
    log.append(e.key, e.value, e.headers, e.timestamp)
    return True


def refuse_frame(w: World, pick: Pick) -> bool:
    """The next thing that a replicator's lane writes is not appended."""
    process = _lane(w, pick, "replicator")
    if process is None or not process.producers:
        return False
    process.producers[-1].refuse_next = KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    w.visited("a frame was refused")
    return True


def foreign_record(w: World, pick: Pick) -> bool:
    topic = w.target.topics.get("orders")
    if topic is None:
        return False
    topic.logs[pick(len(topic.logs))].append(None, b"foreign")
    return True


def make_again(w: World, pick: Pick) -> bool:
    if len(w.topic_order) > 1 + len(w.topics):
        return False
    topic = _topic(w, pick)
    w.remake_source(topic)
    for p in range(len(w.source.topics[topic].logs)):
        w.produce(p, [0, 1, 3, 9][pick(4)], topic=topic)
    w.visited("topic made again")
    return True


def lose_marker(w: World, pick: Pick) -> bool:
    """A destination partition has no leader when the next marker is due, and one again right after that."""
    topic = w.target.topics.get("orders")
    if topic is None:
        return False
    logs = [*topic.logs, *w.letter_logs(), *w.routed_logs()]
    logs[pick(len(logs))].leaderless = True
    return True


def wait(w: World, pick: Pick) -> bool:
    w.run_for([1.0, 6.0, 40.0, 700.0][pick(4)])
    return True


HARMLESS: list[Fault] = [
    produce,
    produce,
    kill_lane,
    kill_lane,
    kill_driver,
    lose_lane,
    lose_lane,
    pause,
    go_on,
    cut_off,
    another_instance,
    lose_offsets,
    retention_of_delivered,
    retention_of_mappings,
    lose_table,
    harm_frames,
    wipe_staging,
    repeat_frame,
    refuse_frame,
    foreign_record,
    make_again,
    lose_marker,
    wait,
    wait,
]


def change_pipeline(w: World, pick: Pick) -> bool:
    """The file of the pipeline is another one, or gone; a while later, most likely, the driver has seen
    it."""
    if pick(5) == 0:
        w.pipelines.remove()
    else:
        digits = ["", "05", "1357", "0123456789"]
        left_out, dead = digits[pick(4)], digits[pick(4)]
        fails = len({*dead} - {*left_out})
        # Exactly what each window has: whatever is counted twice halts.
        tolerate = (fails, 10) if 0 < fails < 10 else None
        w.pipelines.change(left_out, dead, pick(2) == 0, tolerate)
    w.run_for([0.0, 15.0, 40.0][pick(3)])
    return True


def change_routes(w: World, pick: Pick) -> bool:
    """As above, of one that takes records to other topics, or to none."""
    digits = ["", "05", "1357", "0123456789"]
    routes = ((digits[pick(4)], ROUTED[0]), (digits[pick(4)], ROUTED[1]))
    given = tuple(one for one in routes[pick(3) :] if one[0])
    w.pipelines.change(digits[pick(3)], digits[pick(3)], pick(2) == 0, routes=given)
    w.run_for([0.0, 15.0, 40.0][pick(3)])
    return True


def foreign_record_in_a_route(w: World, pick: Pick) -> bool:
    logs = w.routed_logs()
    if logs:
        logs[pick(len(logs))].append(None, b"foreign")
    return bool(logs)


def promote(w: World, pick: Pick) -> bool:
    """A topic is taken from the link where it is delivered up to, or given back; its producers go on."""
    if pick(3) == 0:
        w.give_back()
        return w.promotes
    topic = _topic(w, pick)
    logs = w.source.topics[topic].logs
    w.promote(topic, [w.reached.get((w.ids[topic], p), 0) for p in range(len(logs))])
    w.run_for([0.0, 1.0, 15.0][pick(3)])
    return True


def leave_a_replicator(w: World, pick: Pick) -> bool:
    """Records are on their way when a lane is cut off, or loses sight of its driver, which gets a successor;
    it goes on with what it has."""
    produce(w, pick)
    produce(w, pick)
    if (process := _lane(w, pick, "replicator")) is None:
        return False
    w.run(pick(40))
    process.cut_off_until = w.scheduler.now + [0.0, 20.0, 70.0][pick(3)]
    for instance in [i for i in w.instances if i.name == "replicator"]:
        w.kill_driver(instance, executors_too=False)
    return True


def retention_of_anything(w: World, pick: Pick) -> bool:
    """The source forgets what is not copied yet."""
    topic = _topic(w, pick)
    log = w.source_log(pick(len(w.source.topics[topic].logs)), topic)
    log.trim(log.end - [0, 0, 1, 2][pick(4)])
    w.lost = True
    return True


LOSSY: list[Fault] = [*HARMLESS, retention_of_anything, retention_of_anything]


def accept_all_losses(w: World) -> None:
    """An operator says of each halted partition that its loss is accepted, as `verbatim accept-loss` does."""
    for (_, key), halt in sorted(w.control().halts.items()):
        if halt.next is None or halt.available is None or halt.available <= halt.next:
            continue
        for at, _ in w.records.get(key, []):
            if halt.next <= at < halt.available:
                w.given_up.add((*key, at))
        said = encode(
            "accept-loss",
            topic=halt.topic,
            topic_id=key[0],
            partition=key[1],
            next=halt.next,
            to=halt.available,
            reason="accepted",
        )
        w.target.log(w.settings.control_topic, 0).append(None, said)
