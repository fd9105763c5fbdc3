"""A destination topic is deleted at the target while the link runs, and made again with consent."""

from __future__ import annotations

import json

from tests.faults.rounds import checker
from tests.faults.rounds.checker import Mapped
from tests.faults.rounds.proxy import wait_for
from tests.faults.rounds.scene import NotReached, Said, Scene, Wrong
from tests.support.brokers import Record, Seen, create_topic, delete_topic, produce, read_all

RECORDS = 200
NOTICED_S = 120.0
GOES_ON_S = 90.0


def delete_destination(scene: Scene) -> Said:
    """Of a topic of the fault's own. It stands still by name, the others go on, and what was not delivered
    before arrives in the new one once somebody has said so."""
    source, target = scene.world.source.direct, scene.world.target.direct
    link = scene.link
    topic = f"{link.topics}deleted{scene.random.randrange(10**6)}"
    at = (topic, 0)
    create_topic(source, topic, 1, {"retention.ms": "-1"})
    produce(source, topic, _some(scene, RECORDS))
    if not wait_for(lambda: link.tail.reached().get(at, 0) >= RECORDS, NOTICED_S):
        raise NotReached(f"{topic} was not copied in time")
    delete_topic(target, topic)
    produce(source, topic, _some(scene, RECORDS))

    def reason() -> str | None:
        halted = checker.halts(target, link.name)
        return next((halt["reason"] for halt in halted if halt["topic"] == topic), None)

    if not wait_for(lambda: reason() == "destination-gone", NOTICED_S):
        raise Wrong(f"{topic}: its destination was deleted, and it stands still as {reason()}")
    if not link.moves(GOES_ON_S):
        raise Wrong(f"{topic}: its destination was deleted, and the others do not go on")
    reached = link.tail.reached()[at]
    ended = link.command("accept-destination", topic)
    if ended.returncode != 0:
        raise Wrong(f"accept-destination {topic}: {ended.stderr.strip()[-300:]}")
    if not wait_for(lambda: reason() is None and link.tail.reached()[at] >= 2 * RECORDS, 2 * GOES_ON_S):
        raise Wrong(
            f"{topic}: stands still as {reason()} at {link.tail.reached()[at]} though it was accepted"
        )
    mapped = [m for m in checker.read_mappings(target, link.mappings)[at] if m.start >= reached]
    _must_be_the_rest(topic, reached, mapped, read_all(source, topic)[0], read_all(target, topic)[0])
    # A cutover could not vouch for what was deleted.
    delete_topic(source, topic)
    return {"topic": topic, "from": reached}


def _must_be_the_rest(
    topic: str, reached: int, mapped: list[Mapped], there: list[Seen], here: list[Seen]
) -> None:
    rest = [record for record in there if record.offset >= reached]
    problems = checker.compare(topic, rest, here) + checker.compare_mapped((topic, 0), mapped, rest, here)
    if problems:
        raise Wrong("; ".join(problems))


def _some(scene: Scene, count: int) -> list[Record]:
    return [Record(json.dumps([n, scene.random.random()]).encode()) for n in range(count)]
