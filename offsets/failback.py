"""Fail-back: what the groups of the target have consumed, translated back and written to the groups of the
source.

This is the only thing in the project that writes to the source cluster, and it runs only when asked for by
`--reverse`. A group of the source that has members, or is ahead, is left alone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from common.config.topic_names import source_group
from common.errors import LinkRefused
from common.kafka.client import topics
from common.partitions import PartitionName
from common.ports import Deadline
from offsets.commit_rule import Outcome, decide_back
from offsets.group_offsets import GroupKey
from offsets.group_protocol import MOVABLE, Committed
from offsets.groups import NOT_EMPTY, shown
from offsets.survey import Survey, unmoved, within
from offsets.translation_index import Destination, Translation

log = logging.getLogger(__name__)

CALL_S = 60.0


@dataclass(frozen=True, slots=True)
class Back:
    """A partition of a group on its way back. `target` is what the target's group has, `found` its source
    offset, `committed` what the source's group has."""

    key: GroupKey
    target: Committed
    found: Translation
    committed: int | None
    outcome: Outcome
    detail: str = ""


def look(survey: Survey) -> list[Back]:
    """What each group of the target comes to at the source. Raises KafkaTimeout, KafkaException,
    LinkRefused."""
    deadline = Deadline(CALL_S)
    settings = survey.settings
    listed = survey.target.listed(deadline)
    names = {
        name: group
        for name in listed
        if (group := source_group(settings.group_name_template, name=name, source=survey.link.source_name))
        is not None
        and survey.selects(group)
    }
    sources = _sources(survey, deadline)
    movable, failed = sorted(name for name in names if listed[name].kind in MOVABLE), dict[str, str]()
    offsets: dict[str, dict[PartitionName, Committed]] = {
        names[name]: {source: c for at, c in of_group.items() for source in sources.get(at, ())}
        for name, of_group in survey.target.committed(movable, deadline, failed).items()
    }
    for left in unmoved(survey.selects, {names[name]: listed[name] for name in names}, failed):
        log.error("group %s at the target is left out: %s", shown(left.group), left.detail)
    survey.catch_up(deadline)
    wanted = sorted({at for of_group in offsets.values() for at in of_group})
    bounds = topics.bounds(survey.source_admin, wanted, deadline)
    groups = sorted(group for group, of_group in offsets.items() if of_group)
    committed = survey.source.committed(groups, deadline)
    members = survey.source.members(deadline)
    rows = []
    for group in groups:
        for at, target in sorted(offsets[group].items()):
            known = survey.partition(at)
            assert known is not None
            found = within(survey.translated_back(at, target.offset), bounds[at])
            have = committed.get(group, {}).get(at)
            outcome: Outcome
            if len(known.destinations) > 1:
                outcome = "several-targets"
            elif survey.meets_others(known):
                outcome, found = "several-sources", Translation(None, False, "several-sources")
            else:
                assert found.offset is not None
                outcome = decide_back(found.offset, have.offset if have else None, members.get(group, False))
            rows.append(Back(GroupKey(group, *at), target, found, have.offset if have else None, outcome))
    return rows


def write(survey: Survey, rows: list[Back]) -> list[Back]:
    """Write to the SOURCE cluster what is to be written; all rows, with what became of them.

    Raises LinkRefused when a topic was made again since the look: its offsets would be another log's.
    """
    deadline = Deadline(CALL_S)
    wanted: dict[str, dict[PartitionName, Committed]] = {}
    for row in rows:
        if row.outcome == "written" and row.found.offset is not None:
            at = (row.key.topic, row.key.partition)
            wanted.setdefault(row.key.group, {})[at] = Committed(row.found.offset, row.target.metadata)
    names = {at[0] for of_group in wanted.values() for at in of_group}
    before = {name: survey.topic_id(name) for name in names}
    if survey.identify(names, deadline) != before:
        raise LinkRefused("a topic was made again at the source meanwhile: run it again")
    refused = survey.source.commit(wanted, deadline)
    out = []
    for row in rows:
        error = refused.get((row.key.group, (row.key.topic, row.key.partition)))
        if row.outcome == "written" and error is not None:
            outcome: Outcome = "active" if error.code() in NOT_EMPTY else "failed"
            out.append(replace(row, outcome=outcome, detail=error.str()))
        else:
            out.append(row)
    return out


def _sources(survey: Survey, deadline: Deadline) -> dict[PartitionName, list[PartitionName]]:
    """Destination topic and partition -> source topics and partitions, under the topics' present ids."""
    ids = survey.identify(survey.copied_topics(), deadline)
    out: dict[PartitionName, list[PartitionName]] = {}
    for (topic_id, partition), origin in survey.control.state.origins.items():
        at = (origin.topic, partition)
        if ids.get(origin.topic) == topic_id and (known := survey.partition(at)) is not None:
            to: Destination = known.destination
            out.setdefault((to.topic, to.partition), []).append(at)
    return out
