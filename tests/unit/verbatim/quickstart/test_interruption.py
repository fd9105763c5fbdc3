"""Where a command is interrupted, and where not."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from verbatim.quickstart.interruption import SIGNALS, Interruption


@pytest.fixture
def interruption() -> Iterator[Interruption]:
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interruption() as found:
        yield found
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_interrupts_at_once_and_those_behind_it_do_not(
    interruption: Interruption, number: int
) -> None:
    """Who tidies up is not interrupted again."""
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)
    for other in SIGNALS:
        signal.raise_signal(other)
    with interruption.later():
        signal.raise_signal(number)


def test_a_call_is_not_interrupted_but_what_is_behind_it(interruption: Interruption) -> None:
    """Promise: no call of the client library is left half-way. Its threads waited for a lock of such a one
    for ever, and the command for these."""
    done = []

    def call(fails: bool) -> None:
        with interruption.later():
            signal.raise_signal(signal.SIGTERM)
            done.append(fails)
            if fails:
                raise ZeroDivisionError

    with interruption.later():
        pass
    with pytest.raises(KeyboardInterrupt):
        call(fails=False)
    with pytest.raises(ZeroDivisionError):
        call(fails=True)
    assert done == [False, True]


def test_what_is_ignored_does_nothing(interruption: Interruption) -> None:
    interruption.ignore()
    signal.raise_signal(signal.SIGINT)
    with interruption.later():
        signal.raise_signal(signal.SIGINT)
