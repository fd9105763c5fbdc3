"""Access rules as the client reads them: that none are shown is not taken for that there are none."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from common.errors import LinkRefused
from common.kafka.client import acls
from common.kafka.model import Acl
from common.ports import Deadline

RULE = AclBinding(
    ResourceType.TOPIC,
    "orders",
    ResourcePatternType.LITERAL,
    "User:reader",
    "*",
    AclOperation.READ,
    AclPermissionType.ALLOW,
)


class Client:
    """Answers with the rules of each turn; `rights`: what it may do with the cluster, None where that is
    nothing."""

    def __init__(self, turns: list[list[AclBinding]], rights: list[AclOperation] | None) -> None:
        self._turns = turns
        self._rights = rights

    def describe_acls(self, *_: Any, **__: Any) -> Future[Any]:
        return _done(self._turns.pop(0))

    def describe_cluster(self, **_: Any) -> Future[Any]:
        return _done(SimpleNamespace(authorized_operations=self._rights))


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def read(turns: list[list[AclBinding]], rights: list[AclOperation] | None) -> set[Acl]:
    client: Any = Client(turns, rights)
    return acls.topic_acls(client, "source", Deadline(5))


@pytest.mark.parametrize("rights", [None, [AclOperation.DESCRIBE_CONFIGS]])
def test_no_rules_without_the_right_to_see_them_is_refused(rights: list[AclOperation] | None) -> None:
    with pytest.raises(LinkRefused, match="source cluster: not allowed; grant DESCRIBE on the cluster"):
        read([[]], rights)


def test_no_rules_with_the_right_to_see_them_are_none() -> None:
    assert read([[], []], [AclOperation.DESCRIBE]) == set()


def test_rules_that_could_be_seen_only_after_the_first_look_are_seen() -> None:
    assert [acl.name for acl in read([[], [RULE]], [AclOperation.DESCRIBE])] == ["orders"]
    assert [acl.name for acl in read([[RULE]], None)] == ["orders"]
