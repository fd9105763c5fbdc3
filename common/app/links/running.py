"""How the replicator and the deduplicator run: one link, or those of a folder on one Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.app.cli import link_folder, live_file
from common.app.links.links import Links
from common.app.links.slots import Slots

if TYPE_CHECKING:
    from common.app.application import Application
    from common.config.settings import Settings


def run(application: type[Application], settings: Settings, until_caught_up: bool) -> int:
    """The exit code. `settings` are the link's, or with `--links` the process' own."""
    if (folder := link_folder()) is None:
        return application(settings, until_caught_up, live_file()).run()
    return Links(
        application.name,
        settings,
        folder,
        lambda of_link, live: application(of_link, until_caught_up, live),
        slots=Slots(settings, application),
        once=until_caught_up,
    ).run()
