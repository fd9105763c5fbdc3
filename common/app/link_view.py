"""What an instance shows of its link: taken down by its main loop now and then, put together for who asks.
Asks Kafka nothing, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from common.app.history import SAMPLE_S, History, Sample, columns, quantile
from common.config.shown import shown
from common.link import link_status
from common.link.control_records import DEDUPLICATOR, REPLICATOR
from common.link.lane_words import Heard, delays_between
from common.link.link_status import Line
from common.link.permissions import OFFSETS, SCHEMAS

if TYPE_CHECKING:
    from common.app.health import Health
    from common.config.settings import Settings
    from common.link.control_log import ControlLog

LOOK_S = 2.0


@dataclass(frozen=True)
class Seen:
    """What the main loop saw last; nothing of it changes any more, so that other threads may read it."""

    told: Line
    led_ms: dict[str, int]
    settings: list[dict[str, str]]
    heard: Heard
    before: Heard
    """The same some ten to twenty seconds earlier."""
    history: tuple[Sample, ...]


class LinkView:
    """The main loop's part: `look` at what it knows, several times a second if it likes."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._look_at = self._sample_at = 0.0
        self._history = History()
        self._earlier: tuple[Heard, Heard] = ({}, {})
        """What had been heard at the last sample but one, and at the last."""
        self._told: tuple[int, Line] | None = None
        self._shown: tuple[Settings, list[dict[str, str]]] | None = None

    def look(self, now: float, now_ms: int, settings: Settings, control: ControlLog, heard: Heard) -> None:
        """`now` is the monotonic clock's, `now_ms` since 1970. What the control topic says is added up only
        when it says more."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        if self._shown is None or self._shown[0] is not settings:
            self._shown, self._told = (settings, shown(settings)), None
        if self._told is None or self._told[0] != control.state.position:
            # Read first: what is taken in meanwhile is looked at the next time.
            self._told = (control.state.position, link_status.told(settings, control.state))
        heard = dict(heard)
        if now >= self._sample_at:
            self._sample_at = now + SAMPLE_S
            self._history.add(_sample(now_ms, self._told[1], self._earlier[1], heard))
            self._earlier = (self._earlier[1], heard)
        self._health.seen = Seen(
            told=self._told[1],
            led_ms=dict(control.led_ms),
            settings=self._shown[1],
            heard=heard,
            before=self._earlier[0],
            history=self._history.samples(),
        )


def _sample(now_ms: int, told: Line, before: Heard, now: Heard) -> Sample:
    rates = link_status.rates(before, now)[DEDUPLICATOR]
    delays = delays_between(before, now, DEDUPLICATOR)
    return Sample(
        at_ms=now_ms,
        records_per_second=rates["records_per_second"],
        bytes_per_second=rates["bytes_per_second"],
        lag=link_status.standing(told["topics"], link_status.partitions(now))["lag"] if now else None,
        p50_s=quantile(delays, 0.5),
        p99_s=quantile(delays, 0.99),
    )


def status(health: Health, now_ms: int) -> Line:
    """All that the page shows. Before the link is known, of the instance alone."""
    found: Line = {
        "now_ms": now_ms,
        "instance": {**health.report(), "name": health.instance, "version": _version(), "started_ms": health.started_ms,
            "epochs": health.epochs, "epochs_failed": health.epochs_failed, "turned_s": health.turned_ago()},
        "link": health.link,
        "source": health.source,
        "target": health.target,
        "known": health.seen is not None,
    }  # fmt: skip
    if (seen := health.seen) is None:
        return found
    each = link_status.partitions(seen.heard)
    found |= link_status.summary(seen.told, each, seen.heard, _leads(health, seen, now_ms), now_ms)
    link_status.rate(found, seen.before, seen.heard)
    link_status.add_rates(each, seen.before, seen.heard)
    why = link_status.reasons(found["halts"])
    for line in each:
        line["halted"] = why.get((line["topic"], line["partition"]))
    for line in found["applications"]:
        name = line["application"]
        line["led_ms"] = seen.led_ms.get(name)
        line["halted"] = sum(halt["application"] == name for halt in found["halts"])
    delays = delays_between(seen.before, seen.heard, DEDUPLICATOR)
    found |= {
        "partitions": each,
        "staging_lag": link_status.staging_lag(seen.heard),
        "delay": {"p50_s": quantile(delays, 0.5), "p99_s": quantile(delays, 0.99)},
        "groups": [{"group": name, **asdict(of)} for name, of in sorted(health.groups.items())],
        "settings": seen.settings,
        "history": columns(seen.history),
    }
    return {**found, "flow": flow(found)}


def _leads(health: Health, seen: Seen, now_ms: int) -> dict[str, bool | None]:
    """Whether each application runs: this one knows of itself, of the others by what is heard of them."""
    leads = {name: link_status.speaks(seen.heard, name, now_ms) for name in (REPLICATOR, DEDUPLICATOR)}
    return {**leads, OFFSETS: None, SCHEMAS: None} | (
        {health.application: True} if health.role == "leader" else {}
    )


def flow(found: Line) -> list[dict[str, Any]]:
    """The parts that records go through, in order, then `offsets`, each with its state (`ok`, `warn`, `bad`,
    `unknown`) in words, and what it does."""
    by_name = {line["application"]: line for line in found["applications"]}
    lag, copied = found["staging_lag"], [line for line in found["topics"] if line["copied"]]
    parts = [
        _cluster("source", found["source"], found["instance"].get("source_reached")),
        _application(REPLICATOR, by_name),
        {
            "part": "staging",
            "state": "unknown" if lag is None else "ok",
            "words": "not known" if lag is None else f"{lag:,} frames not read yet",
            "name": "",
        },
        _application(DEDUPLICATOR, by_name),
        _cluster("target", found["target"], found["instance"].get("target_reached")),
        _application(OFFSETS, by_name),
    ]
    if copied and all(line["paused"] for line in copied):
        parts[1] |= {"state": "warn", "words": f"{parts[1]['words']}, all topics paused"}
    return parts


def _cluster(part: str, name: str, reached: bool | None) -> dict[str, Any]:
    state, words = {
        True: ("ok", "can be reached"),
        False: ("bad", "can't be reached"),
        None: ("unknown", "not used by this application"),
    }[reached]
    return {"part": part, "name": name, "state": state, "words": words}


def _application(part: str, by_name: Mapping[str, Line]) -> dict[str, Any]:
    line = by_name.get(part)
    if line is None:
        return {"part": part, "name": "", "state": "unknown", "words": "has not led yet"}
    state, words = {
        True: ("ok", "runs"),
        False: ("bad", "says nothing"),
        None: ("unknown", "nothing heard of it"),
    }[line["runs"]]
    if line["halted"]:
        state, words = "bad", f"{words}, {line['halted']:,} halted"
    return {"part": part, "name": line["instance"] or "", "state": state, "words": words}


@cache
def _version() -> str:
    return version("verbatim-kafka")
