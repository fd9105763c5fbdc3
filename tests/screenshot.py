"""The picture of the page that the documentation shows: `python -m tests.screenshot` takes it anew, of a
made-up link, with Debian's Chromium."""

from __future__ import annotations

import math
import time

from common.app.health_server import HealthServer
from common.app.link_pages import LinkPages
from common.link.control_kinds import Halted, Limit, Pause
from common.link.lane_words import Word
from tests.documents import DOCS
from tests.support.chromium import browsing
from tests.support.made_up_link import MadeUp

PICTURE = DOCS / "operations" / "status.png"
TOPICS = {
    "orders": 24, "payments": 12, "shipments": 12, "customers": 6, "prices": 48, "inventory": 24, "clicks": 96, "returns": 6,
}  # fmt: skip
SAMPLES = 360
SIZE = {"width": 1180, "height": 1240}


def an_hour() -> MadeUp:
    """A link after an hour with ups and downs, with a halt, a pause and a limit."""
    made = MadeUp(TOPICS)
    made.led_ms = {name: int(time.time() * 1000) - 3_600_000 for name in made.led_ms}
    now_ms, records, delays = int(time.time() * 1000), 0.0, [0, 0, 0]
    for i in range(SAMPLES + 1):
        wave = 1 + 0.5 * math.sin(i / 45) + 0.12 * math.sin(i / 3.1) + 0.08 * math.sin(i * 1.7)
        burst = math.exp(-(((i - 210) / 9) ** 2))
        records += 230 * wave * (1 + burst)
        for at, count in enumerate((9000 * wave, 600 * wave + 2500 * burst, 20 + 700 * burst)):
            delays[at] += int(count)
        took = list(zip((9, 22, 210), delays, strict=True))
        at_ms = now_ms - (SAMPLES - i) * 10_000
        lag = int(6 * wave + 900 * burst) + (4 if i > 330 else 0)
        made.speak(at_ms, int(records), lag=lag, delays=took, record_bytes=420)
        made.look(at_ms)
    _differ(made)
    made.say(
        Halted("deduplicator", "returns", "id-returns", 4, "key-missing", "record 7,312 of returns-4 has no key, and returns is compacted"),
        Pause(("prices",), True),
        Limit(("clicks",), 20_000_000, None),
    )  # fmt: skip
    made.look(now_ms, seconds=3)
    made.health.halted = {"returns-4": "key-missing"}
    return made


def _differ(made: MadeUp) -> None:
    """No two partitions are as far behind."""
    word: Word = made.heard["replicator", 0]
    for i, counts in enumerate(word.said.work.of.values()):
        counts["end_offset"] += (i * 37) % 23


def main() -> None:
    server = HealthServer(LinkPages(an_hour().health), "127.0.0.1", 0)
    try:
        with browsing() as browser:
            page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
            page.goto(f"http://127.0.0.1:{server.port}/")
            page.wait_for_selector("#flow li")
            page.wait_for_timeout(500)
            page.screenshot(path=PICTURE)
    finally:
        server.close()


if __name__ == "__main__":
    main()
