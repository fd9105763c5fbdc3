"""What a destination's configuration should be, given its source's: differences, and what is refused. Pure;
who reads and alters is elsewhere.

A destination never deletes or refuses what its source keeps or takes. Past that it follows the source, but
for what is excluded, what Verbatim sets itself, and a longer retention that somebody has set at the target.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.config import topic_names
from common.kafka.model import Value

if TYPE_CHECKING:
    from common.config.settings import Settings
    from common.link.control_kinds import SourceTopic

FOREVER = 2**63 - 1

WIDE_TIMESTAMPS = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(FOREVER),
    "message.timestamp.after.max.ms": str(FOREVER),
}
"""What a topic needs to take any record with the timestamp that it has."""

NEVER_COPIED = re.compile(
    r"message\.timestamp\..*|message\.format\.version|message\.downconversion\.enable|internal\..*"
    r"|(leader|follower)\.replication\.throttled\.replicas"
)
"""Set by Verbatim, of one release only, or naming brokers of one cluster."""

NEEDED = ("cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes")
"""With these a destination may delete or refuse what the source keeps or takes."""


@dataclass(frozen=True, slots=True)
class Change:
    """One setting of a destination that is not as it should be. `to` None: unset, so that the target's
    default counts.

    `kept` says why it is left alone nevertheless.
    """

    key: str
    now: str
    to: str | None
    kept: str | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """How configurations follow: `exclude` as a list of names and expressions, `defaults` "source" or
    "target"."""

    exclude: str
    defaults: str

    @classmethod
    def of(cls, settings: Settings) -> Rules:
        return cls(settings.topic_config_exclude, settings.topic_config_defaults)

    def copies(self, key: str) -> bool:
        return not NEVER_COPIED.fullmatch(key) and not topic_names.matches(self.exclude, key)


def differences(
    source: SourceTopic, there: Mapping[str, Value], applied: Mapping[str, str], rules: Rules
) -> list[Change]:
    """What to change of a destination's configuration `there`; `applied` is what the link itself has set on
    it before.

    A setting that the target's release does not know is left out.
    """
    found = []
    for key, want in sorted(source.config.items()):
        has = there.get(key)
        if has is None or not rules.copies(key):
            continue
        change = _change(key, has, want, key in source.explicit, applied.get(key), rules)
        if change is not None:
            found.append(change)
    return found


def _change(
    key: str, has: Value, want: str, explicit: bool, applied: str | None, rules: Rules
) -> Change | None:
    ours = applied == has.value
    if explicit or rules.defaults == "source":
        to: str | None = want
    elif key not in NEEDED:
        to = None
    elif narrower(key, has.value, want) or (has.explicit and ours):
        # The target's default would delete or refuse what the source keeps; or the value was followed while
        # the source set it.
        to = want
    else:
        return None
    if (to is None and not has.explicit) or _same(key, has.value, to):
        return None
    if to is None or not narrower(key, to, has.value):
        return Change(key, has.value, to)
    if key == "max.message.bytes":
        # Records that were accepted may be on their way still, and somebody may have raised it for one that
        # packs worse here.
        return Change(key, has.value, to, "never lowered") if has.explicit else None
    if has.explicit and not ours:
        return Change(key, has.value, to, "set at the target, and keeps more than the source")
    return Change(key, has.value, to)


def settled(
    source: SourceTopic, there: Mapping[str, Value], applied: Mapping[str, str], rules: Rules
) -> dict[str, str]:
    """What counts as set by the link from now on, where a destination's configuration is `there` after it was
    brought in step.

    Values that equal the source's were taken over from it, whoever wrote them: they follow when the source
    moves on. What the link has set stays its own while the rules leave it out, so that it follows again when
    they no longer do.
    """
    ours = {}
    for key, has in there.items():
        copied = has.explicit and key in source.config
        taken_over = copied and rules.copies(key) and _same(key, has.value, source.config[key])
        if taken_over or (copied and applied.get(key) == has.value):
            ours[key] = has.value
    return ours


def after(there: Mapping[str, Value], changes: list[Change], source: SourceTopic) -> dict[str, Value]:
    """The configuration once `changes` are made. What an unset value falls back to is not known here: taken
    for the source's."""
    out = dict(there)
    for change in changes:
        if change.kept is None:
            value = change.to if change.to is not None else source.config[change.key]
            out[change.key] = Value(value, change.to is not None)
    return out


def first_config(source: SourceTopic, rules: Rules) -> dict[str, str]:
    """What a destination is made with: what must hold before its first record, and is known by any broker."""
    wanted = {key: source.config[key] for key in NEEDED if key in source.config and rules.copies(key)}
    if rules.defaults == "target":
        wanted = {key: value for key, value in wanted.items() if key in source.explicit}
    return wanted | WIDE_TIMESTAMPS


def narrower(key: str, one: str, other: str) -> bool:
    """Whether a topic with the value `one` may delete or refuse what one with `other` keeps or takes."""
    if key == "cleanup.policy":
        return bool(_policies(one) - _policies(other))
    if key in ("retention.ms", "retention.bytes"):
        return limit(one) < limit(other)
    return key == "max.message.bytes" and int(one) < int(other)


def refusal(source: SourceTopic, name: str, config: Mapping[str, str]) -> str | None:
    """Why records of a source topic may not be written to a destination with this configuration, or None."""
    want = source.config

    def refused(key: str, why: str) -> str:
        return f"destination topic {name} has {key}={config.get(key)}: {why} (source topic {source.topic} has {want.get(key)}); change it"

    def at_most(key: str, of: Mapping[str, str]) -> int:
        return limit(of.get(key, "-1"))

    if config.get("message.timestamp.type") == "LogAppendTime":
        return refused("message.timestamp.type", "it would replace the records' timestamps")
    largest = want.get("max.message.bytes", "0")
    if int(config.get("max.message.bytes", largest)) < int(largest):
        return refused("max.message.bytes", "it would refuse the source's largest records")
    if at_most("message.timestamp.before.max.ms", config) < FOREVER:
        return refused("message.timestamp.before.max.ms", "it would refuse old records")
    if at_most("message.timestamp.after.max.ms", config) < at_most("message.timestamp.after.max.ms", want):
        return refused("message.timestamp.after.max.ms", "it would refuse records that the source takes")
    policy, wanted = (_policies(c.get("cleanup.policy", "")) for c in (config, want))
    if "compact" in policy and "compact" not in wanted:
        return refused("cleanup.policy", "compaction would delete records that the source keeps")
    if "delete" in policy:
        for key in ("retention.ms", "retention.bytes"):
            kept = at_most(key, want) if "delete" in wanted else FOREVER
            if at_most(key, config) < kept:
                return refused(key, "it would delete records that the source keeps")
    return None


def limit(value: str) -> int:
    """A size or an age, where Kafka takes a negative one for none."""
    number = int(value)
    return FOREVER if number < 0 else number


def _policies(value: str) -> frozenset[str]:
    return frozenset(policy.strip() for policy in value.split(",") if policy.strip())


def _same(key: str, one: str, other: str | None) -> bool:
    if other is None:
        return False
    return _policies(one) == _policies(other) if key == "cleanup.policy" else one == other
