"""What is told of the source's topics in the control topic: what they are like, who may do what, which are
gone or hidden.

So the deduplicator needs no access to the source. Which topics are copied, and from where, is decided in
replicator/driver/planner.py.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from common.errors import LinkRefused
from common.kafka.client import acls as acl_calls
from common.kafka.client import topics
from common.kafka.client.topics import TopicInfo
from common.link import acl_sync
from common.link.control_kinds import ControlRecord, Halted, Resumed, TopicAcls, TopicDeleted
from common.link.control_log import ControlLog
from common.link.control_records import REPLICATOR
from common.link.control_state import Control
from common.link.halt_reasons import HaltReason
from common.link.source_topics import source_topics
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.settings import Settings

log = logging.getLogger(__name__)

ENVELOPE_BYTES = 1 << 20


class TopicReporter:
    """Tells what is new, while this driver leads."""

    def __init__(
        self, settings: Settings, control: ControlLog, source: AdminClient, target: AdminClient
    ) -> None:
        self.settings = settings
        self.control = control
        self.source = source
        self.target = target
        self._staging_limit = 0
        self._acls_refused = ""

    def describe(self, found: list[TopicInfo], state: Control, deadline: Deadline) -> None:
        """Tell the deduplicator what each source topic is like, so that it needs no access to the source."""
        described = source_topics(self.source, found, deadline)
        records = [
            topic
            for topic in described
            if state.topics.get(topic.topic_id) != topic or topic.topic_id in state.deleted
        ]
        largest = max((int(t.config.get("max.message.bytes", 0)) for t in described), default=0)
        if records:
            self.control.append_all(records, deadline)
        self._fit_staging(largest + ENVELOPE_BYTES, deadline)
        if self.settings.acl_sync != "off":
            self._describe_acls(found, state, deadline)

    def _describe_acls(self, found: list[TopicInfo], state: Control, deadline: Deadline) -> None:
        """Tell the deduplicator which access rules concern each source topic."""
        try:
            everything = acl_calls.topic_acls(self.source, "source", deadline)
        except LinkRefused as refused:
            # Copying goes on, and the rules of the copies stay as they are.
            if str(refused) != self._acls_refused:
                log.error("%s; ACL_SYNC needs DESCRIBE on the source cluster", refused)
            self._acls_refused = str(refused)
            return
        self._acls_refused = ""
        told = {info.name: acl_sync.of_topic(everything, info.name) for info in found}
        records = [
            TopicAcls(name, tuple(rules)) for name, rules in told.items() if state.acls.get(name, []) != rules
        ]
        if records:
            self.control.append_all(records, deadline)

    def look_for_missing(self, found: list[TopicInfo], state: Control, deadline: Deadline) -> None:
        """Say which copied topics are gone from the source, or hidden from it.

        The copies of those that are gone are kept: what deletes them is no part of a link. A topic that may
        not be described is missing from the source's list as well; asked for by name, the answer is another.
        Raises LinkRefused for one that is named in the settings and was never seen.
        """
        there = {info.name for info in found}
        copied = {
            name: source
            for name, source in state.newest_topics().items()
            if name not in there and source.topic_id not in state.deleted and self.settings.selects(name)
        }
        named = {name for name in self.settings.named_topics if name not in there}
        ids = {info.id for info in found}
        records: list[ControlRecord] = [
            Resumed(application=REPLICATOR, topic=halt.topic, topic_id=key[0], partition=key[1])
            for (application, key), halt in state.halts.copy().items()
            if application == REPLICATOR and key[0] in ids and halt.detail == _hidden(halt.topic)
        ]
        for name in sorted(copied.keys() | named):
            source = copied.get(name)
            try:
                gone = name not in topics.describe(self.source, [name], deadline)
            except LinkRefused as refused:
                if source is None:
                    raise LinkRefused(f"topic {name} of the source: {refused}") from None
                records += [
                    Halted(REPLICATOR, name, source.topic_id, p, HaltReason.NOT_AUTHORIZED, _hidden(name))
                    for p in range(source.partitions)
                    if (REPLICATOR, (source.topic_id, p)) not in state.halts
                ]
                continue
            if gone and source is not None:
                log.warning("topic %s was deleted at the source; its copy is kept", name)
                records.append(TopicDeleted(name, source.topic_id))
        if records:
            self.control.append_all(records, deadline)

    def _fit_staging(self, wanted: int, deadline: Deadline) -> None:
        name = self.settings.staging_topic
        if not self._staging_limit:
            self._staging_limit = int(
                topics.configs(self.target, [name], deadline)[name]["max.message.bytes"]
            )
        if wanted > self._staging_limit:
            log.info("raising max.message.bytes of %s to %d, for the source's largest records", name, wanted)
            topics.alter(self.target, name, {"max.message.bytes": str(wanted)}, deadline)
            self._staging_limit = wanted


def _hidden(topic: str) -> str:
    """The detail of the halts of a topic that may not even be described any more: by it they are known when
    it may."""
    return f"topic {topic} may not be described at the source any more"
