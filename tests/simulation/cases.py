"""Sequences of events that break careless versions of the protocol, each driven to the point. What they are
called is what must come out.

`CASES` has them all, by name. Each raises Wrong (or another AssertionError) where the outcome is another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from confluent_kafka import KafkaError

from common.link.control_records import DEDUPLICATOR
from common.link.halt_reasons import AT_THE_DESTINATION, HaltReason
from tests.simulation import faults
from tests.simulation.cluster import Log, Txn
from tests.simulation.pipelines import ROUTED
from tests.simulation.scheduler import Process, Scripted, Seeded
from tests.simulation.world import MERGED, OTHER, TOPIC, World, Wrong, by_names, settings
from tests.support.control_json import encode

Case = Callable[[], None]
CASES: dict[str, Case] = {}


def _picks(*picks: int) -> faults.Pick:
    left = list(picks)
    return lambda n: left.pop(0)


class ShowsNothing(Exception):
    """The situation that a case is about did not come about."""


OK, SLOW, ANSWER_LOST, LATE, NEVER = range(5)
"""How an EndTxn ends: see tests/simulation/batches.py."""
REFUSED, ANSWERED_INTO_THE_VOID, LOST = range(1, 4)
"""How a request to append a batch ends otherwise: see tests/simulation/batches.py."""

BY_ID, BY_NAME = False, True
WAYS: dict[str, tuple[bool, ...]] = {}
"""How topics may be asked for in a case."""


def case(run: Case) -> Case:
    CASES[run.__name__] = run
    WAYS.setdefault(run.__name__, (BY_ID,))
    return run


def _in_ways(*ways: bool) -> Callable[[Case], Case]:
    def mark(run: Case) -> Case:
        WAYS[run.__name__] = ways
        return run

    return mark


def run_case(name: str, names: bool) -> None:
    with by_names(names):
        CASES[name]()


# Where a topic's name is all that is asked for, frames of what was read wait for an answer about its id.
in_both_ways = _in_ways(BY_ID, BY_NAME)
by_name_only = _in_ways(BY_NAME)


def copied_world(partitions: int = 1, records: int = 2, **script: list[int]) -> World:
    return World(Scripted(**script), partitions=partitions, records=records)


def lane(w: World, name: str) -> Process:
    (query, number) = w.lanes_of(name)[0]
    return query.attempts[number].process


def frames(w: World) -> Log:
    return w.target.log(w.settings.staging_topic, 0)


def under_way(w: World) -> Txn | None:
    """The transaction that delivers, if it holds records already."""
    known = w.target.coordinated.get(f"{w.settings.application_name}.0")
    txn = known.txn if known is not None else None
    topic = w.target.topics.get("orders")
    if txn is None or txn.state != "open" or topic is None or not any(txn in log.open for log in topic.logs):
        return None
    return txn


def _written(w: World) -> int:
    """How many records the destination was ever given."""
    return sum(not e.marker for e in w.target.log("orders", 0).entries)


def mapped(w: World, txn: Txn) -> bool:
    return txn in w.target.log(w.settings.mappings_topic, 0).open


def cut_and_written_anew(w: World, offset: int, records: int) -> None:
    """An unclean election at the source: what is above is gone, and other records take its offsets."""
    log = w.source_log(0)
    log.cut(offset)
    for _ in range(records):
        log.append(None, b"%s/0/%d/%d" % (w.topic_id.encode(), log.end, log.leader_epoch))


def _at_work(w: World) -> bool:
    return under_way(w) is not None


def _commit_timed_out(w: World) -> bool:
    return bool(w.states["unknown outcome: committed"])


def _decided_and_not_visible(w: World) -> bool:
    return bool(w.target.lagging) or any(t.state == "committed" for t in w.target.unfinished)


def folded(w: World) -> None:
    w.run_until(lambda: w.table.folded.get(0, 0) >= w.target.log(w.settings.mappings_topic, 0).end - 1)


@case
@in_both_ways
def records_of_a_topic_made_again_are_not_taken_for_old_ones() -> None:
    """The topic is deleted and made again and its new log grows past the old position before the next
    fetch."""
    w = copied_world()
    with w.living():
        w.start()
        w.run_until(w.copied)
        lane(w, "replicator").paused = True
        w.remake_source()
        w.produce(0, 6)
        lane(w, "replicator").paused = False
        w.settle()


@case
@in_both_ways
def an_answer_about_the_topic_before_does_not_confirm_records_of_the_one_made_again() -> None:
    """The question is answered; then the topic is made again, read and cut into frames; only then the answer
    is heard of."""
    w = copied_world()
    with w.living():
        w.start()
        w.run_until(w.copied)
        w.held_up = {"answers"}
        w.produce(0, 1)
        w.run_for(1.0)
        w.remake_source()
        w.produce(0, 12)
        w.run_for(1.0)
        w.held_up = set()
        w.settle()


@case
@in_both_ways
def a_topic_made_again_and_shorter_than_before_is_no_truncation() -> None:
    """The old position lies outside of the new log: that is out of range, but nothing was cut."""
    w = copied_world(records=5)
    with w.living():
        w.start()
        w.run_until(w.copied)
        w.remake_source()
        w.produce(0, 1)
        w.settle()


@case
@in_both_ways
def records_of_a_topic_made_again_are_not_dropped_as_seen() -> None:
    w = copied_world(records=3)
    with w.living():
        w.start()
        w.run_until(w.copied)
        w.kill_driver(w.instances[0])
        w.remake_source()
        w.produce(0, 3)
        w.settle()


@case
def a_commit_that_never_happened_is_done_again() -> None:
    """Position read again, but `next` kept in memory: the frame would be dropped as seen, and its position
    committed."""
    w = copied_world(EndTxn=[OK, OK, NEVER, NEVER, OK, NEVER])
    with w.living():
        w.start()
        w.run_until(w.copied)
        w.produce(0, 2)
        w.settle()


@case
def a_commit_whose_answer_is_lost_is_not_done_again() -> None:
    w = copied_world(EndTxn=[OK, ANSWER_LOST, OK, ANSWER_LOST])
    with w.living():
        w.start()
        w.run_until(w.copied)
        w.produce(0, 2)
        w.settle()


@case
def a_commit_that_arrives_late_is_not_done_again() -> None:
    """The commit times out, and arrives while the next owner is at any point of its recovery."""
    for steps in range(0, 60, 2):
        w = copied_world(EndTxn=[OK, LATE])
        w.held_up = {"late"}
        with w.living():
            w.start()
            w.run_until(partial(bool, w.late))
            w.run(steps)
            w.held_up = set()
            w.settle()


@case
def a_stale_fold_does_not_spoil_the_table() -> None:
    """Driver A folds, a stale driver B writes its older fold over it, A folds on: a row is missing for
    good."""
    w = copied_world()
    with w.living():
        w.start()
        w.run_until(w.copied)
        w.table.lose()
        first = w.scheduler.spawn(w.process("a"), "a", lambda: (w.table.fold(), None)[1])
        w.run(1)
        w.produce(0, 2)
        w.scheduler.spawn(w.process("b"), "b", lambda: (w.table.fold(), None)[1])
        w.run_until(w.copied)
        w.run_until(lambda: first.done)
        folded(w)
        rows = {(tid, p): s.next for (_, tid, p), s in w.table.states.items()}
        if rows != w.reached:
            raise Wrong(f"the table says {rows}, the mappings {w.reached}")


@case
def with_the_table_lost_and_the_mappings_trimmed_nothing_is_guessed() -> None:
    """A zombie's origin frame arrives, and nobody knows any more how far the partition is: not new, but
    halted."""
    w = copied_world(records=3)
    with w.living():
        w.start()
        w.run_until(w.copied)
        w.lost = True
        mappings = w.target.log(w.settings.mappings_topic, 0)
        mappings.trim(mappings.end)
        w.table.lose()
        w.fold_s = 1e9
        origin = frames(w).entries[0]
        frames(w).append(origin.key, origin.value, origin.headers)
        w.kill_driver(w.instances[1])
        w.run_until(lambda: bool(w.control().halts), 300.0)
        w.run_for(100.0)
        w.check()
        reasons = {h.reason for (a, _), h in w.control().halts.items() if a == DEDUPLICATOR}
        if reasons != {"state-lost"}:
            raise Wrong(f"halted for {reasons}")


@case
def mappings_that_are_cut_behind_a_plan_halt_nothing() -> None:
    """An owner goes by a plan that is older than the last fold, and what was folded is gone from the
    mappings: the table knows all of it. It is planned anew."""
    w = copied_world(records=3)
    with w.living():
        w.start()
        w.run_until(w.copied)
        folded(w)
        mappings = w.target.log(w.settings.mappings_topic, 0)
        mappings.trim(w.table.folded[0])
        assert isinstance(w.chooser, Scripted)
        w.chooser.script["Produce"] = [REFUSED]
        w.produce(0, 2)
        w.run_until(w.copied, 100.0)
        w.check()
        if w.chooser.script["Produce"] or not w.said("end-epoch"):
            raise ShowsNothing("its owner did not go through recovery")
        w.settle()


@case
@in_both_ways
def a_pause_in_the_middle_of_frames_that_wait_loses_none_of_them() -> None:
    """Records are in frames that wait for their topic's id when an operator pauses it; it stands still, and
    goes on later."""
    w = copied_world()
    with w.living():
        w.start()
        w.run_until(w.copied)
        w.held_up = {"answers"}
        w.produce(0, 3)
        w.run_for(1.0)
        said = w.target.log(w.settings.control_topic, 0)
        said.append(None, encode("pause", topics=["orders"], paused=True))
        w.run_for(60.0)
        w.held_up = set()
        w.run_until(w.copied)
        w.produce(0, 3)
        w.run_for(60.0)
        if w.copied():
            raise Wrong("it is copied although it is paused")
        said.append(None, encode("pause", topics=[], paused=False))
        w.settle()


@case
def an_origin_of_latest_is_decided_once() -> None:
    """`latest` resolves to 0; the writer dies before its first frame; a record arrives: the next writer
    begins at 0 all the same."""
    w = World(Scripted(), settings(START_OFFSETS="latest"), partitions=1)
    with w.living():
        w.start()
        w.run_until(lambda: bool(w.said("origin")))
        for instance in w.instances:
            w.kill_driver(instance)
        w.produce(0, 3)
        w.settle()
        if w.delivered[(w.topic_id, 0)][0] != 0:
            raise Wrong("record 0 is lost")


@case
def a_paused_first_leader_does_not_skip_a_partition_that_came_later() -> None:
    """Of two first leaders one sees a partition that the other did not. It says `latest` for it when the link
    has begun without it."""
    late = 0
    for seen in range(4, 36, 4):
        for said in range(4, 36, 2):
            w = World(Scripted(), settings(START_OFFSETS="latest"), partitions=1)
            with w.living():
                w.supervised = False
                w.start("replicator")
                w.run(seen)
                second = w.instances[0].process
                second.paused = True
                if w.said("started"):
                    break
                topic = w.source.topics["orders"]
                topic.logs.append(Log(topic, 1))
                w.produce(1, 3)
                w.start("replicator")
                w.run(said)
                first = w.instances[1].process
                first.paused, second.paused = True, False
                w.run_until(lambda w=w: bool(w.said("started")), 20.0)  # type: ignore[misc]
                if not w.said("started") or any(r["partition"] == 1 for r in w.said("origin")):
                    continue
                late += 1
                # It came after the link had begun: from its beginning, whatever anybody says.
                w._origins[(w.topic_id, 1)] = 0
                w.kill_driver(w.instances[0])
                first.paused = False
                w.run(90)
                w.kill_driver(w.instances[1])
                w.start("deduplicator")
                w.scheduler.somebody_ended = True
                w.settle()
    if not late:
        raise ShowsNothing("the partition never came between")


@case
def a_predecessor_that_commits_during_recovery_is_counted() -> None:
    """A lane of which Spark has lost sight commits while its successor stands at any point of its
    recovery."""
    late = 0
    for begun in (True, False):
        for steps in range(0, 90, 3 if begun else 1):
            w = copied_world(records=1)
            with w.living():
                w.start()
                w.run_until(w.copied)
                w.run_for(1.0)
                w.produce(0, 2)
                if begun:
                    w.run_until(lambda w=w: (txn := under_way(w)) is not None and mapped(w, txn))  # type: ignore[misc]
                else:
                    before = frames(w).end
                    w.run_until(lambda w=w, before=before: frames(w).end > before)  # type: ignore[misc]
                query, number = w.lanes_of("deduplicator")[0]
                zombie = query.lose(number)
                w.zombies.append(zombie)
                zombie.paused = True
                w.run(steps)
                successor, zombie.paused = lane(w, "deduplicator"), False
                successor.paused = True
                w.scheduler.run(w.copied, 20.0)
                late += w.copied()
                successor.paused = False
                w.settle()
    if not late:
        raise ShowsNothing("the predecessor never committed")


@case
def retention_that_takes_only_what_is_delivered_halts_nothing() -> None:
    """A frame is appended; its writer dies before the position is written; retention removes the record; the
    restart is out of range."""
    w = copied_world(records=0)
    with w.living():
        w.start()
        w.run_until(lambda: bool(frames(w).entries))
        w.produce(0, 1)
        w.run_until(w.copied)
        w.kill_driver(w.instances[0])
        w.target.topics[w.settings.positions_topic].logs[0].cut(0)
        w.source_log(0).trim(1)
        w.settle()
        if not w.states["out of range"]:
            raise ShowsNothing("nothing was out of range")


@case
def a_record_that_fails_leaves_no_hole() -> None:
    """A delivery fails while the next frames are in flight."""
    for batch in range(4):
        w = copied_world(records=0)
        with w.living():
            w.start()
            w.produce(0, 1)
            w.run_until(w.copied)
            w.produce(0, batch)
            lane(w, "replicator").producers[-1].refuse_next = KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
            for _ in range(3):
                w.produce(0, 1)
                w.run(4)
            w.settle()


@case
def what_an_owner_leaves_to_the_next_one_is_committed() -> None:
    """A commit's request never arrives, and the epoch ends when the client gives up: what the next epoch
    begins with has none of it."""
    left = 0
    for seconds in (18.0, 20.0, 22.0, 24.0, 26.0, 28.0):
        w = copied_world()
        with w.living():
            w.start()
            w.run_until(w.copied)
            assert isinstance(w.chooser, Scripted)
            w.chooser.script["EndTxn"] = [NEVER]
            w.produce(0, 2)
            w.run_until(lambda w=w: not w.chooser.script["EndTxn"])  # type: ignore[misc]
            w.run_for(seconds)
            faults.end_epoch(w, "deduplicator")
            w.produce(0, 1)  # so that the lane wakes up
            w.run_for(20.0)
            w.settle()
            # Nothing was under way at the end of this one.
            before = w.states["began with what an owner left"]
            faults.end_epoch(w, "deduplicator")
            w.run_for(20.0)
            w.settle()
            left += w.states["began with what an owner left"] > before
    if not left:
        raise ShowsNothing("no owner left anything")


@case
def what_came_after_what_an_owner_left_is_read() -> None:
    """An owner leaves what it knows to the next one, who delivers more and dies; whoever comes then begins
    with what the first one left."""
    w = copied_world()
    with w.living():
        w.start()
        w.run_until(w.copied)
        faults.end_epoch(w, "deduplicator")
        w.run_for(25.0)
        w.produce(0, 2)
        w.run_until(w.copied)
        if not w.states["began with what an owner left"]:
            raise ShowsNothing("no owner left anything")
        w.kill(lane(w, "deduplicator"))
        w.run_for(25.0)
        w.settle()


@case
def a_hole_that_is_filled_holds_nothing_up() -> None:
    """Frames are lost from staging; the replicator sends them again; everything goes on, and nothing is held
    any more."""
    for how in range(4):
        w = copied_world(records=2)
        with w.living():
            w.start()
            w.run_until(w.copied)
            lane(w, "deduplicator").paused = True
            w.produce(0, 2)
            w.run_for(5.0)
            faults.harm_frames(w, _picks(0, 0, 0, how))
            w.produce(0, 2)
            w.run_for(5.0)
            lane(w, "deduplicator").paused = False
            w.settle()
            w.run_for(50.0)
            if not w.said("resend"):
                raise Wrong("nothing was missed")
            if w.control().holds:
                raise Wrong(f"held for ever: {w.control().holds}")


@case
def a_hole_is_asked_for_again_when_the_answer_is_lost_too() -> None:
    w = copied_world(records=2)
    with w.living():
        w.start()
        w.run_until(w.copied)
        _missed(w)
        lane(w, "deduplicator").paused = True
        w.run_for(20.0)
        w.harmed = True
        for entry in frames(w).entries:
            entry.marker = True
        lane(w, "deduplicator").paused = False
        w.produce(0, 1)
        w.run_until(w.copied, 200.0)
        w.settle()


def _missed(w: World) -> None:
    """A frame is lost, the one behind it is looked at, and the lost one is asked for."""
    w.harmed = True
    lane(w, "deduplicator").paused = True
    w.produce(0, 2)
    w.run_for(5.0)
    frames(w).entries[-1].marker = True
    w.produce(0, 2)
    w.run_for(5.0)
    lane(w, "deduplicator").paused = False
    w.run_until(lambda: bool(w.said("resend")), 100.0)


@case
@by_name_only
def a_demand_that_comes_with_records_in_hand_is_answered_in_order() -> None:
    """The lane has fetched a record and not cut it yet, since a question is open, when it turns back."""
    w = copied_world(records=2)
    with w.living():
        w.start()
        w.run_until(w.copied)
        w.harmed = True
        lane(w, "deduplicator").paused = True
        w.produce(0, 2)
        w.run_for(5.0)
        frames(w).entries[-1].marker = True
        w.produce(0, 2)
        w.run_for(5.0)
        w.held_up = {"answers"}
        w.produce(0, 1)
        w.run_for(5.0)
        lane(w, "replicator").paused, lane(w, "deduplicator").paused = True, False
        w.run_until(lambda: bool(w.said("resend")), 100.0)
        w.produce(0, 1)
        w.run_for(10.0)
        lane(w, "replicator").paused = False
        w.run_for(1.0)
        w.held_up = set()
        w.run_until(w.copied, 100.0)
        w.settle()
        if len(w.said("resend")) != 1:
            raise Wrong("the answer was no good: it was asked for again")


@case
def a_demand_that_comes_with_records_parked_for_a_limit_is_answered_in_order() -> None:
    """The lane has fetched more than its limit lets into frames, when it turns back."""
    w = copied_world(records=2)
    with w.living():
        w.start()
        w.run_until(w.copied)
        said = w.target.log(w.settings.control_topic, 0)
        said.append(None, encode("limit", topics=["orders"], bytes_per_second=None, records_per_second=1))
        w.run_for(10.0)
        _missed(w)
        w.produce(0, 60)
        w.run_for(20.0)
        said.append(None, encode("limit", topics=["orders"], bytes_per_second=None, records_per_second=None))
        w.run_until(w.copied, 100.0)
        w.settle()


@case
def a_partition_whose_first_frame_is_lost_begins_at_its_origin() -> None:
    w = copied_world(records=2)
    with w.living():
        w.start("replicator")
        w.run_until(lambda: frames(w).end >= 2)
        w.produce(0, 1)
        w.run_until(lambda: frames(w).end >= 3)
        w.harmed = True
        frames(w).entries[0].marker = frames(w).entries[1].marker = True
        w.start("deduplicator")
        w.settle()


@case
def staging_wiped_while_the_source_is_idle_is_noticed() -> None:
    """No later frame would ever show the hole. The next lane says where it stands, and so it is seen."""
    w = copied_world(records=2)
    with w.living():
        w.start()
        w.run_until(w.copied)
        lane(w, "deduplicator").paused = True
        w.produce(0, 2)
        w.run_for(30.0)
        w.harmed = True
        frames(w).trim(frames(w).end)
        w.kill_driver(w.instances[0])
        lane(w, "deduplicator").paused = False
        w.run_until(w.copied, 300.0)
        w.settle()


@case
def held_frames_are_not_trimmed() -> None:
    """One partition has a hole, another goes on: the table is folded, and staging not trimmed past what the
    first one skipped."""
    w = copied_world(partitions=2, records=2)
    w.fold_s = 2.0
    with w.living():
        w.start()
        w.run_until(w.copied)
        w.harmed = True
        lane(w, "deduplicator").paused = True
        first = frames(w).end
        for partition in (0, 0, 1):
            w.produce(partition, 2)
            w.run_for(5.0)
        next(e for e in frames(w).entries if e.offset >= first).marker = True
        w.supervised = False
        w.kill_driver(w.instances[0])
        lane(w, "deduplicator").paused = False
        w.run_until(lambda: bool(w.control().holds), 100.0)
        w.run_for(60.0)
        held = next(iter(w.control().holds.values())).held
        assert held is not None
        if frames(w).start > held[1]:
            raise Wrong(f"staging begins at {frames(w).start}, held is {held}")
        if len(w.delivered[(w.topic_id, 1)]) != 4:
            raise Wrong("the other partition does not go on")
        w.settle()


@case
@in_both_ways
def a_tail_without_records_is_no_hole() -> None:
    """The last offsets of a partition hold no record: the position moves past them, and the next frame
    continues."""
    w = copied_world(records=0)
    with w.living():
        w.start()
        for _ in range(3):
            w.produce(0, 1, 2, 2)
            w.run_until(w.copied)
            w.run_for(20.0)
            w.kill(lane(w, "replicator"))
        w.settle()


@case
def expired_offsets_change_nothing() -> None:
    """The group's offsets expire, or are moved back below what staging still has."""
    for moved_back in (False, True):
        w = copied_world(records=2)
        w.fold_s = 5.0
        with w.living():
            w.start()
            w.run_until(w.copied)
            folded(w)
            w.run_until(lambda w=w: frames(w).start > 0)  # type: ignore[misc]
            for at in list(w.target.group_offsets):
                if moved_back:
                    w.target.group_offsets[at] = 0
                else:
                    del w.target.group_offsets[at]
            w.kill(lane(w, "deduplicator"))
            w.settle()


@case
@in_both_ways
def a_writer_that_dies_at_any_point_leaves_no_hole() -> None:
    """Among others: its position is written, and the frames below it never arrive."""
    for steps in range(40):
        w = copied_world(records=1)
        with w.living():
            w.start()
            w.run_until(w.copied)
            w.run_for(3.0)
            w.produce(0, 2)
            w.run(steps)
            if steps % 2:
                w.produce(0, 1)
                w.run_for(1.5)
            w.kill(lane(w, "replicator"))
            w.settle()


@case
def staging_is_not_trimmed_to_a_position_that_was_only_attempted() -> None:
    w = copied_world(EndTxn=[OK, OK, NEVER])
    w.fold_s = 3.0
    with w.living():
        w.start()
        w.run_until(w.copied)
        for _ in range(3):
            w.produce(0, 1)
            w.run_for(10.0)
        w.settle()


@case
def a_coordinator_that_does_not_answer_is_no_successor() -> None:
    """The only owner meets time-outs, and goes on."""
    w = copied_world(InitProducerId=[2, 1, 2])
    with w.living():
        w.start()
        w.settle()


@case
def two_owners_do_not_fence_each_other_for_ever() -> None:
    """A leader pauses, another takes over and fences its lane; it wakes, and takes being fenced for a
    time-out."""
    fenced = 0
    for timed_out, steps in [(False, n) for n in range(8)] + [(True, n) for n in range(3)]:
        w = copied_world(records=1, EndTxn=[OK, OK, NEVER] if timed_out else [])
        with w.living():
            w.start()
            w.run_until(w.copied)
            w.run_for(1.0)
            w.produce(0, 1)
            # At work, or on the way to recovery after a commit that timed out.
            w.run_until(partial(_commit_timed_out if timed_out else _at_work, w))
            w.run(steps)
            old, zombie = w.instances[1], lane(w, "deduplicator")
            old.process.paused = zombie.paused = True
            w.start("deduplicator")
            w.produce(0, 1)
            w.run_until(w.copied)
            epoch = w.target.coordinated["link.0"].epoch
            zombie.paused = False
            for _ in range(5):
                w.produce(0, 1)
                w.run_for(15.0)
            fenced += w.states["an owner found itself fenced"]
            if w.target.coordinated["link.0"].epoch != epoch:
                raise Wrong("it fenced its successor")
            w.settle()
    if not fenced:
        raise ShowsNothing("nobody was fenced")


@case
def a_commit_that_is_not_visible_yet_is_waited_for() -> None:
    """The coordinator has decided; markers are written late, and replicated later still; meanwhile the owner
    dies."""
    for what in ("markers", "replication"):
        for steps in range(0, 60, 3):
            w = copied_world(records=1)
            with w.living():
                w.start()
                w.run_until(w.copied)
                w.lazy, w.held_up = True, {what}
                w.produce(0, 2)
                w.run_until(partial(_decided_and_not_visible, w))
                w.kill(lane(w, "deduplicator"))
                w.run(steps)
                w.held_up = set()
                w.settle()


@case
@in_both_ways
def a_source_that_was_cut_halts_by_name() -> None:
    """Unclean leader election: the same offsets, other content. What was copied stays as it is, and nothing
    is put in its place."""
    for alive in (True, False):
        w = copied_world(records=4)
        with w.living():
            w.start()
            w.run_until(w.copied)
            w.run_for(10.0)
            w.lost = True
            if not alive:
                w.kill_driver(w.instances[0])
            cut_and_written_anew(w, 2, 6)
            w.run_until(lambda w=w: bool(w.control().halts), 100.0)  # type: ignore[misc]
            w.run_for(50.0)
            w.check()
            if {h.reason for h in w.control().halts.values()} != {"source-truncated"}:
                raise Wrong(f"halted for {w.control().halts}")
            if w.delivered[(w.topic_id, 0)] != [0, 1, 2, 3]:
                raise Wrong(f"went on: {w.delivered}")


@case
@in_both_ways
def what_the_source_lost_halts_until_the_loss_is_accepted() -> None:
    """Retention overtakes the replicator; an operator accepts; what staging still holds is not lost with
    it."""
    w = copied_world(records=2)
    with w.living():
        w.start()
        w.run_until(w.copied)
        w.run_for(10.0)
        w.supervised = False
        w.kill_driver(w.instances[0])
        w.produce(0, 4)
        w.source_log(0).trim(4)
        w.lost = w.supervised = w.scheduler.somebody_ended = True
        w.run_until(lambda: bool(w.control().halts), 300.0)
        w.run_for(50.0)
        if w.delivered[(w.topic_id, 0)] != [0, 1]:
            raise Wrong(f"went on: {w.delivered}")
        faults.accept_all_losses(w)
        w.settle()
        if w.delivered[(w.topic_id, 0)] != [0, 1, 4, 5, 6]:
            raise Wrong(f"{w.delivered}")
        w.run_for(100.0)
        if w.control().halts or w.control().holds:
            raise Wrong(f"still halted: {w.control().halts} {w.control().holds}")


@case
def a_demand_of_an_owner_that_was_fenced_since_is_no_loss() -> None:
    """It finds frames missing, asks for them, and dies; its successor has them delivered, and the source lets
    go of them; then the demand arrives."""
    w = copied_world(records=2)
    with w.living():
        w.start()
        w.run_until(w.copied)
        _missed(w)
        w.run_until(w.copied, 200.0)
        w.source_log(0).trim(w.source_log(0).end - 1)
        control = w.target.log(w.settings.control_topic, 0)
        first = next(e for e in control.entries if e.value is not None and b'"resend"' in e.value)
        control.append(None, first.value)
        w.settle()
        w.run_for(50.0)
        w.check()


@case
def another_writers_records_do_not_spoil_the_mappings() -> None:
    """They come between two batches of a transaction."""
    between = 0
    for shift in range(40):
        w = copied_world(records=1)
        with w.living():
            w.start()
            w.run_until(w.copied)
            w.run(shift)
            w.produce(0, 6)
            w.run_until(partial(_at_work, w))
            w.target.log("orders", 0).append(None, b"foreign")
            w.run_until(w.copied)
            between += w.states["another writer's records came between two batches"]
            w.settle()
    if not between:
        raise ShowsNothing("no record came between two batches")


@case
def another_writer_costs_no_more_than_one_transaction() -> None:
    """Its records stand before each run: whoever foresaw another offset gives that transaction up, and
    foresees none from then on."""
    w = copied_world(records=1)
    with w.living():
        w.start()
        w.run_until(w.copied)
        owner = w.target.coordinated[f"{w.settings.application_name}.0"]
        before = owner.epoch
        for _ in range(4):
            w.target.log("orders", 0).append(None, b"foreign")
            w.produce(0, 2)
            w.run_until(w.copied)
            w.run_for(1.0)  # or two pauses without a turn between would look like a call that hangs
        if owner.epoch == before:
            raise ShowsNothing("no offset was foreseen")
        if owner.epoch != before + 1:
            raise Wrong(f"{owner.epoch - before} transactions were given up")
        w.settle()


def _staged_first(w: World, happens: Callable[[], object]) -> None:
    """What happens at the source is all in staging when the owners there see the first of it."""
    delivering = lane(w, "deduplicator")
    delivering.paused = True
    happens()
    w.run_for(60.0)
    delivering.paused = False


def _produce_both(w: World, n: int) -> None:
    for topic in w.topics:
        w.produce(0, n, topic=topic)


def _owners(w: World) -> list[int]:
    """How often each staging partition was fenced."""
    return [w.target.coordinated[f"{w.settings.application_name}.{p}"].epoch for p in range(2)]


@case
def several_sources_in_one_partition_are_mapped_exactly() -> None:
    """Two owners write to one partition of the destination at once; neither gives a transaction up for it."""
    interleaved = 0
    for seed in range(6):
        w = World(Seeded(seed, 0.0), MERGED, partitions=1, records=1)
        with w.living():
            w.start()
            w.run_until(w.copied)
            owners = _owners(w)
            for _ in range(4):
                _staged_first(w, partial(_produce_both, w, 6))
                w.run_until(w.copied)
                w.run_for(1.0)  # or two pauses without a turn between would look like a call that hangs
            if _owners(w) != owners:
                raise Wrong(f"transactions were given up: {owners}, then {_owners(w)}")
            w.settle()
            interleaved += w.states["records of several sources interleave"]
    if not interleaved:
        raise ShowsNothing("no record of one source came between those of the other")


@case
def a_source_that_joins_another_later_is_told_apart_from_the_first_record_on() -> None:
    """Whoever owns the first one's partition hears of it after the second one's owner, in the middle of a
    run."""
    interleaved = 0
    for seed in range(12):
        w = World(Seeded(seed, 0.0), MERGED, partitions=1)
        with w.living():
            w.source.delete(OTHER)
            w.topics = [TOPIC]
            w.produce(0, 2)
            w.start()
            w.run_until(w.copied)
            w.topics = [TOPIC, OTHER]
            w.make_source(1, OTHER)
            w.produce(0, 8, topic=OTHER)
            _staged_first(w, partial(w.produce, 0, 8))
            w.run_until(w.copied)
            w.settle()
            interleaved += w.states["records of several sources interleave"]
    if not interleaved:
        raise ShowsNothing("no record of one source came between those of the other")


@case
def a_destination_of_several_sources_that_becomes_compacted_takes_nothing_more_until_it_is_not() -> None:
    """The sources are compacted, and so is it: as a copy of one of them it would do. Both are refused, and go
    on once it is as it was."""
    w = World(Scripted(), MERGED, partitions=1, records=1)
    with w.living():
        w.start()
        w.run_until(w.copied)
        configs = [w.target.topics[TOPIC].config, *(w.source.topics[topic].config for topic in w.topics)]
        before = configs[0]["cleanup.policy"]
        for config in configs:
            config["cleanup.policy"] = "compact"
        w.run_until(partial(_refused, w, 2), 200.0)
        w.run_for(100.0)
        if any(
            "would delete those of the other" not in (to.refused or "")
            for to in w.control().destinations.values()
        ):
            raise Wrong(f"not refused for that: {w.control().destinations}")
        delivered = {key: list(offsets) for key, offsets in w.delivered.items()}
        _produce_both(w, 3)
        w.run_for(100.0)
        if w.delivered != delivered:
            raise Wrong(f"delivered into a compacted topic: {delivered}, then {w.delivered}")
        if {h.reason for h in w.control().halts.values()} != {"destination-refused"}:
            raise Wrong(f"not halted by name: {w.control().halts}")
        for config in configs:
            config["cleanup.policy"] = before
        w.run_until(partial(_refused, w, 0), 200.0)
        w.lost = True  # the halts above are no mistake
        w.settle()
        w.run_until(partial(_nothing_halted, w), 100.0)


def _falls_silent(w: World, topic: str) -> None:
    """No client that reads the topic now ever gets another record of it, nor an error."""
    for consumer in w.consumers:
        for reading in consumer.readings.values():
            reading.stopped |= reading.topic == topic


def _goes_on(breaks: Callable[[World], None], happens: Callable[[World], None], seconds: float) -> None:
    """Though a client breaks without a word. An epoch ends by itself after ten minutes, and the next one has
    other clients."""
    w = copied_world()
    with w.living():
        w.start()
        w.run_until(w.copied)
        breaks(w)
        happens(w)
        w.run_until(w.copied, seconds)
        w.check()


@case
def a_source_client_that_goes_silent_is_replaced() -> None:
    """The replicator's client ceases to fetch, and says nothing."""
    _goes_on(lambda w: _falls_silent(w, TOPIC), lambda w: w.produce(0, 2), 120.0)


@case
def a_staging_client_that_goes_silent_is_replaced() -> None:
    """The same of the deduplicator's."""
    _goes_on(lambda w: _falls_silent(w, w.settings.staging_topic), lambda w: w.produce(0, 2), 120.0)


@case
def a_control_client_that_goes_silent_is_replaced() -> None:
    """The same of all that read the control topic. A topic made again needs a word of each driver to the
    other's lanes."""

    def happens(w: World) -> None:
        w.remake_source()
        w.produce(0, 2)

    _goes_on(lambda w: _falls_silent(w, w.settings.control_topic), happens, 120.0)


@case
def a_staging_producer_that_hears_no_more_is_replaced() -> None:
    """The replicator's producer and a broker disagree about what comes next: nothing is sent any more, and no
    error is told."""

    def breaks(w: World) -> None:
        for query, lane in w.lanes_of("replicator"):
            for producer in query.attempts[lane].process.producers:
                producer.stuck.add(w.settings.staging_topic)

    _goes_on(breaks, lambda w: w.produce(0, 2), 180.0)


def _nothing_halted(w: World) -> bool:
    return not w.control().halts


def _refused(w: World, topics: int) -> bool:
    return sum(to.refused is not None for to in w.control().destinations.values()) == topics


@case
def a_batch_that_is_refused_is_not_left_out_of_what_is_committed() -> None:
    """Whichever it is of the transaction's: one of records, or the mapping behind them."""
    for ends in ([REFUSED], [OK, REFUSED], [OK, OK, REFUSED], [OK, OK, OK, REFUSED]):
        w = copied_world()
        with w.living():
            w.start()
            w.run_until(w.copied)
            assert isinstance(w.chooser, Scripted)
            # A new owner foresees no offsets: then the mapping goes by itself, when the records are reported.
            w.kill(lane(w, "deduplicator"))
            w.run_for(30.0)
            w.chooser.script["Produce"] = list(ends)
            w.produce(0, 2)
            w.run_until(w.copied)
            w.settle()
            if w.chooser.script["Produce"]:
                raise ShowsNothing("nothing was refused")


@case
def a_destination_that_takes_nothing_stops_nobody_else_and_gets_what_it_missed() -> None:
    """Whatever the error that it answers with, or where it answers nothing; also where its owner ends
    meanwhile."""
    for code in (
        None,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError.UNKNOWN,
    ):
        for dies in ("not", "before", "after"):
            w = copied_world(partitions=2)
            with w.living():
                w.start()
                w.run_until(w.copied)
                sick, sound = w.target.log("orders", 0), w.target.log("orders", 1)
                sick.refuses, sick.silent = code, code is None
                before = len(sound.committed())
                w.produce(0, 2)
                w.run_for(30.0)
                if dies == "before":
                    w.kill(lane(w, "deduplicator"))
                    w.run_for(30.0)
                w.produce(1, 2)
                # Who is silent has been waited for twice.
                w.run_for(150.0 if code is None else 60.0)
                assert len(sound.committed()) == before + 2, f"error {code}: its neighbour stands still"
                reasons = {halt.reason for halt in w.control().halts.values()}
                assert reasons and reasons <= AT_THE_DESTINATION, f"error {code}: halted as {reasons}"
                if dies == "after":
                    w.kill(lane(w, "deduplicator"))
                    w.run_for(30.0)
                # What is staged is held for it: the source need not have it any more.
                w.source_log(0).trim(w.source_log(0).end)
                sick.refuses, sick.silent = None, False
                w.settle()
                w.run_until(partial(_nothing_halted, w))


@case
def a_producer_whose_connection_breaks_is_not_used_again() -> None:
    """With a batch on its way, or appended and the answer lost; the late ones find themselves fenced."""
    for ends in ([LOST], [ANSWERED_INTO_THE_VOID], [OK, LOST], [OK, ANSWERED_INTO_THE_VOID]):
        for late in (0, 1):
            w = World(Scripted(**{"what was sent": [late] * 9}), partitions=1, records=2)
            with w.living():
                w.start()
                w.run_until(w.copied)
                assert isinstance(w.chooser, Scripted)
                w.chooser.script["Produce"] = list(ends)
                w.produce(0, 3)
                w.settle()


@case
def a_transaction_behind_a_commit_that_is_late_has_another_owner() -> None:
    """The commit's answer never comes, and the commit arrives when there are records again and no mapping."""
    for steps in range(12):
        w = copied_world()
        w.held_up = {"late"}
        with w.living():
            w.start()
            w.run_until(w.copied)
            assert isinstance(w.chooser, Scripted)
            w.chooser.script["EndTxn"] = [LATE]
            w.produce(0, 1)
            w.run_until(partial(bool, w.late))
            before = _written(w)
            w.produce(0, 2)
            w.run_until(lambda w=w, before=before: _written(w) > before)  # type: ignore[misc]
            w.run(steps)
            w.all_late_arrives()
            w.kill(lane(w, "deduplicator"))
            w.settle()


@case
def what_was_read_before_the_source_is_read_again_is_not_sent_twice() -> None:
    """One answer says that a position is out of range, and has records of another partition. The log has
    grown meanwhile, so all is read again from where it was; then the records are taken in."""
    met = 0
    for seed in range(20):
        w = World(Seeded(seed), settings(START_OFFSETS="latest"), partitions=2, records=3)
        with w.living():
            w.start()
            w.run_until(lambda w=w: len(w.said("origin")) == 2)  # type: ignore[misc]
            w.source_log(0).cut(1)
            w.produce(1, 2)
            w.run_until(lambda w=w: bool(w.states["out of range"] or w.copied()))  # type: ignore[misc]
            met += w.states["out of range"]
            w.produce(0, 4)
            w.produce(1, 1)
            w.settle()
            w.run_for(60.0)
            w.check()
    if not met:
        raise ShowsNothing("no position was out of range")


def _hangs(w: World) -> bool:
    """Whether something of a transaction that has ended is still open at the destination."""
    return any(txn.state != "open" and not txn.unmarked for txn in w.target.log("orders", 0).open)


def _loses_a_marker(w: World, *ends: int) -> dict[str, list[int]]:
    """Records come, and the destination has no leader when the marker of their transaction is due, whose
    EndTxn ends so; the script of what ends how from then on."""
    w.start()
    w.run_until(w.copied)
    assert isinstance(w.chooser, Scripted)
    w.chooser.script["EndTxn"] = list(ends)
    w.target.log("orders", 0).leaderless = True
    w.produce(0, 2)
    return w.chooser.script


@case
def what_hangs_is_closed_as_it_ended_by_whoever_comes_next() -> None:
    """The destination has no leader when the marker is due, and its owner ends there: an abort that hangs
    would come with the successor's first commit, a commit would go with its first abort."""
    hung = set()
    for ends in ([NEVER], [OK], [ANSWER_LOST]):
        for steps in range(0, 24, 3):
            w = copied_world()
            with w.living():
                script = _loses_a_marker(w, *ends)
                w.run_until(lambda script=script: not script["EndTxn"])  # type: ignore[misc]
                w.run(steps)
                w.kill(lane(w, "deduplicator"))
                w.run_until(lambda w=w: not w.target.log("orders", 0).leaderless)  # type: ignore[misc]
                hung |= {txn.state for txn in w.target.log("orders", 0).open if not txn.unmarked}
                w.produce(0, 1)
                w.settle()
    if hung != {"committed", "aborted"}:
        raise ShowsNothing(f"only {hung} hung")


@case
def what_closes_it_may_lack_its_marker_too() -> None:
    """The destination is without a leader once more, when whoever came next puts the missing marker. Its next
    transaction would decide both."""
    for ends, hung in (([NEVER], "aborted"), ([OK], "committed")):
        w = copied_world()
        with w.living():
            script = _loses_a_marker(w, *ends)
            log = w.target.log("orders", 0)
            w.run_until(lambda script=script: not script["EndTxn"])  # type: ignore[misc]
            w.kill(lane(w, "deduplicator"))
            w.run_until(lambda log=log: not log.leaderless)  # type: ignore[misc]
            if {txn.state for txn in log.open} != {hung}:
                raise ShowsNothing(f"nothing that is {hung} hangs")
            log.leaderless = True
            # A transaction that is given up would not be decided by an abort.
            script["EndTxn"] = [OK, OK, NEVER if hung == "committed" else OK]
            w.produce(0, 1)
            w.settle()
            if log.leaderless or log.elections < 2:
                raise ShowsNothing("one marker was missing, not two")


@case
def whoever_dies_while_it_closes_what_hangs_changes_nothing() -> None:
    """The transaction that puts the missing marker is under way when its owner ends: of a commit, it is not
    to be aborted, and of an abort, not to be committed."""
    for ends in ([OK], [NEVER]):
        for steps in range(12):
            w = copied_world()
            with w.living():
                script = _loses_a_marker(w, *ends)
                w.run_until(lambda script=script: not script["EndTxn"])  # type: ignore[misc]
                w.kill(lane(w, "deduplicator"))
                # The first one is of the record that shows where the mappings end.
                script["EndTxn"] = [OK, NEVER, OK, NEVER]
                w.run_until(lambda script=script: len(script["EndTxn"]) < 3)  # type: ignore[misc]
                w.run(steps)
                w.kill(lane(w, "deduplicator"))
                w.settle()
                if not w.states["a transaction was found open"]:
                    raise ShowsNothing("nothing hung")


@case
def a_commit_that_hangs_while_nothing_comes_does_not_go_with_the_next_abort() -> None:
    """Its owner hears that it is committed, and nothing of the marker that is missing; its next transaction
    there is aborted."""
    w = copied_world()
    with w.living():
        script = _loses_a_marker(w)
        w.run_until(partial(_hangs, w))
        w.run_for(3.0)
        script["EndTxn"] = [NEVER]
        w.produce(0, 2)
        w.settle()


@case
def what_hangs_is_closed_though_nothing_comes() -> None:
    """Whoever reads there would see nothing more before the next transaction."""
    w = copied_world()
    with w.living():
        _loses_a_marker(w)
        w.run_until(partial(_hangs, w))
        w.run_for(60.0)
        assert not _hangs(w)
        w.settle()


@dataclass(frozen=True)
class _Beside:
    """Where records go besides the link's own destination. `begin`: has all of them go there; `logs`: there,
    once some are there."""

    begin: Callable[[World], None]
    logs: Callable[[World], list[Log]]

    def loses_a_marker(self, w: World, *ends: int) -> dict[str, list[int]]:
        """As _loses_a_marker, there; the answers that are left."""
        self.begin(w)
        w.start()
        w.run_until(lambda: bool(self.logs(w)) and w.copied())
        assert isinstance(w.chooser, Scripted)
        w.chooser.script["EndTxn"] = list(ends)
        self.logs(w)[0].leaderless = True
        w.produce(0, 2)
        return w.chooser.script

    def is_closed_as_it_ended(self) -> None:
        """What hangs there, by whoever comes next, wherever its owner dies."""
        hung = set()
        for ends in ([NEVER], [OK], [ANSWER_LOST]):
            for steps in range(0, 24, 3):
                w = copied_world()
                with w.living():
                    script = self.loses_a_marker(w, *ends)
                    w.run_until(lambda script=script: not script["EndTxn"])  # type: ignore[misc]
                    w.run(steps)
                    w.kill(lane(w, "deduplicator"))
                    w.run_until(lambda w=w: not self.logs(w)[0].leaderless)  # type: ignore[misc]
                    hung |= {txn.state for txn in self.logs(w)[0].open if not txn.unmarked}
                    w.produce(0, 1)
                    w.settle()
        if hung != {"committed", "aborted"}:
            raise ShowsNothing(f"only {hung} hung")


_LETTERS = _Beside(
    lambda w: w.pipelines.change("", "0123456789"), lambda w: w.letter_logs() if w.letters else []
)
"""A stage fails on each record."""
_ROUTES = _Beside(
    lambda w: w.pipelines.change("", routes=(("0123456789", ROUTED[0]),)), lambda w: w.routed_logs()
)


@case
def dead_letters_that_hang_are_closed_as_they_ended_by_whoever_comes_next() -> None:
    """Those of an abort would come with the successor's first commit, beside the second ones; those of a
    commit would go with its first abort."""
    _LETTERS.is_closed_as_it_ended()


@case
def routed_records_that_hang_are_closed_as_they_ended_by_whoever_comes_next() -> None:
    """As those of the link's own destination, of a topic that a stage takes all to."""
    _ROUTES.is_closed_as_it_ended()


@case
def a_topic_of_a_route_that_takes_nothing_holds_its_source_partition_and_nobody_else() -> None:
    """What comes for it is held, also where its owner dies meanwhile, and comes once it takes records
    again."""
    for dies in (False, True):
        w = copied_world(partitions=2)
        with w.living():
            w.pipelines.change("", routes=(("0123456789", ROUTED[0]),))
            w.start()
            w.run_until(w.copied)
            sick, sound = w.routed_logs()[:2]
            sick.refuses = KafkaError.NOT_ENOUGH_REPLICAS
            before = len(sound.committed())
            w.produce(0, 2)
            w.run_for(30.0)
            if dies:
                w.kill(lane(w, "deduplicator"))
                w.run_for(30.0)
            w.produce(1, 2)
            w.run_for(60.0)
            assert len(sound.committed()) == before + 2, "its neighbour stands still"
            reasons = {halt.reason for halt in w.control().halts.values()}
            assert reasons and reasons <= AT_THE_DESTINATION, f"halted as {reasons}"
            w.source_log(0).trim(w.source_log(0).end)
            sick.refuses = None
            w.settle()
            w.run_until(partial(_nothing_halted, w))


@case
def dead_letters_that_hang_are_closed_though_nothing_comes() -> None:
    w = copied_world()
    with w.living():
        _LETTERS.loses_a_marker(w)
        w.run_until(lambda: any(not txn.unmarked for txn in w.letter_logs()[0].open))
        w.run_for(60.0)
        assert not w.letter_logs()[0].open
        w.settle()


def _holds_back(process: Process, staging: str | None) -> None:
    """What the process sends to staging stays on its way; None: goes on."""
    for producer in process.producers:
        producer.stuck = set() if staging is None else {staging}


def _on_its_way(process: Process) -> int:
    """Frames that the process has sent and that have not arrived."""
    return sum(bool(queued.headers) for producer in process.producers for queued in producer.queue)


def _frames_of(w: World, pipeline: int) -> int:
    """How many frames with records staging got of a pipeline."""
    said = [dict(entry.headers or []) for entry in frames(w).entries]
    return sum(h.get("pipeline") == b"%d" % pipeline and h.get("count") != b"0" for h in said)


@case
def a_frame_of_an_older_pipeline_decides_nothing_after_one_of_a_newer() -> None:
    """Frames of the first version are on their way when their driver dies; its successor has another one, of
    which a frame is delivered, and others wait. Then the first ones arrive. Also where their owner is another
    one by then, who knows from the mappings alone, from the table, or from what was left to it."""
    for meanwhile in ("nothing", "dies", "dies after a fold", "an epoch ends"):
        w = copied_world()
        with w.living():
            w.pipelines.change("")
            w.start()
            w.run_until(w.copied)
            staging, old = w.settings.staging_topic, lane(w, "replicator")
            _holds_back(old, staging)
            w.produce(0, 9)
            w.run_until(lambda old=old: _on_its_way(old) >= 3)  # type: ignore[misc]
            old.paused = True
            w.pipelines.change("05")
            w.kill_driver(w.instances[0], executors_too=False)
            w.run_until(lambda w=w: _frames_of(w, 2) >= 1)  # type: ignore[misc]
            _holds_back(new := lane(w, "replicator"), staging)
            w.run_until(lambda w=w: w.version(0) == 2)  # type: ignore[misc]
            if meanwhile == "an epoch ends":
                assert faults.end_epoch(w, "deduplicator")
                w.run_for(15.0)
            elif meanwhile != "nothing":
                if meanwhile == "dies after a fold":
                    folded(w)
                w.kill(lane(w, "deduplicator"))
                w.run_for(15.0)
            _holds_back(old, None)
            w.run_until(lambda old=old: not _on_its_way(old))  # type: ignore[misc]
            w.run_for(5.0)
            _holds_back(new, None)
            w.settle()
            if not w.states["a frame of an older pipeline was refused"]:
                raise ShowsNothing(meanwhile)


def _waits_for_a_schema(w: World) -> bool:
    return [halt.reason for halt in w.control().halts.values()] == [HaltReason.SCHEMA_UNKNOWN]


def _nothing_stands(w: World) -> bool:
    return not w.control().halts


@case
def nothing_passes_a_record_whose_schema_is_not_known_until_it_is() -> None:
    """Records 4 to 7 have a schema that the map does not have yet; those before and behind them have one that
    it has. Whatever becomes of the lane, and whether the topic of the map is there, none of what is behind
    the first of them comes; once the map has it, all come, each with the id that it has there."""
    for meanwhile in ("nothing", "a lane dies", "the driver dies", "an epoch ends", "the map is not there"):
        w = copied_world(records=0)
        with w.living():
            w.pipelines.schemas = {}
            w.pipelines.change("")
            if meanwhile != "the map is not there":
                w.know(1, 3)
            w.produce(0, 10)
            w.start()
            w.run_until(partial(_waits_for_a_schema, w))
            if meanwhile == "a lane dies":
                w.kill(lane(w, "replicator"))
            elif meanwhile == "the driver dies":
                w.kill_driver(w.instances[0])
            elif meanwhile == "an epoch ends":
                assert faults.end_epoch(w, "replicator")
            w.run_for(100.0)
            have = w.delivered.get((w.topic_id, 0), [])
            if have != ([0] if meanwhile == "the map is not there" else [0, 1, 2, 3]):
                raise Wrong(f"{meanwhile}: {have} came")
            w.know(1, 3)
            w.run_for(100.0)
            if (have := w.delivered[w.topic_id, 0]) != [0, 1, 2, 3]:
                raise Wrong(f"{meanwhile}: {have} came")
            w.know(*range(2, 20))
            w.settle()
            w.run_until(partial(_nothing_stands, w))


@case
def one_too_many_of_a_window_halts_whoever_comes_to_it_and_no_other_does() -> None:
    """Three fail of each 20 offsets, and two are tolerated. Between them lanes die, an epoch ends, a driver
    dies, or what is in staging goes, and is sent again; so it does while the partition is halted. Another
    pipeline counts anew."""
    for meanwhile in ("nothing", "a lane dies", "a driver dies", "an epoch ends", "staging is lost"):
        for before in (2, 8, 14):
            w = copied_world()
            w.lost = True  # the halt is no mistake
            with w.living():
                w.pipelines.change("", "17", tolerate=(2, 20))
                w.start()
                w.run_until(w.copied)
                for count in (before, 1, 1):
                    w.produce(0, count)
                    w.run_for(5.0)
                    _harm(w, meanwhile)
                w.produce(0, 30)
                w.run_until(lambda w=w: bool(w.control().halts))  # type: ignore[misc]
                for _ in range(2):
                    w.run_for(30.0)
                    _harm(w, meanwhile)
                w.run_for(60.0)
                w.check()
                (halt,) = w.control().halts.values()
                if (halt.reason, halt.next) != ("stage-failed", 11):
                    raise Wrong(f"{meanwhile}: halted at {halt.next} for {halt.reason}: {halt.detail}")
                w.pipelines.change("", "1", tolerate=(2, 20))
                w.settle()


@case
def what_is_tolerated_halts_nobody_however_often_it_is_read_again() -> None:
    """Each window of ten offsets has as many as may fail. What is in staging goes before it is delivered,
    and is sent again by the lane that has sent it, and by others."""
    for meanwhile in ("nothing", "a lane dies", "a driver dies", "staging is lost"):
        w = copied_world()
        with w.living():
            w.pipelines.change("", "147", tolerate=(3, 10))
            w.start()
            w.run_until(w.copied)
            for count in (3, 4, 2, 5):
                held = lane(w, "deduplicator")
                held.paused = meanwhile == "staging is lost"
                w.produce(0, count)
                w.run_for(5.0)
                held.paused = False
                _harm(w, meanwhile)
                w.produce(0, 1)
                w.run_until(w.copied)
            w.settle()


def _harm(w: World, how: str) -> None:
    if how == "a lane dies":
        w.kill(lane(w, "replicator"))
    elif how == "a driver dies":
        w.kill_driver(w.instances[0])
    elif how == "an epoch ends":
        faults.end_epoch(w, "replicator")
    elif how == "staging is lost":
        log = frames(w)
        log.trim(log.end)
        w.harmed = True
        w.kill(lane(w, "deduplicator"))
    w.run_for(8.0)


@case
def copies_that_are_harmed_alike_are_asked_for_again_before_they_halt_anything() -> None:
    """A frame that came twice, as of a lane that died before it heard of the first, and both copies of it
    can't be read: the second was there before anything was asked for."""
    w = copied_world()
    with w.living():
        w.start()
        w.run_until(w.copied)
        held = lane(w, "deduplicator")
        held.paused = True
        before = frames(w).end
        w.produce(0, 2)
        w.run_until(lambda: frames(w).end > before)
        log = frames(w)
        sent = log.entries[-1]
        log.append(sent.key, sent.value, sent.headers, sent.timestamp)
        for entry in (sent, log.entries[-1]):
            assert entry.value is not None
            entry.value = entry.value[:-1] + bytes([entry.value[-1] ^ 1])
        w.harmed = True
        held.paused = False
        w.settle()


@case
def nothing_comes_behind_what_an_owner_has_let_go_of() -> None:
    """An owner that is fenced and does not know it wakes up and hears that the topic is promoted, while the
    one that owns it now is in the middle of a transaction with what lies beyond. Also where the owner itself
    is in the middle of one, and commits it, or dies."""
    let_go = 0
    for what in ("commits", "dies", "has a successor"):
        for steps in range(0, 60, 4):
            w = World(Seeded(steps, 0.0), partitions=1, records=1)
            with w.living():
                w.start()
                w.run_until(w.copied)
                w.run_for(1.0)
                owner = lane(w, "deduplicator")
                if what == "has a successor":
                    w.run(steps)
                    query, number = w.lanes_of("deduplicator")[0]
                    w.zombies.append(query.lose(number))
                    owner.paused = True
                    w.run_for(20.0)
                end = w.reached[w.topic_id, 0]
                w.produce(0, 2)
                w.run_until(partial(_at_work, w))
                holder = lane(w, "deduplicator")
                holder.paused = True
                w.promote(TOPIC, [end])
                owner.paused = what != "has a successor"
                w.run_for(6.0)
                holder.paused = False
                w.run(steps)
                if what == "dies":
                    w.kill(holder)
                w.run_for(20.0)
                let_go += any(of.stands for of in w.control().steering.promotions.values())
                w.settle()
    if not let_go:
        raise ShowsNothing("nobody has let go")


@case
def what_was_left_out_of_a_topic_that_is_given_back_is_not_missed_for_long() -> None:
    """A frame is on its way when its topic is promoted, and comes when the owner has let go. The topic is
    given back before the next plan, and nothing more comes at the source."""
    left_out = 0
    for wait in range(0, 20, 3):
        w = copied_world(records=1)
        with w.living():
            w.start()
            w.run_until(w.copied)
            w.run_for(wait)
            end, staging, sends = w.reached[w.topic_id, 0], w.settings.staging_topic, lane(w, "replicator")
            _holds_back(sends, staging)
            w.produce(0, 2)
            w.run_until(lambda sends=sends: _on_its_way(sends) > 0)  # type: ignore[misc]
            w.promote(TOPIC, [end])
            w.run_for(1.0)
            _holds_back(sends, None)
            w.run_for(1.0)
            stands = any(of.stands for of in w.control().steering.promotions.values())
            left_out += stands and not w.copied() and not w.said("end-epoch")
            w.give_back()
            w.run_until(w.copied, 60.0)
            w.settle()
    if not left_out:
        raise ShowsNothing("nothing was left out")
