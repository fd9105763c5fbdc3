"""What Kafka tells of topics, in its own words: access rules, settings, names. Pure."""

from __future__ import annotations

from typing import NamedTuple

GROUPS_TOPIC = "__consumer_offsets"
"""Where brokers keep what groups have committed."""
LITERAL, PREFIXED = "LITERAL", "PREFIXED"


class Acl(NamedTuple):
    """One rule on topics, in Kafka's words; `pattern` is LITERAL or PREFIXED."""

    pattern: str
    name: str
    principal: str
    host: str
    operation: str
    permission: str

    def concerns(self, topic: str) -> bool:
        if self.pattern == PREFIXED:
            return topic.startswith(self.name)
        return self.name in (topic, "*")


class Value(NamedTuple):
    """A topic's setting: what counts, and whether it was set on the topic itself."""

    value: str
    explicit: bool
