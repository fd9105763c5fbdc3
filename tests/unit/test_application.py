"""What an application reads out of a failed query."""

from __future__ import annotations

from common.application import _denied

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
