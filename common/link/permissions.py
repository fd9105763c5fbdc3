"""The rights that each principal of a link needs, and each command that moves something, declared once: for
the reference, for `plan`, and for the tests that prove them enough.

`python -m common.link.permissions` prints the reference's table. Kafka's READ, WRITE, DELETE and ALTER
include DESCRIBE, ALTER_CONFIGS includes DESCRIBE_CONFIGS.
"""

from __future__ import annotations

from typing import NamedTuple

SOURCE, TARGET = "source", "target"
REPLICATOR, DEDUPLICATOR, OFFSETS, SCHEMAS = "replicator", "deduplicator", "offsets", "schemas"
CLUSTER = "kafka-cluster"
HEARTBEATS = "with `HEARTBEATS_INTERVAL`"
METRICS = "with `OTEL_METRICS_EXPORTER=kafka`"
DEAD_LETTERS = "with `onError: dead-letter`"
SCHEMA_IDS = "with the stage `schema-ids`, or keys or values that are `avro`; else what has a schema waits"
MIRROR_MAKER = "with `START_OFFSETS=mirrormaker:...`, until the link has begun"


class Right(NamedTuple):
    """One permission. `name` may hold `<link>`, or be `<topics>`, `<destinations>`, `<groups>`, or what
    MirrorMaker 2 has: `<offsets topic>`, `<Connect's group>`; `when` says what it can be done without."""

    principal: str
    cluster: str
    operation: str
    resource: str
    name: str
    when: str = ""


def _own(principal: str, operation: str, topic: str, when: str = "") -> Right:
    return Right(principal, TARGET, operation, "TOPIC", f"<link>.{topic}", when)


def _group(principal: str, operation: str, group: str) -> Right:
    return Right(principal, TARGET, operation, "GROUP", f"<link>.{group}")


def _common(principal: str) -> tuple[Right, ...]:
    """What every application needs on the target: the link's topics checked, the control topic, the
    election."""
    return (
        *(
            _own(principal, "DESCRIBE_CONFIGS", t)
            for t in ("control", "staging", "positions", "offset-mappings")
        ),
        *(_own(principal, operation, "control") for operation in ("READ", "WRITE")),
        *(_own(principal, operation, "metrics", METRICS) for operation in ("WRITE", "DESCRIBE_CONFIGS")),
        _group(principal, "READ", f"{principal}.leader"),
        _group(principal, "DESCRIBE", "reader"),
        Right(
            principal,
            TARGET,
            "DESCRIBE_CONFIGS",
            "CLUSTER",
            CLUSTER,
            "else the target's version is not checked",
        ),
    )


RIGHTS: tuple[Right, ...] = (
    Right(REPLICATOR, SOURCE, "READ", "TOPIC", "<topics>"),
    Right(REPLICATOR, SOURCE, "DESCRIBE_CONFIGS", "TOPIC", "<topics>"),
    Right(REPLICATOR, SOURCE, "DESCRIBE", "CLUSTER", CLUSTER, "with `ACL_SYNC`"),
    *(
        Right(REPLICATOR, SOURCE, o, "TOPIC", "<link>.heartbeats", HEARTBEATS)
        for o in ("READ", "WRITE", "DESCRIBE_CONFIGS")
    ),
    Right(
        REPLICATOR, SOURCE, "CREATE", "TOPIC", "<link>.heartbeats", HEARTBEATS + ", unless it is made by hand"
    ),
    Right(REPLICATOR, TARGET, "READ", "TOPIC", "<link>.heartbeats", "its copy, " + HEARTBEATS),
    Right(
        REPLICATOR,
        SOURCE,
        "DESCRIBE",
        "GROUP",
        "<link>.reader",
        f"{MIRROR_MAKER}; else it is asked for in vain",
    ),
    Right(REPLICATOR, TARGET, "READ", "TOPIC", "<offsets topic>", MIRROR_MAKER),
    Right(REPLICATOR, TARGET, "READ", "TOPIC", "<destinations>", MIRROR_MAKER),
    Right(
        REPLICATOR,
        TARGET,
        "DESCRIBE",
        "GROUP",
        "<Connect's group>",
        f"{MIRROR_MAKER}; else that MirrorMaker 2 runs is seen by its writing alone",
    ),
    *_common(REPLICATOR),
    _own(REPLICATOR, "WRITE", "staging"),
    _own(REPLICATOR, "READ", "positions"),
    _own(REPLICATOR, "WRITE", "positions"),
    _own(REPLICATOR, "DESCRIBE", "offset-mappings"),
    _own(REPLICATOR, "READ", "schemas", SCHEMA_IDS),
    _own(REPLICATOR, "CREATE", "*", "unless they are made by hand"),
    _own(REPLICATOR, "ALTER_CONFIGS", "staging", "where records are larger than 63 MiB"),
    *_common(DEDUPLICATOR),
    _own(DEDUPLICATOR, "READ", "staging"),
    _own(DEDUPLICATOR, "DELETE", "staging"),
    _own(DEDUPLICATOR, "READ", "positions", "for its counters"),
    _own(DEDUPLICATOR, "WRITE", "positions", "for its counters"),
    _own(DEDUPLICATOR, "READ", "offset-mappings"),
    _own(DEDUPLICATOR, "WRITE", "offset-mappings"),
    *(_own(DEDUPLICATOR, o, "dead-letters", DEAD_LETTERS) for o in ("WRITE", "DESCRIBE_CONFIGS")),
    _own(
        DEDUPLICATOR,
        "READ",
        "dead-letters",
        DEAD_LETTERS + "; else what needs a partition of it where a transaction hangs halts",
    ),
    _own(DEDUPLICATOR, "CREATE", "dead-letters", DEAD_LETTERS + ", unless it is made by hand"),
    _own(DEDUPLICATOR, "CREATE", "metrics", METRICS + ", unless it is made by hand"),
    _group(DEDUPLICATOR, "READ", "deduplicator"),
    Right(DEDUPLICATOR, TARGET, "WRITE", "TRANSACTIONAL_ID", "<link>.*"),
    Right(DEDUPLICATOR, TARGET, "WRITE", "TOPIC", "<destinations>"),
    Right(DEDUPLICATOR, TARGET, "DESCRIBE_CONFIGS", "TOPIC", "<destinations>"),
    Right(
        DEDUPLICATOR,
        TARGET,
        "READ",
        "TOPIC",
        "<destinations>",
        "else a partition where a transaction hangs halts",
    ),
    Right(DEDUPLICATOR, TARGET, "CREATE", "TOPIC", "<destinations>", "unless they are made by hand"),
    Right(DEDUPLICATOR, TARGET, "ALTER", "TOPIC", "<destinations>", "to add partitions; unless by hand"),
    Right(
        DEDUPLICATOR, TARGET, "ALTER_CONFIGS", "TOPIC", "<destinations>", "unless `TOPIC_CONFIG_SYNC=false`"
    ),
    Right(DEDUPLICATOR, TARGET, "ALTER", "CLUSTER", CLUSTER, "with `ACL_SYNC`"),
    Right(OFFSETS, SOURCE, "DESCRIBE", "TOPIC", "<topics>", "else their offsets are not seen"),
    Right(OFFSETS, SOURCE, "DESCRIBE", "GROUP", "<groups>", "else they are not seen"),
    Right(OFFSETS, SOURCE, "READ", "GROUP", "<groups>", "for `--reverse`"),
    Right(OFFSETS, SOURCE, "READ", "TOPIC", "<topics>", "for `--reverse`"),
    *_common(OFFSETS),
    *(_own(OFFSETS, "DESCRIBE", topic) for topic in ("staging", "positions")),
    _own(OFFSETS, "READ", "offset-mappings"),
    _own(OFFSETS, "READ", "group-offsets"),
    _own(OFFSETS, "WRITE", "group-offsets"),
    _own(OFFSETS, "DESCRIBE_CONFIGS", "group-offsets"),
    _own(OFFSETS, "CREATE", "group-offsets", "unless it is made by hand"),
    _own(OFFSETS, "CREATE", "metrics", METRICS + ", unless it is made by hand"),
    Right(OFFSETS, TARGET, "READ", "TOPIC", "<destinations>"),
    Right(OFFSETS, TARGET, "READ", "GROUP", "<groups>"),
    *_common(SCHEMAS),
    *(_own(SCHEMAS, "DESCRIBE", topic) for topic in ("staging", "positions", "offset-mappings")),
    *(_own(SCHEMAS, operation, "schemas") for operation in ("READ", "WRITE", "DESCRIBE_CONFIGS")),
    _own(SCHEMAS, "CREATE", "schemas", "unless it is made by hand"),
    _own(SCHEMAS, "CREATE", "metrics", METRICS + ", unless it is made by hand"),
)


CUTOVER, REHEARSE, UNDO = "cutover", "cutover --rehearse", "cutover --undo"
DEMOTE, BACK, DRILL = "demote", "back", "drill"
MOVES = (CUTOVER, REHEARSE, UNDO, DEMOTE, BACK, DRILL)
_SURVEYS = tuple(command for command in MOVES if command != DEMOTE)
_IN_VAIN = "else it is asked for in vain"


def _of(
    commands: tuple[str, ...], cluster: str, operations: str, resource: str, name: str, when: str = ""
) -> tuple[Right, ...]:
    return tuple(
        Right(command, cluster, operation, resource, name, when)
        for command in commands
        for operation in operations.split()
    )


COMMANDS: tuple[Right, ...] = (
    *_of(MOVES, SOURCE, "DESCRIBE", "TOPIC", "<topics>"),
    *_of((CUTOVER, REHEARSE), SOURCE, "READ DESCRIBE_CONFIGS", "TOPIC", "<topics>"),
    *_of((BACK, DRILL), SOURCE, "READ", "TOPIC", "<topics>", "where some of it was never copied"),
    *_of((BACK,), SOURCE, "DELETE DESCRIBE_CONFIGS", "TOPIC", "<topics>", "with `--tails empty`"),
    *_of((BACK, DRILL), SOURCE, "DESCRIBE", "TOPIC", "<link>.back.control"),
    *_of((CUTOVER, REHEARSE, UNDO), SOURCE, "DESCRIBE", "GROUP", "<groups>", "else they are not seen"),
    *_of((UNDO,), SOURCE, "READ", "GROUP", "<groups>", "where one has read on at the target"),
    *_of((UNDO,), SOURCE, "READ", "TOPIC", "<topics>", "where a group has read on at the target"),
    *_of((CUTOVER, REHEARSE, BACK, DRILL), SOURCE, "DESCRIBE", "GROUP", "<link>.reader", _IN_VAIN),
    *_of(MOVES, TARGET, "READ DESCRIBE_CONFIGS", "TOPIC", "<link>.control"),
    *_of((CUTOVER, DEMOTE, BACK, DRILL), TARGET, "WRITE", "TOPIC", "<link>.control"),
    *_of((REHEARSE,), TARGET, "WRITE", "TOPIC", "<link>.control", "which is looked at, and not used"),
    *_of(MOVES, TARGET, "DESCRIBE DESCRIBE_CONFIGS", "TOPIC", "<link>.staging"),
    *_of(MOVES, TARGET, "DESCRIBE DESCRIBE_CONFIGS", "TOPIC", "<link>.positions"),
    *_of(_SURVEYS, TARGET, "READ", "TOPIC", "<link>.positions"),
    *_of(MOVES, TARGET, "DESCRIBE DESCRIBE_CONFIGS", "TOPIC", "<link>.offset-mappings"),
    *_of(_SURVEYS, TARGET, "READ", "TOPIC", "<link>.offset-mappings"),
    *_of((CUTOVER, REHEARSE, UNDO, DRILL), TARGET, "READ", "TOPIC", "<link>.group-offsets"),
    *_of((CUTOVER, REHEARSE), TARGET, "WRITE DESCRIBE_CONFIGS", "TOPIC", "<link>.group-offsets"),
    *_of((DRILL,), TARGET, "WRITE", "TOPIC", "<link>.group-offsets"),
    *_of(MOVES, TARGET, "READ", "TOPIC", "<destinations>"),
    *_of((CUTOVER, REHEARSE), TARGET, "DESCRIBE_CONFIGS", "TOPIC", "<destinations>"),
    *_of((BACK,), TARGET, "DESCRIBE_CONFIGS", "TOPIC", "<destinations>", "with `--tails empty`"),
    *_of((CUTOVER, REHEARSE, DRILL), TARGET, "READ", "GROUP", "<groups>"),
    *_of((UNDO,), TARGET, "DESCRIBE", "GROUP", "<groups>"),
    *_of((CUTOVER, REHEARSE), TARGET, "READ", "GROUP", "<link>.offsets.leader", "unless `offsets` runs"),
    *_of(_SURVEYS, TARGET, "DESCRIBE", "GROUP", "<link>.*"),
    *_of((DEMOTE,), TARGET, "DESCRIBE", "GROUP", "<link>.reader"),
    *_of(MOVES, TARGET, "DESCRIBE_CONFIGS", "CLUSTER", CLUSTER, "else the target's version is not checked"),
)
"""What the commands that move topics, groups and links need; `principal` is the command."""


def needed_on(cluster: str, topic: str, when: str = "") -> frozenset[str]:
    """What the replicator or the deduplicator can't do without, whatever the settings, or `when` they are so,
    on a topic that is called so in RIGHTS."""
    return frozenset(
        right.operation
        for right in RIGHTS
        if (right.cluster, right.resource, right.name, right.when) == (cluster, "TOPIC", topic, when)
        and right.principal in (REPLICATOR, DEDUPLICATOR)
    )


def rights_table() -> str:
    """The rights of the applications as a markdown table, one line for each resource of a principal."""
    lines: dict[tuple[str, str, str, str, str], list[str]] = {}
    for right in RIGHTS:
        at = (right.principal, right.cluster, right.resource, right.name, right.when)
        lines.setdefault(at, []).append(right.operation)
    rows = ["| principal | cluster | resource | rights | |", "|---|---|---|---|---|"]
    for (principal, cluster, resource, name, when), operations in sorted(
        lines.items(), key=lambda item: (item[0][:2], item[0][2] != "TOPIC", item[0])
    ):
        rows.append(
            f"| `{principal}` | {cluster} | {_kind(resource)} `{name}` | {', '.join(operations)} | {when} |"
        )
    return "\n".join(rows)


def commands_table() -> str:
    """Those of the commands, one line for each resource and the commands that need it."""
    needing: dict[tuple[str, str, str, str, str], list[str]] = {}
    for right in COMMANDS:
        needing.setdefault(right[1:], []).append(right.principal)
    lines: dict[tuple[str, str, str, str, str], list[str]] = {}
    for (cluster, operation, resource, name, when), commands in needing.items():
        who = "all" if len(commands) == len(MOVES) else ", ".join(f"`{command}`" for command in commands)
        lines.setdefault((cluster, resource, name, who, when), []).append(operation)
    rows = ["| commands | cluster | resource | rights | |", "|---|---|---|---|---|"]
    for (cluster, resource, name, who, when), operations in sorted(
        lines.items(), key=lambda item: (item[0][0], item[0][1] != "TOPIC", item[0])
    ):
        rows.append(f"| {who} | {cluster} | {_kind(resource)} `{name}` | {', '.join(operations)} | {when} |")
    return "\n".join(rows)


def _kind(resource: str) -> str:
    return resource.lower().replace("_", " ")


if __name__ == "__main__":
    print(rights_table())
