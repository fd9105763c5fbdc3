"""What confluent_kafka's calls raise, as it was raised.

confluent_kafka 2.16 does not always look whether what it called in Python has raised: a report handed out by
`flush`, or the handler of a signal that came in the middle of a call. It goes on with the exception pending,
and Python ends the call with a SystemError because of that exception.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def as_raised() -> Iterator[None]:
    """Around calls of the client library: raises the exception that was pending, not the SystemError."""
    try:
        yield
    except SystemError as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from None
