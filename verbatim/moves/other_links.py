"""Whether records come to a topic by another way than by the two links that copy it in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from common.errors import LinkRefused
from offsets.return_link import ReturnLink
from verbatim.links.survey import controls

if TYPE_CHECKING:
    from common.config.settings import Settings


def refuse_others(settings: Settings, returning: ReturnLink, copies: Mapping[str, str]) -> None:
    """Raise LinkRefused where a third link copies into a topic on either side: what a group has read of its
    records is not known. `copies`: source topic -> destination. Raises KafkaTimeout, KafkaException."""
    own = {settings.application_name, returning.name}
    sides = (("source", returning.settings, copies.keys()), ("target", settings, copies.values()))
    for side, of_side, names in sides:
        for link, state in controls(of_side).items():
            shared = sorted({*names} & {*state.copies().values()})
            if link not in own and shared:
                raise LinkRefused(
                    f"groups can't be moved: the link {link} copies into {', '.join(shared)} at the {side}, too, and what a group has read of "
                    "that is not known; if it is gone, delete its topics there"
                )
