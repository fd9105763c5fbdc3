"""Environment variables that are nearly a setting: what was meant by them would have no effect, and nothing
would say so. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable

CUTOFF = 0.91
"""As difflib counts: a letter too many or too few of ten, or one that is another of twelve. Below that come
names that are other programs'."""
_PREFIX = re.compile(r"(?:VERBATIM_)?KAFKA_?CLUSTERS?_?(?=[A-Z])|VERBATIM_")


def near_misses(
    names: Iterable[str], known: Collection[str], is_setting: Callable[[str], bool]
) -> dict[str, str]:
    """Variable -> the setting that was probably meant. `known`: the settings' variables; `is_setting` also
    knows families of them.

    A variable whose setting is given too is somebody else's, or left over.
    """
    given = set(names)
    found = {}
    for name in sorted(given):
        if not is_setting(name) and (meant := _meant(name.upper(), known, is_setting)) and meant not in given:
            found[name] = meant
    return found


def _meant(name: str, known: Collection[str], is_setting: Callable[[str], bool]) -> str | None:
    if is_setting(name):
        return name  # in lower case
    for prefix in ("KAFKA_CLUSTERS_", ""):
        right = _PREFIX.sub(prefix, name, count=1)
        if right != name and is_setting(right):
            return right
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=CUTOFF)), None)
