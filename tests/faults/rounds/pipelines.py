"""A pipeline that is another one three times a minute while a round is played, and what each of its versions
makes of a record, in words of this module's own."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tests.faults.rounds.checker import Made, Mapped
from tests.support.brokers import Seen, read_all

EACH_S = 20.0
THROUGH = "a"
"""The topics whose names end so go through a flow; the others go as they are."""
_FLOW = """\
version: 1
flows:
  - topics: ['.*\\.{through}']
    stages:
      - filter: {{drop: {{key: {{matches: 'key-[0-9]*{digit}'}}}}}}
      - headers: {{set: {{turn: '{turn}'}}}}
"""


class Changing:
    """The file of a link's pipeline: written at once, and again and again in the block."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._turns = itertools.count(1)
        self._stop = threading.Event()
        self.write()

    def write(self) -> None:
        turn = next(self._turns)
        new = self._file.with_suffix(".new")
        new.write_text(_FLOW.format(through=THROUGH, digit=turn * 3 % 10, turn=turn))
        new.replace(self._file)

    def __enter__(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(EACH_S):
            self.write()


Versions = Mapping[int, tuple[bytes, bytes]]
"""By number, the digit with which keys end that are left out, and the header's value."""


def versions(target: str, link: str) -> Versions:
    """As the link's control topic has them: the first of a number counts."""
    found: dict[int, tuple[bytes, bytes]] = {}
    for record in read_all(target, f"{link}.control")[0]:
        said = json.loads(record.value or b"")
        if said["kind"] == "pipeline" and said["n"] > max(found, default=0):
            leaves_out, sets = json.loads(said["definition"])["flows"][0]["stages"]
            digit = re.search(r"\*(\d)$", leaves_out["filter"]["drop"]["key"]["matches"])
            assert digit is not None
            found[said["n"]] = digit[1].encode(), sets["headers"]["set"]["turn"].encode()
    return found


def by(known: Versions) -> Made:
    """For the check of a round."""

    def expected(topic: str, there: list[Seen], mapped: list[Mapped]) -> tuple[list[Seen], list[str]]:
        through = topic.endswith(f".{THROUGH}")
        return made(there, mapped, known) if through else there, problems(mapped, known)

    return expected


def made(there: Sequence[Seen], mapped: Sequence[Mapped], known: Versions) -> list[Seen]:
    """What is to be at the destination of a partition's records. One that no mapping covers is left as it
    is."""
    out = []
    covering = iter(mapped)
    at = next(covering, None)
    for record in there:
        while at is not None and at.next <= record.offset:
            at = next(covering, None)
        if at is None or at.pipeline not in known:
            out.append(record)
            continue
        digit, turn = known[at.pipeline]
        if record.key is None or re.fullmatch(b"key-[0-9]*" + digit, record.key) is None:
            out.append(record._replace(headers=[*(record.headers or ()), ("turn", turn)]))
    return out


def problems(mapped: Sequence[Mapped], known: Versions) -> list[str]:
    """Each mapping is of a version that there is, and none of an older one than the one before it."""
    found = [
        f"mapping [{m.start}, {m.next}) is of pipeline {m.pipeline}, which there is not"
        for m in mapped
        if m.pipeline not in known
    ]
    return found + [
        f"mapping [{n.start}, {n.next}) is of pipeline {n.pipeline}, the one before it of {m.pipeline}"
        for m, n in pairwise(mapped)
        if n.pipeline < m.pipeline
    ]
