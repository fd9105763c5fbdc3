"""Which brokers could not be reached or did not answer lately: when each is tried again, for how long, and
what is said of it. No I/O but log lines.

One of them for a process: whoever is made later, such as the producer that fences after an unclean end,
begins with what was learnt before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from common import ports
from common.kafka.wire.protocol import Address

log = logging.getLogger(__name__)

FIRST_S, MOST_S = 2.0, 10.0
"""How long a first try may take, TCP, TLS, SASL and ApiVersions together; twice as long each time that it was
too short, for a broker that is slow."""
LEAST_PAUSE_S, MOST_PAUSE_S = 0.1, 5.0
SUMMARY_S = 60.0
FORGET_S = 60.0
"""Of what was not tried for so long nothing is known any more."""

DATA, CONTROL = "data", "control"
"""What connections are for: a question must not wait behind records."""


@dataclass(slots=True)
class _Trouble:
    since: float
    tries: int = 0
    failed_at: float = 0.0
    told_at: float = 0.0
    of: set[str] = field(default_factory=set)
    """What the connections that failed were for."""


class BrokerTries:
    """For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[Address, _Trouble] = {}

    def failed(self, address: Address, purpose: str, why: str) -> None:
        """A try came to nothing. The first is told, and once a minute that it is no better."""
        now = ports.monotonic()
        with self._lock:
            trouble = self._of.get(address)
            if trouble is None or now - trouble.failed_at > FORGET_S + MOST_S:
                trouble = self._of[address] = _Trouble(now)
            trouble.tries += 1
            trouble.failed_at = now
            trouble.of.add(purpose)
            tell = trouble.tries == 1 or now - trouble.told_at >= SUMMARY_S
            if tell:
                trouble.told_at = now
        at = f"{address[0]}:{address[1]}"
        if tell and trouble.tries == 1:
            log.warning("broker %s: %s; what it leads waits for it, nothing else does", at, why)
        elif tell:
            log.warning(
                "broker %s: no better after %d tries in %d s: %s", at, trouble.tries, now - trouble.since, why
            )
        else:
            log.debug("broker %s: %s", at, why)

    def worked(self, address: Address, purpose: str) -> None:
        """It has answered. One that answers questions, but breaks with each request for records, is not
        well."""
        # Nearly always nothing is wrong with any of them, and this is asked for each answer.
        if not self._of:
            return
        with self._lock:
            trouble = self._of.get(address)
            if trouble is None or (purpose == CONTROL and DATA in trouble.of):
                return
            del self._of[address]
        log.info("broker %s:%d answers again, after %.1f s", *address, ports.monotonic() - trouble.since)

    def next_at(self, address: Address) -> float:
        """When it may be tried again, where that needs no haste."""
        trouble = self._of.get(address)
        if trouble is None:
            return 0.0
        return trouble.failed_at + min(MOST_PAUSE_S, LEAST_PAUSE_S * (1 << min(trouble.tries - 1, 10)))

    def tries(self, address: Address) -> int:
        """How many have come to nothing since it answered last."""
        trouble = self._of.get(address)
        return 0 if trouble is None else trouble.tries

    def allowance_s(self, address: Address) -> float:
        """How long the next try may take."""
        return min(MOST_S, FIRST_S * (1 << min(self.tries(address), 10)))

    def in_order(self, addresses: Iterable[Address]) -> list[Address]:
        """Each once: those that are well as they come, then the others, from the one that failed the longest
        ago on."""
        now = ports.monotonic()

        def failed_at(address: Address) -> float:
            trouble = self._of.get(address)
            return 0.0 if trouble is None or now - trouble.failed_at > FORGET_S else trouble.failed_at

        return sorted(dict.fromkeys(addresses), key=failed_at)


TRIES = BrokerTries()
"""The process's."""
