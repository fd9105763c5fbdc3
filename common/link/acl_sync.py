"""Access rights of copied topics: which of the source's hold for the copies, and what is to be granted and
taken back there. Pure.

Every right that concerns a copied topic, be it by name, by prefix or by `*`, becomes one on its copy by name:
a prefix at the target would also cover topics that are no copies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from common.config.settings import Policy
from common.kafka.model import LITERAL, Acl

ALLOW, DENY = "ALLOW", "DENY"
READING = ("READ", "DESCRIBE", "DESCRIBE_CONFIGS")
EVERYBODY = "User:*"


def of_topic(acls: Iterable[Acl], topic: str) -> list[Acl]:
    """The rules that concern a topic, in a fixed order."""
    return sorted(acl for acl in acls if acl.concerns(topic))


def on_copy(acls: Iterable[Acl], destination: str, policy: Policy) -> set[Acl]:
    """The rules of a copy, given those that concern its source topic."""
    out: set[Acl] = set()
    for acl in acls:
        operations: Iterable[str]
        if acl.permission == ALLOW:
            operations = _allowed(acl.operation, policy)
            if (
                policy.read_only
                and acl.operation in ("WRITE", "ALL")
                and _may_be_denied(acl, "WRITE", policy)
            ):
                out.add(Acl(LITERAL, destination, acl.principal, acl.host, "WRITE", DENY))
        else:
            operations = [o for o in _denied(acl.operation, policy) if _may_be_denied(acl, o, policy)]
        out |= {
            Acl(LITERAL, destination, acl.principal, acl.host, operation, acl.permission)
            for operation in operations
        }
    return out


def _allowed(operation: str, policy: Policy) -> Collection[str]:
    if policy.writes:
        return [operation]
    if operation == "ALL":
        return ["READ", "DESCRIBE_CONFIGS"]
    return [operation] if operation in READING else []


def _denied(operation: str, policy: Policy) -> Collection[str]:
    if policy.writes:
        return [operation]
    if operation == "ALL":
        return READING
    return [operation] if operation in READING else []


def _may_be_denied(acl: Acl, operation: str, policy: Policy) -> bool:
    """Whether the denial leaves Verbatim able to write the copy: it needs all but READ. A rule for everybody
    is one for Verbatim too."""
    return acl.principal not in policy.own and (acl.principal != EVERYBODY or operation == "READ")


class Step(NamedTuple):
    """`action` is grant, revoke, in-step, or foreign: there by somebody else's hand and left alone."""

    action: str
    acl: Acl


def steps(wanted: Collection[Acl], there: Collection[Acl], ours: Collection[Acl]) -> list[Step]:
    """How to bring the rules `there` in step. Only `ours`, which the link itself has granted, are ever taken
    back."""
    found = [Step("in-step" if acl in there else "grant", acl) for acl in wanted]
    found += [Step("revoke" if acl in ours else "foreign", acl) for acl in set(there) - set(wanted)]
    return sorted(found, key=lambda step: (step.acl, step.action))


def keeps_from_writing(acl: Acl) -> bool:
    return (acl.operation, acl.permission) == ("WRITE", DENY)


def on_copies(
    acls: Mapping[str, Collection[Acl]],
    copies: Mapping[str, str],
    copied_into: Mapping[str, Collection[str]],
    policy: Policy,
    promoted: Collection[str] = (),
    granted: Mapping[str, Collection[Acl]] | None = None,
) -> dict[str, set[Acl]]:
    """Destination -> its rules; `acls` by source topic, `copies` source topic -> destination. `copied_into`:
    destination -> all source topics whose records may be there, also those that are gone. `promoted`:
    destinations that others write, where nothing is kept in step; of the rules that the link has `granted`
    there, only whom ACL_READ_ONLY kept from writing is not kept from it any more."""
    together: dict[str, set[str]] = {}
    for topic, destination in copies.items():
        together.setdefault(destination, set(copied_into.get(destination, ()))).add(topic)
    out = {}
    for destination, topics in together.items():
        if any(topic in acls for topic in topics):
            out[destination] = _of_all([on_copy(acls.get(t, ()), destination, policy) for t in topics])
    for destination in promoted:
        out.pop(destination, None)
        ours = set((granted or {}).get(destination, ()))
        denied = set(filter(keeps_from_writing, ours))
        if denied and not policy.writes:
            out[destination] = ours - denied
    return out


def _of_all(rules: list[set[Acl]]) -> set[Acl]:
    """The rules of a copy of several topics: who reads it reads all of them. Allowed is what each of them
    allows, denied what any denies."""
    allowed = set.intersection(*rules)
    return {acl for acl in set.union(*rules) if acl.permission == DENY or acl in allowed}
