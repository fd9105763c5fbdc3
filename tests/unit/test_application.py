"""What an application reads out of a failed query."""

from __future__ import annotations

from common.application import EPOCH_S, _denied, epoch_length

OURS = "common.errors.LinkRefused: writing to l.staging: not allowed: Broker: Topic authorization failed; grant WRITE"
CLIENTS = 'cimpl.KafkaException: KafkaError{code=TOPIC_AUTHORIZATION_FAILED,str="Broker: Topic authorization failed"}'


def test_a_missing_right_is_told_in_the_words_that_name_it() -> None:
    """Promise: the line that names topic and right is told, wherever in a chain of exceptions it stands; else the client's own."""
    named = OURS.removeprefix("common.errors.LinkRefused: ")
    assert _denied(f"Traceback:\n  {OURS}\nDuring handling, another:\n  {CLIENTS}\n") == named
    assert _denied(f"{CLIENTS}\n{OURS}") == named
    assert _denied(f"Traceback:\n{CLIENTS}\n") == CLIENTS
    assert _denied("ValueError: something else") is None
    assert _denied(None) is None


def test_epochs_of_both_applications_end_at_different_times() -> None:
    """Promise: an epoch lasts ten minutes or up to one less; two applications that start together don't stop the flow together each time."""
    lengths = [
        epoch_length(application, "link", epoch)
        for application in ("replicator", "deduplicator")
        for epoch in range(50)
    ]
    assert all(0.9 * EPOCH_S <= length <= EPOCH_S for length in lengths)
    together = [abs(a - b) < 2.0 for a, b in zip(lengths[:50], lengths[50:], strict=True)]
    assert sum(together) < 10
