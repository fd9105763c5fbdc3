"""Moves consumer groups to the target, while producers stay at the source and the link copies on. Options and
output are verbatim/commands/move_group.py's part.

For each group: its members leave at the source; its last offsets are copied up to; `offsets`, where it runs,
lets go of the group; the offsets are written at the target by the rules of `offsets`, and looked at once
more. From then on the control topic says that the group was moved, and nothing but its consumers, or the way
back, moves its offsets any more.
"""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from common.kafka.client import topics
from common.link.control_kinds import GroupMove
from common.link.control_records import MOVED, MOVING
from common.link.control_records import GroupMove as Known
from common.partitions import PartitionId, PartitionName
from common.ports import Deadline
from offsets.group_offsets import GroupKey
from offsets.group_protocol import Group
from offsets.service import NAME as OFFSETS
from offsets.service import make_records_topic
from offsets.survey import Found, Row
from offsets.writer import RecordLog, write_offsets
from verbatim.moves import cutover_rules
from verbatim.moves.group_rules import Verdict, is_behind, judge, streams_topics
from verbatim.moves.group_ways import CALL_S, Options, State, Way, Ways
from verbatim.moves.link_progress import stuck
from verbatim.moves.steps import listed

if TYPE_CHECKING:
    from common.config.settings import Settings

ASK_S = 0.05
"""Between two looks whether `offsets` has answered."""
ANSWER_S = 5.0
"""For so long at least it is waited for."""


class GroupMoves(Ways):
    """To the target."""

    _found: Found

    def __init__(self, settings: Settings, options: Options) -> None:
        super().__init__(settings, options)
        self._asked: dict[str, int] = {}
        """Where the control topic says that this run takes a group."""
        self._topics: list[str] = []

    def listed(self) -> dict[str, Group]:
        return self.survey.source.listed(Deadline(CALL_S))

    def chosen(self, group: str) -> tuple[State, str]:
        if (back := self.survey.returning) is not None and back.has_moved(self.survey.target_name(group)):
            return "refused", f"the link {back.name} has moved it here: by that link, with --back, it goes"
        move = self.survey.control.state.group_moves.get(group)
        if move is None or move.state != MOVED:
            return "waiting", ""
        if self.survey.source.members(Deadline(CALL_S)).get(group, False):
            return "refused", "it was moved before, and has members at the source: stop them"
        return "kept", ""

    def look(self, ways: Sequence[Way]) -> dict[str, Verdict]:
        found = self._found = self.survey.look()
        rows = {group: list(of) for group, of in groupby(found.rows, key=lambda row: row.key.group)}
        active = {way.group: of for way in ways if (of := found.listed.get(way.group)) and of.active}
        who = self.named(active, "source")
        behind = self._behind([row for row in found.rows if row.key.group not in active])
        copied = self.survey.copied_topics()
        verdicts = {}
        for way in ways:
            way.partitions = rows.get(way.group, [])
            verdicts[way.group] = judge(
                way.group, found, copied, who.get(way.group, ()), behind, self.options.accept_redelivery
            )
        self._look_at_streams(ways, found, verdicts)
        self._will_not_come(ways, verdicts, behind)
        return verdicts

    def move(self, ways: Sequence[Way]) -> None:
        held = self._hold(ways)
        if not held:
            return
        deadline = Deadline(CALL_S)
        make_records_topic(self.settings, self.survey.target_admin, deadline)
        self.survey.only = {way.group for way in held}
        # What `offsets` has written until it let go is on record by now.
        self.survey.load()
        with closing(RecordLog(self.settings, self.survey.records)) as record_log:
            if clear := self._still_clear(held):
                written = self._write(clear, record_log, deadline)
                self._check(written, record_log)

    # what is behind

    def _will_not_come(
        self, ways: Sequence[Way], verdicts: dict[str, Verdict], behind: Container[GroupKey]
    ) -> None:
        """What is not copied, and will not be, however long anybody waits."""
        late = [way for way in ways if verdicts[way.group].copy]
        idle = self.standings.idle(Deadline(CALL_S)) if late else []
        state = self.survey.control.state
        for way in late:
            verdict = verdicts[way.group]
            names = {row.key.topic for row in way.partitions if row.key in behind}
            verdict.never.extend(cutover_rules.paused(state, sorted(names)))
            if idle:
                verdict.never.append(f"not running: {', '.join(idle)}, and {listed(verdict.copy)}")

    def _behind(self, rows: Sequence[Row]) -> dict[GroupKey, str]:
        """What is known of partitions that are not copied up to a group's offset."""
        survey, deadline = self.survey, Deadline(CALL_S)
        known = {row.key: survey.partition((row.key.topic, row.key.partition)) for row in rows}
        late = [row.key for row in rows if is_behind(row, known[row.key])]
        partitions = sorted({(key.topic, key.partition) for key in late})
        ends = topics.ends(survey.source_admin, partitions, deadline)
        stable = topics.ends(survey.source_admin, partitions, deadline, committed=True)
        told = {}
        for key in late:
            at, of = (key.topic, key.partition), known[key]
            words = ["nothing yet" if of is None or of.start is None else f"up to {of.next}"]
            if stable[at] < ends[at]:
                words.append(f"a transaction is open at the source from offset {stable[at]}")
            if (why := stuck(survey.control.state, (survey.topic_id(at[0]), at[1]))) is not None:
                words.append(f"it stands still: {why}")
            told[key] = "; ".join(words)
        return told

    def _look_at_streams(self, ways: Sequence[Way], found: Found, verdicts: dict[str, Verdict]) -> None:
        """State of Kafka Streams is in topics of its own: those must be copied to their ends, under the names
        that it looks for."""
        survey, deadline = self.survey, Deadline(CALL_S)
        self._topics = self._topics or topics.names(survey.source_admin, "source", deadline)
        copies = survey.control.state.copies()
        own: dict[str, list[str]] = {}
        for way in ways:
            of = found.listed.get(way.group)
            if of is None or of.kind not in ("classic", "streams"):
                continue
            mine, wrong = streams_topics(way.group, way.target_group, self._topics, copies)
            verdicts[way.group].never.extend(wrong)
            if mine and not wrong and not of.active:
                own[way.group] = mine
        if not own:
            return
        described = topics.describe(
            survey.source_admin, [name for mine in own.values() for name in mine], deadline
        )
        partitions = [(t.name, p) for t in described.values() for p in range(t.partitions)]
        ends = topics.ends(survey.source_admin, partitions, deadline)
        stable = topics.ends(survey.source_admin, partitions, deadline, committed=True)
        link = self.standings.look(deadline)
        for group, mine in own.items():
            keys: dict[PartitionId, PartitionName] = {
                (described[name].id, p): (name, p) for name, p in partitions if name in mine
            }
            # Where nothing was written since the origin there is nothing to copy.
            due = {
                key: ends[at]
                for key, at in keys.items()
                if key not in link.partitions or ends[at] > link.partitions[key].origin
            }
            of_group = {at: ends[at] for at in keys.values()}
            verdicts[group].copy.extend(
                cutover_rules.behind(link, due, {key: f"{name}-{p}" for key, (name, p) in keys.items()})
                + cutover_rules.moved(of_group, of_group, stable)
            )

    def notes(self, way: Way) -> list[str]:
        survey, deadline = self.survey, Deadline(CALL_S)
        committed, copied = self._found.offsets.get(way.group, {}), survey.copied_topics()
        notes = []
        if others := sorted({topic for topic, _ in committed} - copied):
            notes.append(f"it has offsets in topics that are not copied: {', '.join(others)}")
        mine = {row.key.topic for row in way.partitions}
        rest = sorted(
            (origin.topic, p)
            for (topic_id, p), origin in survey.control.state.origins.items()
            if origin.topic in mine
            and survey.topic_id(origin.topic) == topic_id
            and (origin.topic, p) not in committed
        )
        filled = [
            at for at, (low, high) in topics.bounds(survey.source_admin, rest, deadline).items() if low < high
        ]
        if filled:
            named = ", ".join(f"{topic}-{p}" for topic, p in filled)
            notes.append(
                f"without an offset: {named}: auto.offset.reset says where it begins, as at the source"
            )
        return notes

    def in_step(self, partition: Row) -> bool:
        return partition.record.outcome == "in-step"

    # the steps

    def _hold(self, ways: Sequence[Way]) -> list[Way]:
        """Take the groups from `offsets`; those that it has let go of, or that nobody else writes for."""
        control, deadline = self.survey.control, Deadline(max(self.options.wait_s, ANSWER_S))
        new = [way.group for way in ways if way.group not in self._asked]
        if new:
            places = control.append_all([GroupMove(group, MOVING) for group in new], Deadline(CALL_S))
            self._asked |= dict(zip(new, places, strict=True))
        asked = self._asked
        while True:
            moves = control.refresh(Deadline(CALL_S)).group_moves
            for way in ways:
                known = moves.get(way.group)
                if way.state == "waiting" and (known is None or known.at != asked[way.group]):
                    self.refuse(way, ["another run of this command has taken it meanwhile"], release=False)
            ways = [way for way in ways if way.state == "waiting"]
            silent = [way for way in ways if moves[way.group] == Known(asked[way.group], MOVING)]
            if not silent or not self.standings.led(OFFSETS, Deadline(CALL_S)):
                break
            if deadline.passed():
                for way in silent:
                    self.refuse(
                        way, ["`offsets` runs, and does not let go of it: is it of an earlier release?"]
                    )
                break
            time.sleep(ASK_S)
        held = [way for way in ways if way.state == "waiting"]
        for way in held:
            way.over("hold", "nobody else writes its offsets")
        return held

    def _still_clear(self, ways: Sequence[Way]) -> list[Way]:
        """Those that nothing stands in the way of, now that nobody else moves them."""
        verdicts = self.look(ways)
        return [way for way in ways if not verdicts[way.group].obstacles]

    def _write(self, ways: Sequence[Way], record_log: RecordLog, deadline: Deadline) -> list[Way]:
        rows = [row for way in ways for row in way.partitions]
        written = write_offsets(rows, self.survey.target, record_log, deadline)
        for way in ways:
            way.partitions = [row for row in written if row.key.group == way.group]
            failed = [row.record.detail for row in way.partitions if row.record.outcome == "failed"]
            if failed:
                self.refuse(way, [f"its offsets can't be written at the target: {failed[0]}"])
                continue
            active = any(row.record.outcome == "active" for row in way.partitions)
            doubts = [row.doubt for row in way.partitions if row.doubt]
            way.doubt = "it has got members at the target: stop them" if active else "".join(doubts[:1])
        return [way for way in ways if way.state == "waiting" and not way.doubt]

    def _check(self, ways: Sequence[Way], record_log: RecordLog) -> None:
        """Look again: it stands at the target where it was put, and has not moved at the source."""
        if not ways:
            return
        self.survey.only = {way.group for way in ways}
        for way in ways:
            way.over("write", f"{len(way.partitions)} offsets at the target")
        good = self.standing(ways, lambda row: (row.key, row.record.source_offset))
        if good:
            moves = [GroupMove(way.group, MOVED) for way in good]
            self.survey.control.append_all(moves, Deadline(CALL_S))
        moved = [(row.key, replace(row.record, outcome="moved")) for way in good for row in way.partitions]
        for way in good:
            way.state = "done"
            way.over("check", "its consumers may be started at the target")
        record_log.write(moved, Deadline(CALL_S))
