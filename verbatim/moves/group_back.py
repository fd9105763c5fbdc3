"""Moves consumer groups back to the source: their offsets at the target are translated back exactly, and
`offsets` keeps the groups in step again. A group that has read nothing at the target goes back to where it
stood."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from common.config.topic_names import source_group
from common.link.control_kinds import GroupMove
from common.link.control_records import FOLLOWED, MOVED
from common.ports import Deadline
from offsets import failback
from offsets.failback import Back
from offsets.group_protocol import Group
from verbatim.moves.group_rules import Verdict, judge_back
from verbatim.moves.group_ways import CALL_S, State, Way, Ways


class GroupsBack(Ways):
    """To the source."""

    before = "at the source already"
    releases = False

    def listed(self) -> dict[str, Group]:
        settings, name = self.settings, self.survey.link.source_name
        return {
            group: of
            for there, of in self.survey.target.listed(Deadline(CALL_S)).items()
            if (group := source_group(settings.group_name_template, name=there, source=name)) is not None
        }

    def chosen(self, group: str) -> tuple[State, str]:
        if group in self.survey.control.state.group_moves:
            return "waiting", ""
        if group in self.survey.control.state.followed:
            return "kept", ""
        return "refused", "it was not moved, nor is it on its way"

    def look(self, ways: Sequence[Way]) -> dict[str, Verdict]:
        # Members before offsets: who leaves has committed before.
        there = self.listed()
        active = {way.target_group: of for way in ways if (of := there.get(way.group)) and of.active}
        who = self.named(active, "target")
        rows = [self._level(row) for row in failback.look(self.survey)]
        moved = [
            key
            for key, said in self.survey.records.items()
            if said.outcome == "moved" and said.topic_id == self.survey.topic_id(key.topic)
        ]
        verdicts = {}
        for way in ways:
            way.partitions = [row for row in rows if row.key.group == way.group]
            verdicts[way.group] = judge_back(
                way.group,
                there,
                way.partitions,
                [key for key in moved if key.group == way.group],
                who.get(way.target_group, ()),
                self.options.accept_redelivery,
            )
        return verdicts

    def move(self, ways: Sequence[Way]) -> None:
        rows: Iterable[Back] = failback.write(self.survey, [row for way in ways for row in way.partitions])
        failed = {row.key.group: row.detail for row in rows if row.outcome == "failed"}
        for way in ways:
            if way.group in failed:
                self.refuse(way, [f"its offsets can't be written at the source: {failed[way.group]}"])
        ways = [way for way in ways if way.state == "waiting"]
        for way in ways:
            way.over("write", f"{len(way.partitions)} offsets at the source")
        good = self.standing(ways, lambda row: (row.key, row.target))
        if good:
            moves = [GroupMove(way.group, FOLLOWED) for way in good]
            self.survey.control.append_all(moves, Deadline(CALL_S))
        for way in good:
            way.state = "done"
            way.over("check", "its consumers may be started at the source")

    def in_step(self, partition: Back) -> bool:
        return partition.outcome == "in-step"

    def _level(self, row: Back) -> Back:
        """In step, too, is a source's group that stands behind the last record which the target's has read,
        and not behind the next one: at the end of its log, say, where a transaction's marker is. And one that
        is ahead of a move that did not come to its end: `offsets` follows it again."""
        known = self.survey.partition((row.key.topic, row.key.partition))
        if row.outcome != "target-ahead" or known is None or row.committed is None:
            return row
        move = self.survey.control.state.group_moves.get(row.key.group)
        if move is not None and move.state != MOVED:
            return replace(row, outcome="in-step")
        found = self.survey.translated((row.key.topic, row.key.partition), row.committed)
        level = found.exact and found.offset is not None and found.offset <= row.target.offset
        return replace(row, outcome="in-step") if level else row
