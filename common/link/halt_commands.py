"""What goes on behind a halt: for each reason what an operator does, and the command for it. Pure; the
runbooks in docs/operations/halts.md say more."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from string import Template

from common.link.halt_reasons import HaltReason


@dataclass(frozen=True, slots=True)
class Way:
    """`command`: with `$topic`, `$partition`, `$destination` and `$staging` in it; empty where there is
    none. What the operator has to find out stands in capitals."""

    what: str
    command: str = ""


_ACCEPT_LOSS = "verbatim accept-loss $topic $partition"
_SKIP = Way("Or skip the record for good", _ACCEPT_LOSS)
_ACCEPT_DESTINATION = "verbatim accept-destination $destination"
_RAISE = "kafka-configs.sh --bootstrap-server TARGET --alter --topic {} --add-config max.message.bytes=BYTES"

WAYS: dict[str, tuple[Way, ...]] = {
    HaltReason.SOURCE_LOST: (
        Way("Raise the source's retention; then accept that the records are gone", _ACCEPT_LOSS),
    ),
    HaltReason.SOURCE_TRUNCATED: (
        Way("Find out what the source lost", "verbatim verify"),
        Way("Go on at the old position", _ACCEPT_LOSS),
    ),
    HaltReason.TOPIC_RECREATED: (
        Way(
            "Set TOPIC_RECREATED=continue and restart, if the new topic's records are to follow the old ones"
        ),
    ),
    HaltReason.NOT_AUTHORIZED: (
        Way(
            "Grant READ at the source; it goes on within ten minutes",
            "kafka-acls.sh --bootstrap-server SOURCE --add --allow-principal User:REPLICATOR --operation Read --topic $topic",
        ),
    ),
    HaltReason.LOOP: (Way("Set PROVENANCE_HEADERS=true on every link of the loop, or use other names"),),
    HaltReason.STAGING_REFUSED: (
        Way("Let staging take larger frames; it goes on within ten minutes", _RAISE.format("$staging")),
    ),
    HaltReason.STAGE_FAILED: (
        Way(
            "Change the pipeline: it goes on with the new one. Try that first",
            "verbatim pipeline test -f FILE",
        ),
        _SKIP,
    ),
    HaltReason.SCHEMA_UNKNOWN: (
        Way(
            "See with `schemas describe` why the schema is not at the target; it goes on by itself once it is"
        ),
        _SKIP,
    ),
    HaltReason.UNREADABLE: (
        Way("Restore the topic, have the producer mended, or leave the topic out"),
        Way("Once the source no longer has the batch, go on behind it", _ACCEPT_LOSS),
    ),
    HaltReason.INTERNAL: (
        Way(
            "A bug: report it with this line and the traceback in the log. It is tried again every ten minutes"
        ),
    ),
    HaltReason.MISSING: (
        Way("Do nothing: the replicator is asked to send again. Check that it runs", "verbatim status"),
    ),
    HaltReason.REFUSED: (
        Way("See which setting of the destination is in the way, and change it there", "verbatim topics"),
        Way("Or consent to write into the topic as it is", _ACCEPT_DESTINATION),
    ),
    HaltReason.STATE_LOST: (
        Way(
            "Find the last source offset that was delivered; OFFSET is the one after it",
            f"{_ACCEPT_LOSS} --next OFFSET",
        ),
    ),
    HaltReason.TOO_LARGE: (
        Way(
            "Let the destination take larger records, then restart the deduplicator",
            _RAISE.format("$destination"),
        ),
        _SKIP,
    ),
    HaltReason.NO_KEY: (
        Way("Let the source's cleaner remove the record, or take compact out of the copy's cleanup.policy"),
        _SKIP,
    ),
    HaltReason.UNAVAILABLE: (Way("Mend the target: the partition is tried again within five minutes"),),
    HaltReason.DEAD_LETTERS: (
        Way("Make the topic of dead letters as the line says, or grant WRITE on it: it goes on by itself"),
    ),
    HaltReason.GONE: (
        Way(
            "Restore the topic; or have it made again, with what was not delivered before",
            _ACCEPT_DESTINATION,
        ),
    ),
}


def ways_on(
    reason: str, topic: str, partition: int, destination: str | None, staging: str
) -> list[dict[str, str]]:
    """What to do about a halt, the commands as a shell takes them. Nothing for a reason of another
    release."""
    words = {
        "topic": shlex.quote(topic),
        "partition": str(partition),
        "destination": "DESTINATION" if destination is None else shlex.quote(destination),
        "staging": shlex.quote(staging),
    }
    return [
        {"what": way.what, "command": Template(way.command).substitute(words)} for way in WAYS.get(reason, ())
    ]
