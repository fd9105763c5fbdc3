"""The replicator or the deduplicator of several links: instances that share one Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.app.links.links import Links
from common.app.links.slots import Slots

if TYPE_CHECKING:
    from common.app.application import Application
    from common.app.links.folder import LinkFolder
    from common.config.live_reload import LiveFile
    from common.config.settings import Settings


def run_links(
    application: type[Application], settings: Settings, folder: LinkFolder, until_caught_up: bool
) -> int:
    """The exit code. `settings` are the process' own."""

    def make(of_link: Settings, live: LiveFile | None) -> Application:
        return application(of_link, until_caught_up, live)

    return Links(
        application.name, settings, folder, make, slots=Slots(settings, application), once=until_caught_up
    ).run()
