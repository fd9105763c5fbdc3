"""Keeps the access rules of the copies in step with those of their source topics. What they should be is
decided in common/link/acl_sync.py.

What the source's are comes from the control topic; what the link itself has granted goes there before it is
granted, so that it, and nothing else, can be taken back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from common.errors import LinkRefused
from common.kafka.client import acls as acl_calls
from common.kafka.client import clients
from common.kafka.model import LITERAL, Acl
from common.link import acl_sync
from common.link.control_kinds import Granted
from common.link.control_log import ControlLog
from common.link.promotions import destinations
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)

CALL_S = 30.0


class AclReplication:
    """The access rules of a link's destinations, while this driver leads."""

    def __init__(self, settings: Settings, control: ControlLog) -> None:
        self.settings = settings
        self.control = control
        self.admin = clients.admin(settings.client_config("destination", "admin"))
        self._done: dict[str, set[Acl]] | None = None
        self._refused = ""

    def settle(self, again: bool) -> None:
        """Grant and revoke what has changed; `again`: look also at what somebody else has changed at the
        target."""
        if self.settings.acl_sync == "off":
            return
        state = self.control.state
        wanted = acl_sync.on_copies(
            state.acls,
            state.copies(),
            state.copied_into,
            self.settings.acl_policy(),
            destinations(state.steering.promotions),
            state.granted,
        )
        if wanted == self._done and not again:
            return
        try:
            self._bring_in_step(wanted)
        except LinkRefused as refused:
            # Copying goes on: rights that are missing are no reason to stop records.
            if str(refused) != self._refused:
                log.error("%s; the access rules of the copies are not in step", refused)
            self._refused = str(refused)
            return
        self._refused = ""
        self._done = wanted

    def _bring_in_step(self, wanted: dict[str, set[Acl]]) -> None:
        deadline = Deadline(CALL_S)
        there = acl_calls.topic_acls(self.admin, "target", deadline)
        for destination, rules in sorted(wanted.items()):
            ours = self.control.state.granted.get(destination, frozenset())
            here = {acl for acl in there if acl.pattern == LITERAL and acl.name == destination}
            found = acl_sync.steps(rules, here, ours)
            grant = {step.acl for step in found if step.action == "grant"}
            revoke = {step.acl for step in found if step.action == "revoke"}
            if grant:
                # First told, then done: the other way round, a crash between would leave a right that is
                # never taken back.
                self._tell(destination, ours | grant)
                acl_calls.grant(self.admin, grant, deadline)
            acl_calls.revoke(self.admin, revoke, deadline)
            left = (ours | grant) & rules
            if left != self.control.state.granted.get(destination, frozenset()):
                self._tell(destination, left)
            for what, changed in (("granted", grant), ("revoked", revoke)):
                for acl in sorted(changed):
                    log.info("%s: %s", what, acl_calls.shown(acl))

    def _tell(self, destination: str, granted: frozenset[Acl] | set[Acl]) -> None:
        self.control.append(Granted(destination, tuple(sorted(granted))), Deadline(CALL_S))
        self.control.refresh(Deadline(CALL_S))
