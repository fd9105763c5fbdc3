"""What a fault can lay its hands on."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.rounds.world import STAGING_PARTITIONS, Link, World

REACH_S = 60.0
"""How long a fault waits for its moment."""
SESSION_S = 6.0
"""Session time-out of the applications' election; a broker's is 4 s here."""

Said = dict[str, Any]


class NotReached(Exception):
    """The fault did not happen, for this reason."""


class Wrong(Exception):
    """The fault happened, and what came of it is not what was promised."""


@dataclass
class Scene:
    """The world, the link whose round it is, and the round's source topics."""

    world: World
    link: Link
    topics: list[str]
    random: random.Random

    def staging(self) -> tuple[str, int]:
        return f"{self.link.name}.staging", self.random.randrange(STAGING_PARTITIONS)

    def transactional_ids(self) -> str:
        return f"{self.link.name}."


def state_of(pid: int) -> str:
    """Of a process, as /proc has it: T stopped, Z dead but not buried, empty when gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""
