"""Links of one process, with instances that do what a test says and no more."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common.app.instance import Instance
from common.app.links.folder import ASSUMED, LinkFolder
from common.app.links.links import Links
from common.config import loading
from common.config.live_reload import LiveFile
from common.config.settings import Settings
from common.errors import LinkRefused

LINK = """\
KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS: source:9092
KAFKA_CLUSTERS_SOURCE_TOPIC: orders
KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS: target:9092
"""


class MadeUp(Instance):
    """Leads until it is stopped, or does what `does` says of its link."""

    name = "replicator"

    def __init__(
        self, settings: Settings, live: LiveFile | None, does: Callable[[str], int | None] = lambda _: None
    ) -> None:
        super().__init__(settings, live)
        self._does = does

    def _run(self) -> int:
        code = self._does(self.settings.application_name)
        if code is not None:
            return code
        self.health.role, self.health.source_reached, self.health.target_reached = "leader", True, True
        while not self.stopping.wait(0.02):
            if self.live is not None:
                self.live.look(self.settings, at_once=True)
        return 0


def refusing(*names: str, why: str = "is refused") -> Callable[[str], int | None]:
    """Whoever has one of these names may not run."""

    def does(name: str) -> int | None:
        if name in names:
            raise LinkRefused(f"{name} {why}")
        return None

    return does


def settings_of(name: str, **more: str) -> Settings:
    """Of a link of this name."""
    lines = dict(line.split(": ") for line in LINK.splitlines())
    return loading.load(environ=lines | {"APPLICATION_NAME": name} | more, flags={})


def links_of(folder: Path, does: Callable[[str], int | None] = lambda _: None, once: bool = False) -> Links:
    load = functools.partial(loading.load, environ={}, flags={})
    settings = load(assumed=ASSUMED | {"HEALTH_PORT": "0"})
    found = LinkFolder(folder, load, {})
    return Links("replicator", settings, found, lambda of, live: MadeUp(of, live, does), once=once)


@contextmanager
def running(links: Links) -> Iterator[Links]:
    """Its main loop in a thread; without signals, which are the main thread's."""
    thread = threading.Thread(target=links.serve, daemon=True)
    thread.start()
    try:
        yield links
    finally:
        links.stopping.set()
        thread.join(15)
        assert not thread.is_alive()
