"""Consumer groups of one cluster: who is there, what is committed, and setting it, tried again where that may
help. Decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial

from confluent_kafka import KafkaError, KafkaException

from common.errors import KafkaTimeout
from common.kafka.client.clients import Config
from common.kafka.errors import NO_RIGHTS, kafka_error, retriable, retrying
from common.partitions import PartitionName
from common.ports import Deadline
from offsets.group_calls import GroupCalls
from offsets.group_protocol import DESCRIBE, Committed, Group, Member

log = logging.getLogger(__name__)

NOT_EMPTY = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS})
"""What a broker answers when offsets are set while the group has members."""
NO_PARTITION = 2**31 - 1
"""A partition that no topic has."""
_SHOWN = 80


def shown(group: str) -> str:
    """A group's id for people: quoted where it is empty or holds blanks at an end or what can't be seen, cut
    where it is long."""
    if not group or group != group.strip() or not group.isprintable():
        group = repr(group)
    return (
        group
        if len(group) <= _SHOWN
        else f"{group[: _SHOWN // 2]}…{group[-_SHOWN // 4 :]} ({len(group)} characters)"
    )


class Groups:
    """The groups of the source or the target; `which` is for errors. For one thread."""

    def __init__(self, config: Config, which: str) -> None:
        self._calls = GroupCalls(config)
        self._which = which

    def close(self) -> None:
        self._calls.close()

    def listed(self, deadline: Deadline) -> dict[str, Group]:
        """Every group that can be seen and consumes, of whatever kind. Raises KafkaTimeout, KafkaException,
        LinkRefused."""
        return retrying(f"listing the {self._which}'s consumer groups", self._calls.listed, deadline)

    def members(self, deadline: Deadline) -> dict[str, bool]:
        """Every group that can be seen -> whether it has members, or may have some in a moment."""
        return {group: found.active for group, found in self.listed(deadline).items()}

    def named_members(self, groups: Mapping[str, Group], deadline: Deadline) -> dict[str, list[Member]]:
        """Who is in each of these groups, as far as brokers tell: for people. Raises nothing."""
        found: dict[str, list[Member]] = {}
        for kind in DESCRIBE:
            asked = [group for group, of in groups.items() if of.active and of.kind == kind]
            with suppress(KafkaException):
                answers = self._calls.members(kind, asked, max(0.1, deadline.left(5.0)))
                found |= {group: of for group, of in answers.items() if not isinstance(of, KafkaException)}
        return found

    def hidden(self, groups: Collection[str], deadline: Deadline) -> set[str]:
        """Those of the groups that may not be described: a list of groups leaves them out, and does not say
        so."""
        # Nobody grants a right on others by name.
        named = [group for group in groups if group and "\0" not in group]

        def ask(timeout: float) -> set[str]:
            found = set()
            for group, answer in self._calls.coordinators(named, timeout).items():
                if isinstance(answer, KafkaException):
                    error = kafka_error(answer)
                    if error is None or error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                        raise answer
                    found.add(group)
            return found

        return retrying(f"looking for groups of the {self._which} by their names", ask, deadline)

    def committed(
        self, groups: Collection[str], deadline: Deadline, failed: dict[str, str] | None = None
    ) -> dict[str, dict[PartitionName, Committed]]:
        """What each group has committed, of all its topics. A group that does not exist has committed
        nothing.

        With `failed`, a group whose offsets can't be read is put there, with the reason, instead of ending it
        for all; half of the time is spent on waiting for it. Raises KafkaTimeout, KafkaException,
        LinkRefused.
        """
        out: dict[str, dict[PartitionName, Committed]] = {}
        passing: dict[str, KafkaError] = dict.fromkeys(groups, KafkaError(KafkaError._TIMED_OUT))
        ask = partial(self._read, passing, out, failed)
        what = f"reading offsets of the {self._which}'s groups"
        try:
            retrying(what, ask, deadline if failed is None else Deadline(deadline.left() / 2))
        except KafkaTimeout:
            if failed is None or not (out or failed):
                raise
            failed |= {
                group: f"{error.str()}; gave up after the time allowed" for group, error in passing.items()
            }
        return out

    def _read(
        self,
        left: dict[str, KafkaError],
        out: dict[str, dict[PartitionName, Committed]],
        failed: dict[str, str] | None,
        timeout: float,
    ) -> None:
        """One try; `left` are those that were not answered yet, and why."""
        for group, answer in self._calls.committed(list(left), timeout).items():
            if not isinstance(answer, KafkaException):
                out[group] = answer
            elif retriable(error := answer.args[0]):
                left[group] = error
                continue
            elif error.code() == KafkaError.GROUP_ID_NOT_FOUND:
                out[group] = {}  # gone since it was listed
            elif failed is None or error.code() in NO_RIGHTS:
                raise _of(group, error)  # a missing right may be about all groups
            else:
                failed[group] = error.str()
            del left[group]
        if left:
            raise _of(*next(iter(left.items())))

    def commit(
        self, wanted: Mapping[str, Mapping[PartitionName, Committed]], deadline: Deadline
    ) -> dict[tuple[str, PartitionName], KafkaError]:
        """Set offsets; what was refused, with the reason. Kafka refuses a group that has members."""
        refused: dict[tuple[str, PartitionName], KafkaError] = {}
        answers: Mapping[str, dict[PartitionName, KafkaError] | KafkaException]
        try:
            answers = self._calls.commit(wanted, max(0.1, deadline.left(10.0)))
        except KafkaException as exception:
            answers = dict.fromkeys(wanted, exception)
        for group, answer in answers.items():
            if isinstance(answer, KafkaException):
                answer = dict.fromkeys(wanted[group], answer.args[0])
            refused |= {(group, at): error for at, error in answer.items()}
        return refused

    def may_commit(
        self, wanted: Mapping[str, Collection[str]], deadline: Deadline
    ) -> dict[tuple[str, str], KafkaError]:
        """Of groups and topics, those whose offsets can't be set, with the reason; sets none.

        A broker looks at the rights on group and topic first, then whether there is such a partition, and
        only then at the group: an offset of a partition that no topic has comes no further.
        """
        asked = {
            group: {(topic, NO_PARTITION): Committed(0, "") for topic in of} for group, of in wanted.items()
        }

        def ask(timeout: float) -> dict[tuple[str, str], KafkaError]:
            found = {
                (group, topic): error
                for (group, (topic, _)), error in self.commit(asked, Deadline(timeout)).items()
                if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART
            }
            for error in found.values():
                if retriable(error):
                    raise KafkaException(error)
            return found

        return retrying(f"asking whether offsets of the {self._which}'s groups may be set", ask, deadline)


def _of(group: str, error: KafkaError) -> KafkaException:
    return KafkaException(KafkaError(error.code(), f"group {shown(group)}: {error.str()}"))
