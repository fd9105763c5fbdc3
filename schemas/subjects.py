"""Which subjects are a link's, what they are called at the target, and in which order versions are copied.
Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from common.errors import RegistryError
from common.link.schema_map import Reference
from common.pipeline.options import expression
from common.pipeline.registries import Schemas
from schemas.model import Version, unqualified

LATEST = -1
"""A reference to whatever version is the newest."""
_RECORD = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
"""`key`, `value`, or a record's full name: there is no dash in any, so the last one ends the topic's name."""

At = tuple[str, int]
"""Subject and version."""


def topic_of(subject: str, topics: Mapping[str, str]) -> str | None:
    """The topic by which a subject is named, of those."""
    topic, _, rest = unqualified(subject)[1].rpartition("-")
    return topic if topic in topics and _RECORD.fullmatch(rest) else None


def selected(subjects: Iterable[str], config: Schemas, topics: Mapping[str, str]) -> list[str]:
    """Those that are kept in step, without what they refer to. `topics`: source -> destination."""
    which = config.subjects
    if which == "all":
        return sorted(subjects)
    if which == "link":
        return sorted(s for s in subjects if topic_of(s, topics) is not None)
    return sorted(s for s in subjects if any(s == one or expression(one).fullmatch(s) for one in which))


def renamed(subject: str, config: Schemas, topics: Mapping[str, str]) -> str:
    """A subject's name at the target."""
    topic = topic_of(subject, topics) if config.rename == "topics" else None
    if topic is None:
        return subject
    context, rest = unqualified(subject)
    return f"{context}{topics[topic]}{rest[len(topic) :]}"


def referred(reference: Reference, by: str) -> str:
    """The full name of what a schema of the subject `by` refers to: without a context it is in the same."""
    context, rest = unqualified(by)[0], reference.subject
    return reference.subject if rest.startswith(":.") else f"{context}{rest}"


def ordered(versions: Iterable[Version]) -> list[Version]:
    """Each behind what it refers to, and behind the earlier versions of its subject. Raises RegistryError for
    subjects that refer to each other in a circle."""
    known: dict[At, Version] = {(v.subject, v.version): v for v in versions}
    newest: dict[str, int] = {}
    graph: dict[At, set[At]] = {}
    for at in sorted(known):
        subject, number = at
        graph[at] = {(subject, newest[subject])} if subject in newest else set()
        newest[subject] = number
    for at, version in known.items():
        for reference in version.schema.references:
            name = referred(reference, version.subject)
            number = newest.get(name, LATEST) if reference.version == LATEST else reference.version
            if (name, number) in known and name != version.subject:
                graph[at].add((name, number))
    try:
        return [known[at] for at in TopologicalSorter(graph).static_order()]
    except CycleError as error:
        circle = " -> ".join(f"{subject} version {number}" for subject, number in error.args[1])
        raise RegistryError(f"schemas refer to each other in a circle: {circle}") from None
