"""What lanes say they have done, kept by application and lane, and what was done in a second between two
looks at that. Pure; the words travel in common/link/lane_counters.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import orjson

from common.link.lane_work import Delays, Work, together
from common.partitions import PartitionName


@dataclass(frozen=True)
class Said:
    """What a lane says it has done in an epoch."""

    application: str
    lane: int
    term: int
    epoch: int
    work: Work


def decode(key: bytes | str | None, value: bytes | str | None) -> Said | None:
    """None for what is none: positions lie there too, and nothing is made of what is no good."""
    try:
        k, v = orjson.loads(key or b""), orjson.loads(value or b"")
        term, epoch = int(v.pop("term")), int(v.pop("epoch"))
        return Said(str(k["metrics"]), int(k["lane"]), term, epoch, Work.from_json(v))
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
        return None


@dataclass(frozen=True)
class Done:
    """What only grows, of a lane, whatever epoch it was done in."""

    counts: Counter[str] = field(default_factory=Counter)
    delays: Delays = field(default_factory=Delays)

    def plus(self, work: Work) -> Done:
        found = Work(Counter(self.counts), delays=Delays(list(self.delays.buckets), self.delays.sum_ms))
        found.add(Work(work.done().counts, delays=work.delays))
        return Done(found.counts, found.delays)


@dataclass(frozen=True)
class Word:
    """What a lane has said last, when (ms since 1970), and what it did in the epochs before that were heard
    of."""

    said: Said
    at_ms: int
    before: Done = field(default_factory=Done)

    def done(self) -> Done:
        return self.before.plus(self.said.work)


Heard = dict[tuple[str, int], Word]
"""By application and lane."""


def hear(heard: Heard, said: Said, at_ms: int) -> None:
    """Take in a word. One of an older epoch that comes late says nothing any more."""
    key = (said.application, said.lane)
    last = heard.get(key)
    if last is None:
        heard[key] = Word(said, at_ms)
        return
    was, now = (last.said.term, last.said.epoch), (said.term, said.epoch)
    if now >= was:
        heard[key] = Word(said, at_ms, last.before if now == was else last.done())


def newest(heard: Heard, application: str) -> list[Word]:
    """What the lanes of its newest epoch have said."""
    own = [word for (name, _), word in heard.items() if name == application]
    last = max(((word.said.term, word.said.epoch) for word in own), default=None)
    return [word for word in own if (word.said.term, word.said.epoch) == last]


def work(heard: Heard, application: str) -> Work:
    return together(word.said.work for word in newest(heard, application))


def per_second(before: Heard, now: Heard, application: str) -> Counter[str] | None:
    """What all its lanes together did in a second between two looks; None where nothing was heard of it
    before.

    Time is the lanes' own, from word to word: each says something every few seconds, at moments of its own.
    """
    if not _speaks(before, application):
        return None
    found: Counter[str] = Counter()
    for was, word in _pairs(before, now, application):
        seconds = (word.at_ms - (_last_ms(before, application) if was is None else was.at_ms)) / 1000
        if seconds <= 0:
            continue
        first = Counter[str]() if was is None else was.done().counts
        for name, count in word.done().counts.items():
            found[name] += max(0, count - first[name]) / seconds  # type: ignore[assignment]
    return found


def delays_between(before: Heard, now: Heard, application: str) -> Delays:
    """How long the records took that were delivered between two looks."""
    found = Delays()
    if not _speaks(before, application):
        return found
    for was, word in _pairs(before, now, application):
        first, last = Delays() if was is None else was.done().delays, word.done().delays
        pairs = zip(last.buckets, first.buckets, strict=True)
        found.add(Delays([max(0, a - b) for a, b in pairs], max(0, last.sum_ms - first.sum_ms)))
    return found


def delivered_per_second(before: Heard, now: Heard, application: str) -> dict[PartitionName, float]:
    """Offsets delivered in a second between two looks, of each partition of which both tell."""
    first = _delivered(before, application)
    found = {}
    for at, (offset, at_ms) in _delivered(now, application).items():
        if at in first:
            was, was_ms = first[at]
            found[at] = max(0.0, (offset - was) * 1000 / (at_ms - was_ms)) if at_ms > was_ms else 0.0
    return found


def _delivered(heard: Heard, application: str) -> dict[PartitionName, tuple[int, int]]:
    """Where there are many partitions, several lanes have a word on all of a topic: they are added up."""
    found: dict[PartitionName, tuple[int, int]] = {}
    for word in newest(heard, application):
        for at, counts in word.said.work.of.items():
            if "delivered_offset" in counts:
                offset, at_ms = found.get(at, (0, 0))
                found[at] = offset + counts["delivered_offset"], max(at_ms, word.at_ms)
    return found


def _pairs(before: Heard, now: Heard, application: str) -> Iterator[tuple[Word | None, Word]]:
    for key, word in now.items():
        if key[0] == application:
            yield before.get(key), word


def _speaks(heard: Heard, application: str) -> bool:
    return any(name == application for name, _ in heard)


def _last_ms(heard: Heard, application: str) -> int:
    return max(word.at_ms for (name, _), word in heard.items() if name == application)
