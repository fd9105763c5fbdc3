"""What the control topic and the lanes' words add up to for whoever looks at a link: the operator's commands,
and the page that an instance serves. Pure.

Lag is what the lanes have said last, some seconds ago. What stands at the source and what is delivered are
said by different applications, so under load it is as good as a few seconds are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from common.config import topic_names
from common.link.control_records import DEDUPLICATOR, REPLICATOR
from common.link.control_state import Control
from common.link.halt_commands import ways_on
from common.link.lane_words import Heard, delivered_per_second, newest, per_second, work
from common.link.lane_work import ALL
from common.link.permissions import OFFSETS, SCHEMAS
from common.partitions import PartitionName

if TYPE_CHECKING:
    from common.config.settings import Settings

SILENT_MS = 15_000
"""Lanes that run say something every nine seconds at least: after so long they do not run."""

LEFT = {"filtered": "filtered", "skipped": "skipped", "dead_letters": "dead letters"}
"""What lanes count of records that a pipeline keeps from going on, in the epoch that runs, and its words."""

Line = dict[str, Any]


def in_force(settings: Settings, state: Control) -> Line:
    """What is said of the link and of each topic that is copied, or was until it was promoted: limits,
    pauses, halts."""
    steering = state.steering
    running = set(state.running_topics())
    named = {entry for entry, _ in (*steering.pauses, *steering.limits) if topic_names.is_name(entry)}
    halted = Counter(
        topic for topic, _ in {(halt.topic, key) for (_, key), halt in state.halts.copy().items()}
    )
    return {
        "link": settings.application_name,
        "limit": asdict(steering.link_limit),
        "pauses": [{"topics": entry, "paused": paused} for entry, paused in steering.pauses],
        "limits": [{"topics": entry, **asdict(limit)} for entry, limit in steering.limits],
        "topics": [
            {
                "topic": name,
                "copied": name in running and name not in steering.promotions,
                "promotion": None if (of := steering.promotions.get(name)) is None else of.state,
                "paused": steering.paused_by(name) is not None,
                "paused_by": steering.paused_by(name),
                "halted_partitions": halted[name],
                **asdict(steering.limit_of(name)),
            }
            for name in sorted({*running, *named, *steering.promotions})
            if settings.selects(name)
        ],
    }


def told(settings: Settings, state: Control) -> Line:
    """All that the control topic says of a link for those who look at it: what is in force, each topic's
    destination, halts, and who leads or led last."""
    described = state.newest_topics()
    found = in_force(settings, state)
    for line in found["topics"]:
        source = described.get(line["topic"])
        to = None if source is None else state.destinations.get(source.topic_id)
        line["destination"] = None if to is None else to.topic
        line["partitions"] = 0 if source is None else source.partitions
    return {
        **found,
        "halts": halts(settings, state),
        "led_by": dict(state.led_by),
        "deleted_at_source": state.deleted_topics(),
        "group_moves": [
            {"group": group, "state": move.state} for group, move in sorted(state.group_moves.copy().items())
        ],
    }


def summary(
    said: Line, each: Iterable[Line], heard: Heard, leads: Mapping[str, bool | None], now_ms: int
) -> Line:
    """What the control topic has `said` (`told`), who runs, and how far each topic is. `each`: what
    `partitions` found."""
    return {
        **said,
        "applications": applications(said["led_by"], heard, leads, now_ms),
        **standing(said["topics"], each),
    }


def applications(
    led_by: Mapping[str, str], heard: Heard, leads: Mapping[str, bool | None], now_ms: int
) -> list[Line]:
    """Those that copy, and `offsets` and `schemas` where they have ever led. `leads`: whether one leads;
    None: not known."""
    found = []
    for name, runs in leads.items():
        if name in (OFFSETS, SCHEMAS) and name not in led_by:
            continue
        own = newest(heard, name)
        said_ms = max((word.at_ms for word in own), default=None)
        found.append(
            {
                "application": name,
                "runs": runs,
                "instance": led_by.get(name),
                "lanes": len(own),
                "said_s": None if said_ms is None else max(0.0, (now_ms - said_ms) / 1000),
            }
        )
    return found


def speaks(heard: Heard, application: str, now_ms: int) -> bool | None:
    """Whether an application's lanes run, by what was heard of them lately; None where nothing ever was."""
    at_ms = [word.at_ms for word in newest(heard, application)]
    return now_ms - max(at_ms) < SILENT_MS if at_ms else None


def partitions(heard: Heard) -> list[Line]:
    """Each source partition as the lanes see it; where there are many, a topic's are told together, and
    `partition` is None. What is not known is None."""
    source, delivered = work(heard, REPLICATOR).of, work(heard, DEDUPLICATOR).of
    found = []
    for at in sorted({*source, *delivered}):
        ahead, behind = source.get(at, Counter[str]()), delivered.get(at, Counter[str]())
        if not ("end_offset" in ahead or "staged_offset" in ahead or "delivered_offset" in behind):
            continue
        end, reached = ahead.get("end_offset"), behind.get("delivered_offset")
        found.append(
            {
                "topic": at[0],
                "partition": None if at[1] == ALL else at[1],
                "end": end,
                "staged": ahead.get("staged_offset"),
                "delivered": reached,
                "lag": None if end is None or reached is None else max(0, end - reached),
                **{name: ahead[name] + behind[name] for name in LEFT},
            }
        )
    return found


def standing(lines: Iterable[Line], each: Iterable[Line]) -> Line:
    """Each of these topics (`told`) with its lag, and the lag of all: None where it is not known. `each`:
    what `partitions` found."""
    of: dict[str, list[Line]] = {}
    for line in each:
        of.setdefault(line["topic"], []).append(line)
    topics, all_known, total = [], True, 0
    for line in lines:
        own = of.get(line["topic"], [])
        whole = any(one["partition"] is None for one in own)
        lags = [one["lag"] for one in own if one["lag"] is not None]
        reached = [one["delivered"] for one in own if one["delivered"] is not None]
        lag = sum(lags) if lags and (whole or len(lags) == line["partitions"]) else None
        left = {name: sum(one[name] for one in own) for name in LEFT}
        topics.append({**line, "lag": lag, "delivered": sum(reached) or None, **left})
        total += lag or 0
        all_known &= lag is not None or not line["copied"]
    return {"topics": topics, "lag": total if all_known else None}


def rates(before: Heard, now: Heard) -> Line:
    """What was done in a second between two looks, of each application; None where that is not known."""
    found = {}
    for application in (REPLICATOR, DEDUPLICATOR):
        counts = per_second(before, now, application)
        found[application] = {
            f"{what}_per_second": None if counts is None else float(counts[what])
            for what in ("records", "bytes")
        }
    return found


def add_rates(lines: Iterable[Line], before: Heard, now: Heard) -> None:
    """What of each topic, or of each partition, was delivered in a second between two looks, in offsets; None
    where that is not known."""
    each = delivered_per_second(before, now, DEDUPLICATOR)
    whole: Counter[str] = Counter()
    for (topic, _), rate in each.items():
        whole[topic] += rate  # type: ignore[assignment]
    for line in lines:
        topic = line["topic"]
        if "copied" in line:
            line["per_second"] = float(whole[topic]) if topic in whole else None
        else:
            partition = ALL if line["partition"] is None else line["partition"]
            line["per_second"] = each.get((topic, partition))


def rate(found: Line, before: Heard, now: Heard) -> None:
    """Add to a `summary` what was done in a second between two looks."""
    add_rates(found["topics"], before, now)
    of_each = rates(before, now)
    for line in found["applications"]:
        line |= of_each.get(line["application"], {})


def staging_lag(heard: Heard) -> int | None:
    """Frames of staging that are not read yet."""
    return work(heard, DEDUPLICATOR).counts.get("staging_lag")


def halts(settings: Settings, state: Control) -> list[Line]:
    """Each halt, with where to read on and what goes on."""
    return [
        {
            "topic": halt.topic,
            "partition": partition,
            "application": application,
            "reason": halt.reason,
            "detail": halt.detail,
            "runbook": f"docs: operations/halts#{halt.reason}",
            "ways_on": ways_on(
                halt.reason,
                halt.topic,
                partition,
                None if (to := state.destinations.get(topic_id)) is None else to.topic,
                settings.staging_topic,
            ),
        }
        for (application, (topic_id, partition)), halt in sorted(
            state.halts.copy().items(), key=lambda one: (one[1].topic, one[0][1][1], one[0][0])
        )
    ]


def reasons(found: Iterable[Line]) -> dict[PartitionName, str]:
    """Why each halted partition stands still."""
    return {(halt["topic"], halt["partition"]): halt["reason"] for halt in found}
