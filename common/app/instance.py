"""One running instance of an application: a member of the election of its leader, with a term while it leads;
it follows its settings' file."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from common import ports
from common.app.election import Leadership
from common.app.health import Health, sending
from common.app.health_server import serving
from common.app.link_pages import LinkPages
from common.app.link_view import LinkView
from common.app.signals import stop_on_signals
from common.link.control_kinds import Leader
from common.link.control_log import ControlLog
from common.link.identity import Link
from common.link.lane_words import Heard
from common.log_lines import setup_logging
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.live_reload import LiveFile
    from common.config.settings import Settings

log = logging.getLogger(__name__)

CALL_S = 60.0


class Instance:
    """`name` is its application's. Who runs it gives it `link` and `control`. `live` None: its settings
    stay."""

    name: str
    needs_source = True
    link: Link
    control: ControlLog
    leadership: Leadership

    def __init__(self, settings: Settings, live: LiveFile | None) -> None:
        self.settings = settings
        self.live = live
        self.instance = settings.instance_id or f"{socket.gethostname()}-{os.getpid()}"
        self.health = Health(self.name, source_reached=False if self.needs_source else None)
        self.health.link, self.health.instance = settings.application_name, self.instance
        self.view = LinkView(self.health)
        self._mute = False
        self.stopping = threading.Event()
        self.term = -1
        """Control offset of this leader's record."""

    def run(self) -> int:
        """Until a signal comes or all is done: the exit code."""
        stop_on_signals(self.stopping)
        metrics = "prometheus" in self.settings.exporters
        with serving(LinkPages(self.health, metrics), self.settings):
            return self.run_beside()

    def run_beside(self) -> int:
        """The same beside others in a process that has its own signals, and answers for all of them."""
        with sending(self.health, self.settings):
            return self._run()

    def _run(self) -> int:
        raise NotImplementedError

    def heard(self) -> Heard:
        """What this instance has heard of the link's lanes."""
        return {}

    def listen(self) -> None:
        """Take in what the link's lanes have said, without waiting."""

    def follow_link(self) -> None:
        """For the page of an instance that has nothing else to do with it: read what is said of the link, and
        show it."""
        with contextlib.suppress(KafkaException):
            self.control.poll()
            self.listen()
        self.show_link()

    def show_link(self) -> None:
        """What the page shows of the link, from what has been read already."""
        try:
            self.view.look(
                ports.monotonic(), int(time.time() * 1000), self.settings, self.control, self.heard()
            )
        except Exception:
            if not self._mute:
                log.exception("the page can't show the link")
            self._mute = True

    def take_over(self, settings: Settings) -> bool:
        """Go by these settings from now on; False where they are not fit."""
        return True

    def _stand_for_election(self) -> None:
        self.leadership = Leadership(
            self.name,
            f"{self.settings.application_name}.{self.name}.leader",
            self.settings.control_topic,
            self.settings.instance_id,
            self.settings.client_config("destination", "consumer"),
        )

    def _knows_clusters(self) -> None:
        """The link is known, and its target reached."""
        self.health.source, self.health.target = self.link.source_cluster, self.link.target_cluster
        self.health.target_reached = True
        if self.needs_source:
            self.health.source_reached = self.link.source_reached

    def _begin_term(self) -> None:
        """Say that this instance leads: whoever led before finds it in the control topic, also one that was
        paused and wakes up."""
        self.term = self.control.append(Leader(self.name, self.instance), Deadline(CALL_S))
        self.control.refresh(Deadline(CALL_S))
        self._look_at_file(at_once=True)
        self.health.role = "leader"
        log.info("leading as %s, term %d", self.instance, self.term)

    def _look_at_file(self, at_once: bool = False) -> bool:
        """Take over settings that have changed; whether any have."""
        found = self.live.look(self.settings, at_once) if self.live is not None else None
        if found is None or not self.take_over(found):
            return False
        if found.log_level != self.settings.log_level:
            setup_logging(found.log_level, found.log_format)
        self.settings = found
        return True
