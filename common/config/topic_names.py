"""Which topics and groups are meant, and what they are called at the destination: names, expressions,
templates. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

MAX_TOPIC_LENGTH = 249
"""Kafka's own limit (org.apache.kafka.common.internals.Topic): log directories add a suffix to the name."""

_LEGAL = re.compile(r"[A-Za-z0-9._-]+")
_QUANTIFIER = re.compile(r"\{\d*,\d*\}")
_PLACEHOLDER = re.compile(r"\{(topic|source)\}")
_REFERENCE = re.compile(r"\\(?:(\d{1,2})|g<(\w+)>)|\{(source)\}")
"""What stands for something else in the new name of a rewrite."""
_GROUP_PLACEHOLDER = re.compile(r"\{(group|source)\}")


def check_topic_name(name: str) -> str:
    """The name itself if Kafka allows it as a topic's; ValueError says why not."""
    if not _LEGAL.fullmatch(name):
        raise ValueError(f"{name!r} is not a legal name: use letters, digits, '.', '_' and '-'")
    if name in (".", ".."):
        raise ValueError(f"{name!r} is not a legal name in Kafka")
    if len(name) > MAX_TOPIC_LENGTH:
        raise ValueError(f"{name[:20]!r}... has {len(name)} characters; {MAX_TOPIC_LENGTH} are allowed")
    return name


def is_internal(topic: str) -> bool:
    """Topics of Kafka itself, such as `__consumer_offsets`."""
    return topic.startswith("__")


def is_name(entry: str) -> bool:
    """Whether an entry means one topic; any other entry is a regular expression."""
    return _LEGAL.fullmatch(entry) is not None


def split_entries(text: str) -> list[str]:
    """Split a comma-separated list whose entries may be regular expressions; blanks round entries don't
    count.

    A comma belongs to its entry, and splits nothing, when it is escaped (`\\,`), or inside a character class
    `[a,b]`, inside parentheses `(a,b)`, or inside a quantifier `{1,3}`. Any other brace is an ordinary
    character.
    """
    entries, start, at, depth = [], 0, 0, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char == "[":
            at = _end_of_class(text, at)
        elif char == "(":
            depth += 1
        elif char == ")":
            depth = max(0, depth - 1)
        elif char == "{" and (quantifier := _QUANTIFIER.match(text, at)):
            at = quantifier.end() - 1
        elif char == "," and depth == 0:
            entries.append(text[start:at])
            start = at + 1
        at += 1
    entries.append(text[start:])
    return [entry.strip() for entry in entries if entry.strip()]


def _end_of_class(text: str, at: int) -> int:
    """Index of the `]` that closes the class opened at `at`; the end of the text if none does (no valid
    expression)."""
    at += 1
    if text[at : at + 1] == "^":
        at += 1
    if text[at : at + 1] == "]":  # a `]` that comes first stands for itself
        at += 1
    while at < len(text) and text[at] != "]":
        at += 2 if text[at] == "\\" else 1
    return at


@lru_cache(maxsize=64)
def compiled(text: str) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """The names and the expressions of a list. ValueError names the first entry that is neither.

    Cached, because it is asked for each topic of a cluster at every refresh.
    """
    names, expressions = set(), []
    for entry in split_entries(text):
        if is_name(entry):
            names.add(check_topic_name(entry))
            continue
        try:
            expressions.append(re.compile(entry, re.DOTALL))
        except (re.error, OverflowError, RecursionError) as error:
            hint = f"; for any name write .{entry}" if entry in ("*", "+") else ""
            raise ValueError(f"entry {entry!r} is no regular expression: {error}{hint}") from None
    return frozenset(names), tuple(expressions)


def matches(text: str, topic: str) -> bool:
    """Whether any entry of the list means the topic; an expression must match the whole name."""
    names, expressions = compiled(text)
    return topic in names or any(expression.fullmatch(topic) for expression in expressions)


def check_template(template: str) -> str:
    """The template itself if it can make topic names; ValueError says why not."""
    rest = _PLACEHOLDER.sub("", template)
    if "{" in rest or "}" in rest:
        raise ValueError(f"{template!r} has a brace that is neither {{topic}} nor {{source}}")
    if rest and not _LEGAL.fullmatch(rest):
        raise ValueError(
            f"{template!r} has a character that no topic name has: use letters, digits, '.', '_' and '-'"
        )
    if len(rest) >= MAX_TOPIC_LENGTH or template in (".", ".."):
        raise ValueError(f"{template[:20]!r} makes no legal topic name")
    return template


def expand_template(template: str, *, topic: str, source: str) -> str:
    """The destination's name for a topic. ValueError when Kafka would not allow it."""
    values = {"topic": topic, "source": source}
    return check_topic_name(_PLACEHOLDER.sub(lambda found: values[found[1]], template))


class Rewrite(NamedTuple):
    """Topics whose whole name the expression matches are called `name`, with what its groups matched."""

    expression: re.Pattern[str]
    name: str


@lru_cache(maxsize=16)
def topic_map(text: str) -> dict[str, str]:
    """`topic=destination`, comma-separated. ValueError names the first entry that is none, or a name that is
    given twice."""
    found: dict[str, str] = {}
    for entry in split_entries(text):
        topic, equals, name = (part.strip() for part in entry.partition("="))
        if not equals:
            raise ValueError(f"entry {entry!r} is not of the form topic=destination")
        check_topic_name(topic)
        check_topic_name(name)
        if topic in found:
            raise ValueError(f"topic {topic!r} is named twice")
        found[topic] = name
    return found


def joined(text: str) -> tuple[str, str, str] | None:
    """Two topics to which a map gives one destination, and its name; None where each has its own."""
    taken: dict[str, str] = {}
    for topic, name in topic_map(text).items():
        other = taken.setdefault(name, topic)
        if other != topic:
            return other, topic, name
    return None


@lru_cache(maxsize=16)
def rewrites(text: str) -> tuple[Rewrite, ...]:
    """`expression=name`, comma-separated. In the name `\\1` or `\\g<group>` stand for what a group of the
    expression matched, `{source}` for the source's name. ValueError names the first entry that is none."""
    found = []
    for entry in split_entries(text):
        expression, equals, name = (part.strip() for part in entry.rpartition("="))
        if not equals or not expression:
            raise ValueError(f"entry {entry!r} is not of the form expression=name")
        try:
            compiled_expression = re.compile(expression)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"entry {entry!r}: no regular expression: {error}") from None
        for reference in _REFERENCE.finditer(name):
            number, group = reference[1], reference[2]
            if (number is not None and not 1 <= int(number) <= compiled_expression.groups) or (
                group is not None and group not in compiled_expression.groupindex
            ):
                raise ValueError(f"entry {entry!r}: the expression has no group {number or group}")
        rest = _REFERENCE.sub("", name)
        if (rest and not _LEGAL.fullmatch(rest)) or not name:
            raise ValueError(f"entry {entry!r}: {name!r} makes no legal topic name")
        found.append(Rewrite(compiled_expression, name))
    return tuple(found)


def rewritten(text: str, *, topic: str, source: str) -> str | None:
    """The destination's name by the first rewrite that matches; None where none does. ValueError when Kafka
    would not allow it."""
    for rewrite in rewrites(text):
        matched = rewrite.expression.fullmatch(topic)
        if matched:

            def expand(reference: re.Match[str], matched: re.Match[str] = matched) -> str:
                if reference[3] is not None:
                    return source
                return matched[int(reference[1]) if reference[1] is not None else reference[2]] or ""

            return check_topic_name(_REFERENCE.sub(expand, rewrite.name))
    return None


def check_group_template(template: str) -> str:
    """The template itself if it gives each group a name of its own; ValueError says why not.

    A group's name may hold any character, so the rest of the template may too, except for braces.
    """
    rest = _GROUP_PLACEHOLDER.sub("", template)
    if "{" in rest or "}" in rest:
        raise ValueError(f"{template!r} has a brace that is neither {{group}} nor {{source}}")
    if template.count("{group}") != 1:
        raise ValueError(f"{template!r} must hold {{group}} once, or groups could not be told apart")
    return template


def expand_group_template(template: str, *, group: str, source: str) -> str:
    """The target's name for a source group."""
    values = {"group": group, "source": source}
    return _GROUP_PLACEHOLDER.sub(lambda found: values[found[1]], template)


def source_group(template: str, *, name: str, source: str) -> str | None:
    """The source group that has this name at the target, or None where the template makes no such name."""
    before, after = (part.replace("{source}", source) for part in template.split("{group}"))
    group = name[len(before) : len(name) - len(after)]
    return group if before + group + after == name else None
