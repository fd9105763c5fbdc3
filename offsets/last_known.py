"""When the source is gone: what its groups had committed when they were last seen, translated with all that
was delivered since. Asks the source nothing, and writes nothing.
"""

from __future__ import annotations

from common.kafka.client import topics
from common.ports import Deadline
from offsets.group_offsets import GroupKey
from offsets.group_protocol import Committed
from offsets.survey import Row, Survey
from offsets.translation_index import Destination

CALL_S = 30.0


def last_look(survey: Survey) -> list[Row]:
    """One row for each partition of each selected group on record, as `Survey.look` has them. Raises
    KafkaTimeout, KafkaException.

    An offset that was beyond what had been copied when it was recorded is translated anew: what was staged
    then is delivered by now.
    """
    deadline = Deadline(CALL_S)
    survey.control.refresh(deadline)
    survey.catch_up(deadline)
    records = {
        key: record
        for key, record in sorted(survey.records.items())
        if survey.settings.selects_group(key.group)
    }
    to = {key: place for key in records if (place := _destination(survey, key)) is not None}
    names = sorted({place.topic for place in to.values()})
    there = topics.describe(survey.target_admin, names, deadline) if names else {}
    to = {
        key: place
        for key, place in to.items()
        if place.topic in there and place.partition < there[place.topic].partitions
    }
    bounds = survey.bounds(to.values(), deadline)
    targets = {key: survey.target_name(key.group) for key in to}
    # Members after offsets, as in Survey.look.
    refused: dict[str, str] = {}
    committed = survey.target.committed(sorted(set(targets.values())), deadline, refused)
    members = survey.target.members(deadline)
    rows = []
    for key, place in to.items():
        record = records[key]
        survey.recall(key.topic, record.topic_id)
        have = committed.get(targets[key], {}).get((place.topic, place.partition))
        rows.append(
            survey.row(
                key,
                Committed(record.source_offset, record.metadata),
                place,
                bounds[place],
                record.outcome == "beyond-source",
                have.offset if have else None,
                members.get(targets[key], False),
                refused.get(targets[key]),
            )
        )
    return rows


def _destination(survey: Survey, key: GroupKey) -> Destination | None:
    # Of a topic that was made again, groups may be on record under either id: each offset is one of its own
    # log.
    survey.recall(key.topic, survey.records[key].topic_id)
    known = survey.partition((key.topic, key.partition), key.route)
    return None if known is None else known.destination
