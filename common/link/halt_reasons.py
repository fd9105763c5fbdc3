"""Why a partition stands still: one name for each reason, as the control topic, metrics and documents have
it."""

from __future__ import annotations

from enum import StrEnum


class HaltReason(StrEnum):
    # said by the replicator
    SOURCE_LOST = "source-lost"
    SOURCE_TRUNCATED = "source-truncated"
    TOPIC_RECREATED = "topic-recreated"
    NOT_AUTHORIZED = "not-authorized"
    LOOP = "loop"
    STAGING_REFUSED = "staging-refused"
    STAGE_FAILED = "stage-failed"
    SCHEMA_UNKNOWN = "schema-unknown"
    # said by both
    UNREADABLE = "unreadable-batch"
    INTERNAL = "internal-error"
    # said by the deduplicator
    MISSING = "staging-missing"
    """Frames are missing; the replicator is asked to send again. The only reason that is no halt."""
    REFUSED = "destination-refused"
    STATE_LOST = "state-lost"
    TOO_LARGE = "destination-too-small"
    NO_KEY = "key-missing"
    UNAVAILABLE = "destination-unavailable"
    GONE = "destination-gone"
    DEAD_LETTERS = "dead-letters-refused"


AT_THE_DESTINATION = frozenset({HaltReason.UNAVAILABLE, HaltReason.GONE})
"""Those that one destination partition is set aside for, as long as it takes nothing."""


def gone(destination: str) -> str:
    """What is said of a destination that was deleted at the target."""
    return (
        f"destination topic {destination} was deleted at the target, or is another one by now; mappings point into the old one. To go on with what "
        f"is missing in a new one: verbatim accept-destination {destination}"
    )
