"""Careless versions of the protocol: each is production code with a line or two changed, and something here
must notice.

`python -m tests.simulation --mutants` looks for what notices each, and writes the table in
tests/simulation/README.md.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from tests.simulation.cases import CASES, WAYS, ShowsNothing, run_case
from tests.simulation.schedules import by_seed

Change = tuple[str, str, str]
"""Where (module:function or module:class.method), what stands there, what stands there instead."""


@dataclass(frozen=True)
class Mutant:
    """`killed_by` is the case, or the number of the seeded schedule, that is known to notice; `names`: where
    topics are asked for by name; `pipelines`: of the schedules in which the pipeline changes; `routes`: of
    those in which it takes records elsewhere."""

    name: str
    changes: tuple[Change, ...]
    killed_by: str | int
    names: bool = False
    pipelines: bool = False
    routes: bool = False

    @property
    def way(self) -> dict[str, bool]:
        """Of the schedules."""
        return {"names": self.names, "pipelines": self.pipelines, "routes": self.routes}


def _of(name: str, killed_by: str | int, *changes: Change) -> Mutant:
    return Mutant(name, changes, killed_by)


def _piped(name: str, killed_by: int, *changes: Change) -> Mutant:
    return Mutant(name, changes, killed_by, pipelines=True)


def _routed(name: str, killed_by: int, *changes: Change) -> Mutant:
    return Mutant(name, changes, killed_by, routes=True)


def _by_name(name: str, killed_by: str | int, *changes: Change) -> Mutant:
    return Mutant(name, changes, killed_by, names=True)


_CLIENTS = '__import__("common.kafka.client.clients", fromlist=["_"])'
_ERRORS = '__import__("common.kafka.errors", fromlist=["_"])'
_HIGH = f"{_CLIENTS}.watermarks(self._admin, plan.mappings_topic, self.partition, deadline)[1] - 1"
_OUTSIDE = f"""\
outside = {_CLIENTS}.producer(self.plan.control_producer)
    for row in letters(self.plan.link, frame, failed, 1).to_pylist():
        own = [(h["key"], h["value"]) for h in row["headers"]]
        outside.produce(at[0], row["value"], row["key"], at[1], headers=own)
    outside.flush(5.0)"""
_LETTERS_HANG = "dead_letters_that_hang_are_closed_as_they_ended_by_whoever_comes_next"
_ROUTED_HANG = "routed_records_that_hang_are_closed_as_they_ended_by_whoever_comes_next"
_OLDER = "a_frame_of_an_older_pipeline_decides_nothing_after_one_of_a_newer"
_ONE_TOO_MANY = "one_too_many_of_a_window_halts_whoever_comes_to_it_and_no_other_does"
_UNKNOWN = "nothing_passes_a_record_whose_schema_is_not_known_until_it_is"
_LET_GO = "nothing_comes_behind_what_an_owner_has_let_go_of"
_TAKES_NOTHING = "a_destination_that_takes_nothing_stops_nobody_else_and_gets_what_it_missed"

MUTANTS = [
    _of(
        "no fencing: a transactional id for each owner, not for each staging partition",
        "a_predecessor_that_commits_during_recovery_is_counted",
        (
            "deduplicator.lane.fencing:FencingProducer.__init__",
            "(plan.link, partition, 0)",
            '(plan.link, f"{partition}.{id(self)}", 0)',
        ),
    ),
    _of(
        "mappings read before fencing",
        "a_predecessor_that_commits_during_recovery_is_counted",
        (
            "deduplicator.lane.delivery:Delivery._recover",
            "until = fencing.fence(deadline)",
            f"until = {_HIGH}",
        ),
        (
            "deduplicator.lane.delivery:Delivery._recover",
            "self._transaction.use(fencing,",
            "fencing.fence(deadline); self._transaction.use(fencing,",
        ),
    ),
    _of(
        "mappings read up to the high watermark, not up to a record of one's own",
        "a_commit_that_is_not_visible_yet_is_waited_for",
        (
            "deduplicator.lane.delivery:Delivery._recover",
            "until = fencing.fence(deadline)",
            f"{_ERRORS}.retrying('', lambda t: fencing.client.init_transactions(t), deadline); until = {_HIGH}",
        ),
    ),
    _of(
        "roll-forward one short",
        "a_commit_whose_answer_is_lost_is_not_done_again",
        ("deduplicator.lane.recovery:read_mappings", "return out", "return out[:-1]"),
    ),
    _of(
        "the exception of a commit is taken for a failure: the transaction is done again from memory",
        "a_commit_that_arrives_late_is_not_done_again",
        (
            "deduplicator.lane.transaction:Transaction.commit",
            "producer.commit_transaction(max(1.0, deadline.left()))",
            """try:
        producer.commit_transaction(max(1.0, deadline.left()))
    except Exception:
        Transaction.undone = {key: moved.start for key, moved in self.moved.items()}
        raise""",
        ),
        (
            "deduplicator.lane.delivery:Delivery._recover",
            "self.state.next = found.next",
            (
                "self.state.next = {**found.next, **Transaction.__dict__.get('undone', {})}; Transaction.undone = {}; "
                "found.position = 0 if self.state.recoveries > 1 else found.position"
            ),
        ),
    ),
    _of(
        "state kept in memory after an abort",
        "a_commit_that_never_happened_is_done_again",
        (
            "deduplicator.lane.delivery:Delivery._recover",
            "self.state.next = found.next",
            "self.state.next = {**found.next, **self.state.next}",
        ),
    ),
    _of(
        "an owner leaves to the next one what an aborted transaction would have moved",
        "what_an_owner_leaves_to_the_next_one_is_committed",
        (
            "deduplicator.lane.delivery:Delivery._leave",
            "if self._transaction.open or not self._transaction.has_producer():",
            "if not self.state.next:",
        ),
    ),
    _of(
        "mappings that came after a snapshot are not read where there are few",
        "what_came_after_what_an_owner_left_is_read",
        (
            "deduplicator.lane.recovery:recover",
            "until - snapshot.folded <= 1",
            "until - snapshot.folded <= 9",
        ),
    ),
    _of(
        "position written before the frames below it are acknowledged",
        "a_writer_that_dies_at_any_point_leaves_no_hole",
        (
            "replicator.lane.partition_copy:PartitionCopy._cut",
            "self.cut_at = end",
            "self.cut_at = self.acked = end; self.frames += 1",
        ),
    ),
    _by_name(
        "a pause goes back to where the next frame begins",
        "a_pause_in_the_middle_of_frames_that_wait_loses_none_of_them",
        (
            "replicator.lane.partition_copy:PartitionCopy.put_back",
            "self.read, self.read_epoch = self.cut_at, self.cut_epoch",
            "self.rewind(self.cut_at)",
        ),
    ),
    _of(
        "no topic id in the key",
        "records_of_a_topic_made_again_are_not_dropped_as_seen",
        (
            "deduplicator.lane.frame_handler:FrameHandler._judge",
            "key = (frame.topic_id, frame.partition)",
            "key = (frame.topic, frame.partition)",
        ),
        (
            "common.link.offset_mappings:_reached",
            "return (topic_id, partition)",
            'return (r["topic"], partition)',
        ),
    ),
    _by_name(
        "topic ids are not confirmed",
        "records_of_a_topic_made_again_are_not_taken_for_old_ones",
        ("replicator.lane.topic_id_check:TopicIdCheck.answers", "ids[frame.topic] == frame.topic_id", "True"),
    ),
    _by_name(
        "an answer to a question asked before the records were fetched confirms them too",
        "an_answer_about_the_topic_before_does_not_confirm_records_of_the_one_made_again",
        ("replicator.lane.topic_id_check:TopicIdCheck.answers", "number >= covered or ", ""),
    ),
    _by_name(
        "a position outside of the log is a truncation, whichever topic it is now",
        "a_topic_made_again_and_shorter_than_before_is_no_truncation",
        (
            "replicator.lane.resend_requests:ResendRequests.lost_position",
            "not self.source.still_the_same(copy)",
            "False",
        ),
    ),
    _of(
        "a delivery report that tells of an error is ignored, and no gapless guarantee ends the producer",
        "a_record_that_fails_leaves_no_hole",
        (
            "common.kafka.client.clients:producer",
            '"enable.gapless.guarantee": True',
            '"enable.gapless.guarantee": False',
        ),
        ("replicator.lane.staging_writer:Writer._delivered", "if error is None:", "if True:"),
    ),
    _of(
        "no gapless guarantee: frames behind one that failed are appended",
        "a_record_that_fails_leaves_no_hole",
        (
            "common.kafka.client.clients:producer",
            '"enable.gapless.guarantee": True',
            '"enable.gapless.guarantee": False',
        ),
    ),
    _of(
        "messages time out, and the gapless guarantee leaves those out",
        "a_record_that_fails_leaves_no_hole",
        ("common.kafka.client.clients:producer", '"message.timeout.ms": 0', '"message.timeout.ms": 300000'),
    ),
    _of(
        "origin decided again, and the last one wins",
        "an_origin_of_latest_is_decided_once",
        (
            "common.link.control_state:Control._on_origin",
            "self.origins.setdefault(r.key, Origin(r.topic, r.offset))",
            "self.origins[r.key] = Origin(r.topic, r.offset)",
        ),
        ("replicator.driver.origins:Origins.decide", "if (i.id, p) not in state.origins]", "]"),
        ("replicator.driver.origins:Origins.decide", "if initial else StartOffsets()", ""),
    ),
    _of(
        "an initial origin counts after the link has started, too",
        "a_paused_first_leader_does_not_skip_a_partition_that_came_later",
        ("common.link.control_state:Control._on_origin", "r.initial and self.started", "False"),
    ),
    _of(
        "`<` for `<=`: a frame that ends at `next` is not seen",
        "a_writer_that_dies_at_any_point_leaves_no_hole",
        ("deduplicator.lane.dedup:decide", "frame.next <= next_offset", "frame.next < next_offset"),
    ),
    _of(
        "`>=` for `>`: a frame that begins at `next` is a hole",
        "records_of_a_topic_made_again_are_not_taken_for_old_ones",
        ("deduplicator.lane.dedup:decide", "frame.start > next_offset", "frame.start >= next_offset"),
    ),
    _of(
        "a hole is not noticed",
        "a_hole_that_is_filled_holds_nothing_up",
        ("deduplicator.lane.dedup:decide", "frame.start > next_offset", "False"),
    ),
    _of(
        "whole frames only: rows below `next` come again",
        "a_tail_without_records_is_no_hole",
        (
            "deduplicator.lane.dedup:decide",
            "Decision(Action.DELIVER, next_offset, frame.next, lost=lost)",
            "Decision(Action.DELIVER, frame.start, frame.next, lost=lost)",
        ),
    ),
    _of(
        "the first frame that comes need not be the origin's",
        "a_partition_whose_first_frame_is_lost_begins_at_its_origin",
        ("deduplicator.lane.dedup:decide", "if not (frame.origin and complete)", "if not complete"),
    ),
    _of(
        "a plan that has become old is taken for a loss",
        "mappings_that_are_cut_behind_a_plan_halt_nothing",
        ("deduplicator.lane.recovery:recover", "if snapshot.complete and not reaches:", "if False:"),
    ),
    _of(
        "a loss is taken for a plan that has become old",
        "with_the_table_lost_and_the_mappings_trimmed_nothing_is_guessed",
        (
            "deduplicator.main:Deduplicator._in_table",
            "and begins.get(p, 0) <= snapshot.folded.get(p, 0)",
            "",
        ),
    ),
    _of(
        "incomplete state taken as complete",
        "with_the_table_lost_and_the_mappings_trimmed_nothing_is_guessed",
        ("deduplicator.lane.recovery:recover", "pipelines, snapshot.complete,", "pipelines, True,"),
    ),
    _of(
        "checksum ignored",
        "a_hole_that_is_filled_holds_nothing_up",
        ("common.link.frame:must_match", "crc32(value) != crc", "False"),
    ),
    _of(
        "trimmed past held frames",
        "held_frames_are_not_trimmed",
        ("deduplicator.driver.staging_trim:limits", "min(offset, held.get(p, offset))", "offset"),
    ),
    _of(
        "trimmed past what is committed",
        "staging_is_not_trimmed_to_a_position_that_was_only_attempted",
        (
            "deduplicator.lane.moved:Moved.mapping",
            "        position,",
            "        position + 1,",
        ),
    ),
    _of(
        "frames read before the position was set again are taken",
        "staging_is_not_trimmed_to_a_position_that_was_only_attempted",
        ("deduplicator.lane.inbox:Inbox.put", "if generation == self.generation:", "if True:"),
    ),
    _of(
        "whoever may not lead any more fences all the same",
        "two_owners_do_not_fence_each_other_for_ever",
        (
            "common.app.lane_term:LaneTerm.must_lead",
            "if state.epoch_ended(self.application, self.term, self.epoch):",
            "if False:",
        ),
    ),
    _of(
        "offsets are foreseen where another writer's records came between before",
        "another_writer_costs_no_more_than_one_transaction",
        ("deduplicator.lane.transaction:Transaction._predicted", " or topic in self._shared", ""),
    ),
    _of(
        "offsets are foreseen where several sources meet",
        "several_sources_in_one_partition_are_mapped_exactly",
        (
            "deduplicator.lane.transaction:Transaction._predicted",
            " or self._has_several_sources(topic, False)",
            "",
        ),
    ),
    _of(
        "out of range means going on at the log start",
        "what_the_source_lost_halts_until_the_loss_is_accepted",
        (
            "replicator.lane.resend_requests:ResendRequests.lost_position",
            "elif copy.read < low:",
            (
                "elif copy.read < low:\n        copy.rewind(low); copy.status = Status.RUNNING; self.hold_back(copy.gap_frame(0, low, '')); "
                "self.source.read_from_positions(); return\n    elif copy.read < low:"
            ),
        ),
    ),
    _of(
        "out of range is a loss, without asking how far the destination is",
        "retention_that_takes_only_what_is_delivered_halts_nothing",
        (
            "replicator.lane.resend_requests:ResendRequests.lost_position",
            "or copy.read > high:",
            "or copy.read > high or copy.read < low:",
        ),
    ),
    _of(
        "a demand for what the source has not got is a loss, whoever asked",
        "a_demand_of_an_owner_that_was_fenced_since_is_no_loss",
        (
            "replicator.lane.resend_requests:ResendRequests._resend",
            "position < low and not demand.answers",
            "False",
        ),
    ),
    _of(
        "missing frames are asked for once only",
        "a_hole_is_asked_for_again_when_the_answer_is_lost_too",
        (
            "deduplicator.lane.blocked_partition:BlockedPartition.asks_now",
            "self.ask_at = now + self.pause_s",
            "self.ask_at = now + 1e9",
        ),
    ),
    _of(
        "a lane does not say where it stands: staging wiped while the source is idle is not noticed",
        "staging_wiped_while_the_source_is_idle_is_noticed",
        (
            "replicator.lane.lane:Lane.run",
            "copy.origin_frame() if copy.key in self.new else copy.position_frame()",
            "copy.origin_frame()",
        ),
    ),
    _of(
        "the replicator does not notice that its client has gone silent",
        "a_source_client_that_goes_silent_is_replaced",
        ("replicator.lane.lane:Lane._consume", "if not came:", "if False:"),
    ),
    _of(
        "the replicator does not notice that its frames are not acknowledged",
        "a_staging_producer_that_hears_no_more_is_replaced",
        ("replicator.lane.staging_writer:Writer.poll", "self._must_move()", "pass"),
    ),
    _of(
        "the deduplicator does not notice that its client has gone silent",
        "a_staging_client_that_goes_silent_is_replaced",
        ("deduplicator.lane.lane:Lane._read", "if not arrived:", "if False:"),
    ),
    _of(
        "who reads the control topic does not notice that its client has gone silent",
        "a_control_client_that_goes_silent_is_replaced",
        (
            "common.link.control_log:ControlLog._take",
            "if self._silence.found(",
            "if False and self._silence.found(",
        ),
    ),
    _of(
        "staging unheard of by the consumer until it is assigned, and looked up a second later",
        "a_predecessor_that_commits_during_recovery_is_counted",
        (
            "deduplicator.lane.lane:Lane.run",
            "clients.connect(self.consumer, self.plan.staging_topic, Deadline(CONNECT_S))",
            "pass",
        ),
    ),
    _of(
        "what is taken apart has the offsets of its batches' first records, one after the other",
        123,
        (
            "common.link.batch_frame:BatchFrame.rows",
            "if dense else list(chain.from_iterable(spans))",
            "if True else []",
        ),
    ),
    _of(
        "records with gaps between them become one batch",
        289,
        ("common.link.batch_frame:pack", "offsets[end - 1] - offsets[begin] == end - begin - 1", "True"),
    ),
    _of(
        "a batch that is made of others begins at offset 0",
        "records_of_a_topic_made_again_are_not_dropped_as_seen",
        ("common.link.batch_frame:pack", "base_offset=int(offsets[begin])", "base_offset=0"),
    ),
    _of(
        "the checksums of a frame and of its batches ignored",
        "a_hole_that_is_filled_holds_nothing_up",
        ("common.link.frame:must_match", "crc32(value) != crc", "False"),
        (
            "common.link.batch_frame:decode",
            "not record_batch.intact(data, at, header)",
            "False",
        ),
    ),
    _of(
        "a batch's mapping says what was foreseen, whatever base offset is reported",
        "another_writers_records_do_not_spoil_the_mappings",
        (
            "deduplicator.lane.transaction:Transaction._check_reports",
            "if predicted is not None and predicted[i] != moved.runs:",
            "if False:",
        ),
    ),
    _of(
        "the base offset that is reported of a batch is not looked at",
        "another_writers_records_do_not_spoil_the_mappings",
        (
            "deduplicator.lane.transaction:Transaction._batch_reported",
            "placed(runs, base_offset)",
            "placed(runs, getattr(self, 'next_base', base_offset))",
        ),
        (
            "deduplicator.lane.transaction:Transaction._batch_reported",
            "run.first = there.first",
            "run.first = there.first; self.next_base = there.first + there.length",
        ),
        (
            "deduplicator.lane.transaction:Transaction._remember_ends",
            "self._ends[moved.destination.topic, moved.frame.partition] = last.first + last.length + 1",
            "self.next_base = last.first + last.length + 1",
        ),
    ),
    _of(
        "a frame that can't be read halts its partition for a copy that was there before it was asked for",
        "copies_that_are_harmed_alike_are_asked_for_again_before_they_halt_anything",
        (
            "deduplicator.lane.frame_handler:FrameHandler._refuse",
            "(self._blocked.staging_end(), crc)",
            "(offset + 1, crc)",
        ),
    ),
    _of(
        "a batch that was refused is left out of what is committed",
        "a_batch_that_is_refused_is_not_left_out_of_what_is_committed",
        ("tests.simulation.batches:BatchProducer.commit_transaction", "self._none_refused()", "pass"),
        ("deduplicator.lane.transaction:Transaction._batch_reported", "self._failed.append(", "str("),
        (
            "deduplicator.lane.transaction:Transaction._check_reports",
            "if any(run.first is None for run in moved.each_run):",
            "if False:",
        ),
        (
            "deduplicator.lane.transaction:Transaction._check_reports",
            "if predicted is not None and predicted[i] != moved.runs:",
            "moved.runs = [run for run in moved.runs if run.first is not None]\n        if False:",
        ),
    ),
    _of(
        "a commit goes on though its mapping was refused",
        "a_batch_that_is_refused_is_not_left_out_of_what_is_committed",
        ("tests.simulation.batches:BatchProducer.commit_transaction", "self._none_refused()", "pass"),
    ),
    _of(
        "a producer is used again after a commit of which no answer came",
        "a_transaction_behind_a_commit_that_is_late_has_another_owner",
        (
            "deduplicator.lane.transaction:Transaction.commit",
            "producer.commit_transaction(max(1.0, deadline.left()))",
            """try:
        producer.commit_transaction(max(1.0, deadline.left()))
    except KafkaException:
        pass""",
        ),
        ("tests.simulation.batches:BatchProducer._end", "self._ended = KafkaException(error)", "pass"),
        ("tests.simulation.batches:BatchProducer._end", "return self._ended", "return KafkaException(error)"),
    ),
    _of(
        "a frame begins at its first batch, not where the last one ended",
        "a_tail_without_records_is_no_hole",
        (
            "replicator.lane.partition_copy:PartitionCopy._cut_chunks",
            "if piece.rows is None:",
            "if piece.rows is None:\n        self.cut_at = piece.wholes[0][0].base_offset\n    if piece.rows is None:",
        ),
    ),
    _of(
        "a rewind keeps the chunks that are pending",
        "a_demand_that_comes_with_records_parked_for_a_limit_is_answered_in_order",
        ("replicator.lane.partition_copy:PartitionCopy.rewind", "self._drop_read()", "pass"),
    ),
    _of(
        "the leader epoch of what was fetched is not remembered",
        "a_source_that_was_cut_halts_by_name",
        ("replicator.lane.partition_copy:PartitionCopy._cut_chunks", "piece.leader_epoch", "None"),
    ),
    _of(
        "what hangs without a marker is left to the next transaction",
        "what_hangs_is_closed_as_it_ended_by_whoever_comes_next",
        (
            "deduplicator.lane.hanging:close_hanging",
            "if not hanging:",
            "if True:",
        ),
    ),
    _of(
        "what hangs is taken for committed",
        "what_hangs_is_closed_as_it_ended_by_whoever_comes_next",
        ("deduplicator.lane.hanging:close_hanging", "begin in begins.get(at, ())", "True"),
    ),
    _of(
        "what hangs is taken for aborted",
        "what_hangs_is_closed_as_it_ended_by_whoever_comes_next",
        ("deduplicator.lane.hanging:close_hanging", "begin in begins.get(at, ())", "False"),
    ),
    _of(
        "what closes what hangs is believed to have closed it",
        "what_closes_it_may_lack_its_marker_too",
        ("deduplicator.lane.hanging:_left_open", "hanging = of_own(told, fencing)", "hanging = {}"),
    ),
    _of(
        "a transaction that closes a commit is fenced like any other",
        "whoever_dies_while_it_closes_what_hangs_changes_nothing",
        (
            "deduplicator.lane.fencing:FencingProducer._fence_ids",
            "self._closes_as_committed(known)",
            "False",
        ),
    ),
    _of(
        "whoever comes next commits what closes an abort, too",
        "whoever_dies_while_it_closes_what_hangs_changes_nothing",
        ("deduplicator.lane.fencing:FencingProducer.mark", "in_each=not committed", "in_each=False"),
    ),
    _of(
        "a leader that is reached by another connection is taken for the one before",
        "a_commit_that_hangs_while_nothing_comes_does_not_go_with_the_next_abort",
        (
            "tests.simulation.batches:BatchProducer._send",
            "self._elections.get(log, log.elections) != log.elections",
            "False",
        ),
    ),
    _of(
        "what was written to is not looked at again",
        "what_hangs_is_closed_though_nothing_comes",
        ("deduplicator.lane.hanging:Watch.hangs", "before.get(at) == by_id", "False"),
    ),
    _of(
        "a destination that takes nothing is not set aside",
        _TAKES_NOTHING,
        ("deduplicator.lane.unavailable:Unavailable.refused", "if not named or any(", "if True or any("),
    ),
    _of(
        "a destination that is silent is nobody's fault",
        _TAKES_NOTHING,
        (
            "deduplicator.lane.delivery:Delivery._ride_out",
            "refused = self._transaction.refused()",
            "refused = {}",
        ),
    ),
    _of(
        "what was set aside is never gone back for",
        _TAKES_NOTHING,
        ("deduplicator.lane.unavailable:Unavailable._answered", "if self._well(at, *answers):", "if False:"),
    ),
    _of(
        "what is gone back for is not read again",
        _TAKES_NOTHING,
        (
            "deduplicator.lane.blocked_partitions:BlockedPartitions.go_back_where_cleared",
            "trouble.returning = True",
            "pass",
        ),
    ),
    _of(
        "frames for a destination that takes nothing are left out, not held",
        _TAKES_NOTHING,
        (
            "deduplicator.lane.frame_destinations:FrameDestinations._takes",
            "self._blocked.skip(key, frame, offset, aside.reason, aside.detail, to=at)",
            "pass",
        ),
    ),
    _of(
        "the next owner knows nothing of frames that are held",
        _TAKES_NOTHING,
        (
            "deduplicator.lane.blocked_partitions:BlockedPartitions.inherit_holds",
            "if hold.held is not None and",
            "if False and",
        ),
    ),
    _piped(
        "a frame does not say its pipeline",
        0,
        (
            "replicator.lane.partition_copy:PartitionCopy._frame",
            "pipeline=self.pipeline",
            "pipeline=0",
        ),
    ),
    _of(
        "a frame of an older pipeline is taken after one of a newer",
        _OLDER,
        ("deduplicator.lane.dedup:decide", "if frame.pipeline < pipeline:", "if False:"),
    ),
    _of(
        "the mappings do not tell an owner by which pipeline was delivered",
        _OLDER,
        ("deduplicator.lane.recovery:recover", "if pipeline:", "if False:"),
    ),
    _of(
        "the state table does not tell an owner by which pipeline was delivered",
        _OLDER,
        ("deduplicator.main:Deduplicator._in_table", "if state.pipeline:", "if False:"),
    ),
    _of(
        "an owner does not leave to the next one by which pipeline was delivered",
        _OLDER,
        ("deduplicator.lane.delivery:Delivery._leave", "self.state.pipelines", "{}"),
    ),
    _piped(
        "a mapping spans two pipelines",
        20,
        (
            "deduplicator.lane.moved:Moved.goes_with",
            "self.frame.pipeline == frame.pipeline and",
            "",
        ),
    ),
    _piped(
        "lanes go by the newest number and the flows of the one before",
        0,
        (
            "replicator.driver.pipeline_file:PipelineFile.make_newest",
            "while not self.is_newest(state):",
            "while state.pipeline == 0:",
        ),
    ),
    _of(
        "an id that the map does not have is taken for one that stays",
        _UNKNOWN,
        (
            "common.pipeline.schema_ids:_mapped",
            "found = [targets(options.context, int(schema_id)) for schema_id in known]",
            "found = [targets(options.context, int(schema_id)) or int(schema_id) for schema_id in known]",
        ),
    ),
    _of(
        "a record that waits for its schema is left out, and what is behind it goes on",
        _UNKNOWN,
        (
            "replicator.lane.through_flow:through_flow",
            "if applied.waits:",
            "if False:",
        ),
    ),
    _of(
        "a partition that waited goes on behind the record",
        _UNKNOWN,
        (
            "replicator.lane.partition_copy:PartitionCopy.go_on",
            "self.put_back()",
            "self.put_back(); self.read = self.cut_at = self.acked = self.acked + 1",
        ),
    ),
    _of(
        "what lies beyond the end of a promoted topic is delivered all the same",
        _LET_GO,
        ("deduplicator.lane.letting_go:LettingGo.leaves_out", "frame.next <= promotion.end(key)", "True"),
    ),
    _of(
        "a frame is left out by what was known of its topic before it came",
        _LET_GO,
        (
            "deduplicator.lane.letting_go:LettingGo.leaves_out",
            "self.term.control.refresh(Deadline(CALL_S))",
            "self.term.state",
        ),
    ),
    _of(
        "a lane that goes on with a topic that was given back does not say where it stands",
        "what_was_left_out_of_a_topic_that_is_given_back_is_not_missed_for_long",
        (
            "replicator.lane.lane:Lane._step",
            "self.topic_id_check.hold_back(copy.position_frame())",
            "pass",
        ),
    ),
    _piped(
        "a dead letter is written outside the transaction",
        0,
        (
            "deduplicator.lane.transaction:Transaction.produce_letters",
            "for _, runs in self._sent(at, failed.offsets, batches, topic.max_message_bytes):\n        moved.letters += runs",
            _OUTSIDE,
        ),
    ),
    _piped(
        "a frame that is sent again has no dead letters",
        109,
        (
            "replicator.lane.partition_copy:PartitionCopy._cut_chunks",
            "kept.dead, kept.routes",
            "None if self.generation else kept.dead, kept.routes",
        ),
    ),
    _piped(
        "a frame of dead letters alone is written whole, though a part of it was written before",
        133,
        (
            "deduplicator.lane.frame_handler:FrameHandler._decoded",
            "return decode_rows(frame, crc, value).from_offset(from_offset)",
            "return decode_rows(frame, crc, value).from_offset(from_offset if frame.count or not frame.failed else 0)",
        ),
    ),
    _of(
        "a position does not tell which records were let by of its window",
        _ONE_TOO_MANY,
        (
            "replicator.lane.partition_copy:PartitionCopy.let_by",
            "tuple(self.tolerated.below(position))",
            "()",
        ),
    ),
    _of(
        "a record that is read again is counted again",
        "what_is_tolerated_halts_nobody_however_often_it_is_read_again",
        (
            "common.pipeline.tolerating:Tolerated.take",
            "if self._offsets[at : at + 1] != [offset]:",
            "if True:",
        ),
    ),
    _of(
        "another pipeline goes on with what the one before has counted",
        _ONE_TOO_MANY,
        ("replicator.driver.planner:Planner._tolerated", "position.pipeline == planned.n", "True"),
    ),
    _of(
        "what hangs where dead letters go is left to the next transaction",
        _LETTERS_HANG,
        ("deduplicator.lane.hanging:own_destinations", "if state.dead_letters is not None:", "if False:"),
    ),
    _of(
        "the mappings do not tell whether dead letters that hang were committed",
        _LETTERS_HANG,
        ("deduplicator.lane.hanging:last_begins", "if m.dead_letters is not None:", "if False:"),
    ),
    _of(
        "where dead letters were written is not looked at again",
        "dead_letters_that_hang_are_closed_though_nothing_comes",
        (
            "deduplicator.lane.transaction:Transaction.written",
            "moved.written",
            "{(moved.destination.topic, moved.frame.partition)}",
        ),
    ),
    _routed(
        "a routed record goes to the link's own destination, too",
        0,
        (
            "deduplicator.lane.frame_handler:FrameHandler._deliver",
            "self._transaction.produce(moved, part, *to)",
            "[self._transaction.produce(moved, part, one) for one in {to[0].topic: to[0], moved.destination.topic: moved.destination}.values()]",
        ),
    ),
    _routed(
        "a mapping does not tell where routed records are",
        0,
        ("deduplicator.lane.moved:Moved.mapping", "sorted(self.routed.items())", "()"),
    ),
    _routed(
        "a mapping tells of one topic that records are routed to",
        4,
        (
            "deduplicator.lane.moved:Moved.mapping",
            "sorted(self.routed.items())",
            "sorted(self.routed.items())[:1]",
        ),
    ),
    _routed(
        "routed records are written whole, though a part of their frame was written before",
        15,
        (
            "deduplicator.lane.frame_handler:FrameHandler._decoded",
            "return decode_rows(frame, crc, value).from_offset(from_offset)",
            "return decode_rows(frame, crc, value).from_offset(0 if frame.routes else from_offset)",
        ),
    ),
    _routed(
        "what is routed is told by the place in the batch, not by the offset",
        3,
        (
            "common.link.frame_routes:with_routes",
            "np.searchsorted(rows.column(0).to_numpy(), kept.to_numpy())",
            "np.arange(len(kept))",
        ),
    ),
    _routed(
        "where a topic's records are routed to is not looked after once the topic was made again",
        30,
        (
            "deduplicator.driver.route_topics:RouteTopics._due",
            "state.topics.copy().values()",
            "state.newest_topics().values()",
        ),
    ),
    _of(
        "what hangs where records were routed to is left to the next transaction",
        _ROUTED_HANG,
        (
            "deduplicator.lane.hanging:own_destinations",
            "state.all_destinations()",
            "state.destinations.copy().items()",
        ),
    ),
    _of(
        "the mappings do not tell whether routed records that hang were committed",
        _ROUTED_HANG,
        (
            "deduplicator.lane.hanging:last_begins",
            "wrote = m.places",
            "wrote = {(m.destination_topic, m.destination_partition): m.runs}",
        ),
    ),
]


@contextlib.contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Production code, changed. Fails where what is to be changed does not stand there (any more)."""
    sources: dict[str, str] = {}
    for where, old, new in mutant.changes:
        module_name, _, path = where.partition(":")
        source = sources.get(where) or textwrap.dedent(inspect.getsource(_found(module_name, path)))
        if old not in source:
            raise LookupError(f"{where} no longer has {old!r}")
        sources[where] = source.replace(old, new)
    with contextlib.ExitStack() as stack:
        for where, source in sources.items():
            module_name, _, path = where.partition(":")
            module = importlib.import_module(module_name)
            owner, _, name = path.rpartition(".")
            made: dict[str, Any] = {}
            # The first lines of a method may be decorators; none of those here has any.
            exec(compile("from __future__ import annotations\n" + source, where, "exec"), vars(module), made)  # noqa: S102 - the project's own source
            changed = made[name]
            if owner:
                stack.enter_context(mock.patch.object(getattr(module, owner), name, changed))
                continue
            for user in _users(module_name, name):
                stack.enter_context(mock.patch.object(user, name, changed))
        yield


def _found(module_name: str, path: str) -> Any:
    found: Any = importlib.import_module(module_name)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _users(module_name: str, name: str) -> list[Any]:
    """The modules that have imported a function by its name."""
    import sys

    original = getattr(sys.modules[module_name], name)
    return [
        m
        for n, m in list(sys.modules.items())
        if n.split(".")[0] in ("common", "replicator", "deduplicator") and getattr(m, name, None) is original
    ]


def check(by: str | int, **way: bool) -> None:
    """A case by its name, a schedule by its number."""
    if isinstance(by, str):
        run_case(by, way["names"])
    else:
        by_seed(by, **way)


def notices(by: str | int, **way: bool) -> str | None:
    """What a case or schedule says against the code as it is now, or None."""
    try:
        check(by, **way)
    except ShowsNothing:
        return None
    except NameError:
        raise  # of the mutant's own: it shows nothing
    except Exception as error:  # noqa: BLE001 - whatever it is, it was noticed
        return f"{type(error).__name__}: {error}"
    return None


def hunt(mutant: Mutant, seeds: range) -> str | int | None:
    """The first case, or else the first schedule, that notices; None if none does."""
    with applied(mutant):
        cases = [name for name in CASES if mutant.names in WAYS[name]]
        tried: list[str | int] = [mutant.killed_by, *cases, *seeds]
        for by in tried:
            if notices(by, **mutant.way) is not None:
                return by
    return None


def table() -> str:
    """What notices what, in Markdown."""
    lines = ["| careless version | noticed by |", "|---|---|"]
    for m in MUTANTS:
        by = f"`{m.killed_by}`" if isinstance(m.killed_by, str) else f"schedule {m.killed_by}"
        by += ", by name" if m.names else ""
        by += ", --pipelines" if m.pipelines else ", --routes" if m.routes else ""
        lines.append(f"| {m.name} | {by} |")
    return "\n".join(lines)
