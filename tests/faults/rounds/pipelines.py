"""A pipeline that is another one three times a minute while a round is played, and what each of its versions
makes of a record, in words of this module's own."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tests.faults.rounds.checker import Mapped
from tests.support.brokers import Seen, read_all, topics

EACH_S = 20.0
THROUGH = "a"
"""The topics whose names end so go through a flow; the others go as they are."""
_FLOW = """\
version: 1
flows:
  - topics: ['.*\\.{through}']
    onError: dead-letter
    stages:
      - filter: {{drop: {{key: {{matches: 'key-[0-9]*{digit}'}}}}}}
      - when: {{key: {{matches: 'key-[0-9]*{dead}'}}}}
        key: header.none
      - headers: {{set: {{turn: '{turn}'}}}}
      - mask: {{fields: {{header.n: {{partial: {{first: 1}}}}}}}}
"""
_ROUTE = """\
      - route: {{cases: [{{when: {{key: {{matches: 'key-[0-9]*{digit}'}}}}, topic: '{{topic}}.{routed}'}}]}}
"""
ROUTED = "routed"
"""What the topic is called to which records go, behind the name of theirs."""


class Changing:
    """The file of a link's pipeline: written at once, and again and again in the block. Two of three
    versions take some records elsewhere."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._turns = itertools.count(1)
        self._stop = threading.Event()
        self.write()

    def write(self) -> None:
        turn = next(self._turns)
        new = self._file.with_suffix(".new")
        digit, dead = turn * 3 % 10, (turn * 3 + 5) % 10
        text = _FLOW.format(through=THROUGH, digit=digit, dead=dead, turn=turn)
        if turn % 3:
            text += _ROUTE.format(digit=(turn * 3 + 7) % 10, routed=ROUTED)
        new.write_text(text)
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


Versions = Mapping[int, tuple[bytes, bytes, bytes, bytes]]
"""By number, the digit with which keys end that are left out, that of dead letters, the header's value, and
the digit of what goes elsewhere, if any does."""
Letter = tuple[str, int, int, int]
"""Source topic, partition and offset, and the version."""


def versions(target: str, link: str) -> Versions:
    """As the link's control topic has them: the first of a number counts."""
    found: dict[int, tuple[bytes, bytes, bytes, bytes]] = {}
    for record in read_all(target, f"{link}.control")[0]:
        said = json.loads(record.value or b"")
        if said["kind"] == "pipeline" and said["n"] > max(found, default=0):
            leaves_out, fails, sets, _, *route = json.loads(said["definition"])["flows"][0]["stages"]
            found[said["n"]] = (
                _digit(leaves_out["filter"]["drop"]),
                _digit(fails["when"]),
                sets["headers"]["set"]["turn"].encode(),
                _digit(route[0]["route"]["cases"][0]["when"]) if route else b"",
            )
    return found


def _digit(keys: Mapping[str, Mapping[str, str]]) -> bytes:
    found = re.search(r"\*(\d)$", keys["key"]["matches"])
    assert found is not None
    return found[1].encode()


class Expecting:
    """What a round's check goes by; `letters` are those that must be by what it has looked at."""

    def __init__(self, known: Versions) -> None:
        self._known = known
        self.letters: Counter[Letter] = Counter()

    def made(self, topic: str, there: list[Seen], mapped: list[Mapped]) -> tuple[list[Seen], list[str]]:
        wrong = problems(mapped, self._known)
        if not topic.endswith(f".{THROUGH}"):
            return there, wrong
        found, _, dead = made(there, mapped, self._known)
        self.letters.update((topic, mapped[0].destination[1], offset, version) for offset, version in dead)
        return found, wrong

    def elsewhere(self, topic: str, there: list[Seen], mapped: list[Mapped]) -> dict[str, list[Seen]]:
        """What is to be in the topic that records are routed to, where any version does."""
        if not topic.endswith(f".{THROUGH}") or not any(route for *_, route in self._known.values()):
            return {}
        return {f"{topic}.{ROUTED}": made(there, mapped, self._known)[1]}

    def wrong_letters(self, target: str, link: str, wanted: Sequence[str]) -> list[str]:
        """Those that are missing of what must be, or too many, of the topics that were looked at."""
        found, strange = letters(target, link)
        here = Counter({letter: count for letter, count in found.items() if letter[0] in wanted})
        lost, more = self.letters - here, here - self.letters
        out = [f"{strange} dead letters hold what none should, or say another stage"] if strange else []
        for what, some in (("missing", lost), ("too many", more)):
            if some:
                out.append(
                    f"dead letters: {some.total()} {what}, first {min(some)} (topic, partition, offset, pipeline)"
                )
        return out


def letters(target: str, link: str) -> tuple[Counter[Letter], int]:
    """The committed dead letters, and how many of them are not as they must be: without payload, of the
    second stage."""
    found: Counter[Letter] = Counter()
    strange, topic = 0, f"{link}.dead-letters"
    if topic not in topics(target):
        return found, strange
    for record in (r for partition in read_all(target, topic, timeout_s=60) for r in partition):
        said = {name: (item or b"").decode() for name, item in record.headers or ()}
        place = said["verbatim.source.topic"], int(said["verbatim.source.partition"])
        found[(*place, int(said["verbatim.source.offset"]), int(said["verbatim.pipeline"]))] += 1
        as_it_must_be = len(said) == 11 and said["verbatim.stage"] == "stage 2 (key)"
        strange += not as_it_must_be or (record.key, record.value) != (None, None)
    return found, strange


def made(
    there: Sequence[Seen], mapped: Sequence[Mapped], known: Versions
) -> tuple[list[Seen], list[Seen], list[tuple[int, int]]]:
    """What is to be at the destination of a partition's records, what where they are routed to, and which are
    to be dead letters: offset and version. One that no mapping covers is left as it is."""
    out: list[Seen] = []
    away: list[Seen] = []
    dead: list[tuple[int, int]] = []
    covering = iter(mapped)
    at = next(covering, None)
    for record in there:
        while at is not None and at.next <= record.offset:
            at = next(covering, None)
        if at is None or at.pipeline not in known:
            out.append(record)
            continue
        digit, fails, turn, route = known[at.pipeline]
        ends = None if record.key is None else re.fullmatch(b"key-[0-9]*([0-9])", record.key)
        if ends is not None and ends[1] == fails:
            dead.append((record.offset, at.pipeline))
        elif ends is None or ends[1] != digit:
            to = away if ends is not None and ends[1] == route else out
            to.append(record._replace(headers=[*map(_masked, record.headers or ()), ("turn", turn)]))
    return out, away, dead


def _masked(header: tuple[str, bytes | None]) -> tuple[str, bytes | None]:
    name, item = header
    if name != "n" or item is None:
        return header
    return name, (item[:1] if len(item) > 1 else b"*") + b"*" * (len(item) - 1)


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
