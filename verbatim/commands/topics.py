"""The command `verbatim topics`: each source topic, its copy, and what of the copy's configuration is not in
step. Changes nothing.

What would be changed is decided in common/link/topic_config_sync.py; the deduplicator does it.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from common.app.cli import aligned, echo_json, settings_options
from common.errors import SettingsError
from common.kafka.client import clients, topics
from common.link import identity, topic_config_sync
from common.link.control_kinds import SourceTopic
from common.link.control_state import Control
from common.link.source_topics import source_topics
from common.link.topic_config_sync import Change, Rules
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 60.0

HEADINGS = ("TOPIC", "DESTINATION", "PARTITIONS", "STATE", "SETTING", "NOW", "IN STEP", "NOTE")
SYNC_OFF = "TOPIC_CONFIG_SYNC is false"


@click.command("topics")
@settings_options
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def topics_command(settings: Settings, output: str) -> None:
    """Show each source topic and its copy, with what the deduplicator would change of the copy's
    configuration. Changes nothing.

    Without the source, what is known of its topics is what the replicator has said last.
    """
    lines = look(settings)
    if output == "json":
        echo_json(lines)
    else:
        click.echo(table(lines))


def look(settings: Settings) -> list[dict[str, Any]]:
    """One mapping for each topic, by name. Raises LinkRefused where there is no such link."""
    deadline = Deadline(CALL_S)
    found, control = identity.prepare(settings, False, deadline, make=False)
    with closing(control):
        state = control.refresh(deadline)
    sources = state.newest_topics()
    if found.source_reached:
        sources |= _live(settings, deadline)
    names = {
        name: _destination(settings, state, source, found.source_name) for name, source in sources.items()
    }
    target = clients.admin(settings.client_config("destination", "admin"))
    wanted = sorted({name for name, _ in names.values() if name})
    there = topics.describe(target, wanted, deadline)
    configs = topics.topic_settings(target, sorted(there), deadline)
    rules = Rules.of(settings)
    together = {name: set(topics_there) for name, topics_there in state.copied_into.items()}
    for topic in names if settings.several_sources == "merge" else ():
        if settings.selects(topic) and sources[topic].topic_id not in state.deleted:
            together.setdefault(names[topic][0], set()).add(topic)
    lines = []
    for topic, source in sorted(sources.items()):
        name, why = names[topic]
        have = state.destinations.get(source.topic_id)
        changes: list[Change] = []
        if (
            name in configs
            and source.topic_id not in state.deleted
            and topic not in state.steering.promotions
        ):
            applied = have.config if have is not None and have.topic == name else {}
            changes = topic_config_sync.differences(source, configs[name], applied, rules)
        lines.append(
            {
                "topic": topic,
                "topic_id": source.topic_id,
                "partitions": source.partitions,
                "destination": name or None,
                "destination_partitions": there[name].partitions if name in there else None,
                "state": _state(settings, state, source, why),
                "detail": why,
                "meets": (meets := sorted(together.get(name, set()) - {topic})),
                "config": [_change(settings, change, meets) for change in changes],
            }
        )
    return lines


def table(lines: list[dict[str, Any]]) -> str:
    """The lines as aligned text: one for each setting that is not in step, or one for the topic."""
    cells = [list(HEADINGS)]
    for line in lines:
        sizes = [line["partitions"], line["destination_partitions"]]
        own = [
            line["topic"],
            line["destination"] or "-",
            "/".join("-" if n is None else str(n) for n in sizes),
        ]
        own.append(line["state"])
        for change in line["config"] or [None]:
            if change is None:
                meets = f"meets {', '.join(line['meets'])}" if line["meets"] else "-"
                cells.append([*own, "-", "-", "-", line["detail"] or meets])
            else:
                to = "(default)" if change["to"] is None else change["to"]
                cells.append([*own, change["key"], change["now"], to, change["kept"] or "due"])
    return aligned(cells)


def _live(settings: Settings, deadline: Deadline) -> dict[str, SourceTopic]:
    source = clients.admin(settings.client_config("source", "admin"))
    selected = [name for name in topics.names(source, "source", deadline) if settings.selects(name)]
    found = topics.describe(source, selected, deadline)
    return {t.topic: t for t in source_topics(source, list(found.values()), deadline)}


def _destination(
    settings: Settings, state: Control, source: SourceTopic, source_name: str
) -> tuple[str, str | None]:
    """The destination's name, and why nothing is written there."""
    have = state.destinations.get(source.topic_id)
    if have is not None:
        return have.topic, have.refused
    try:
        return settings.destination_topic(source.topic, source_name), None
    except SettingsError as error:
        return "", str(error)


def _state(settings: Settings, state: Control, source: SourceTopic, why: str | None) -> str:
    if (promotion := state.steering.promotions.get(source.topic)) is not None:
        return promotion.state
    if source.topic_id in state.deleted:
        return "deleted-at-source"
    if not settings.selects(source.topic):
        return "excluded"
    if why is not None:
        return "refused"
    return "copied" if source.topic_id in state.destinations else "new"


def _change(settings: Settings, change: Change, meets: list[str]) -> dict[str, Any]:
    shown = asdict(change)
    if change.kept is None and not settings.topic_config_sync:
        shown["kept"] = SYNC_OFF
    elif change.kept is None and meets:
        shown["kept"] = f"follows none of its sources: {', '.join(meets)} is copied there too"
    return shown
