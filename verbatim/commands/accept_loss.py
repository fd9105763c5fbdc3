"""The command `verbatim accept-loss`: an operator's consent to go on although records of a partition are
gone.

It writes the consent to the control topic; the replicator then marks the gap in staging and reads on behind
it. Nothing is skipped that the source or staging still has.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import click
import orjson

from common.app.cli import settings_options
from common.config.fields import CLUSTERS
from common.errors import LinkRefused, SettingsError
from common.kafka.client import clients, cluster_check, topics
from common.link.control_kinds import AcceptLoss
from common.link.control_log import ControlLog
from common.link.control_records import DEDUPLICATOR, REPLICATOR, Halt
from common.link.control_state import Control
from common.link.halt_reasons import HaltReason
from common.partitions import PartitionId
from common.ports import Deadline

if TYPE_CHECKING:
    from common.config.settings import Settings

CALL_S = 30.0


def resolve(
    control: Control, key: PartitionId, log_start: int, next_offset: int | None
) -> tuple[int | None, int]:
    """The source range [next, to) whose loss is to be accepted; pure.

    `log_start` is the source's, `next_offset` the operator's `--next`, needed only where the state is lost:
    the source position that the destination has reached. Raises SettingsError where there is nothing to
    accept.
    """
    halts = [h for app in (REPLICATOR, DEDUPLICATOR) if (h := control.halts.get((app, key))) is not None]
    if not halts:
        raise SettingsError("PARTITION: it is not halted, so there is no loss to accept")
    halt = max(halts, key=lambda h: h.at)
    if halt.reason == HaltReason.STATE_LOST:
        if next_offset is None:
            raise SettingsError(
                "--next: the state is lost; give the source offset after the last one that was delivered"
            )
        return next_offset, max(next_offset, log_start)
    if next_offset is not None:
        raise SettingsError(
            f"--next: known already ({halt.next}); it is only for a partition halted as state-lost"
        )
    if halt.next is None:
        raise SettingsError(
            f"PARTITION: halted as {halt.reason}; that is not a loss to accept, but something to mend: {halt.detail}"
        )
    to = _end(halt, log_start)
    hold = control.holds.get(key)
    if hold is not None and hold.held_start is not None and hold.held_start > halt.next:
        # Staging still has what was skipped: only what lies before it is lost.
        to = min(to, hold.held_start)
    if to <= halt.next and halt.reason != HaltReason.SOURCE_TRUNCATED:
        raise SettingsError(f"PARTITION: the source has offset {halt.next} again; it goes on by itself")
    return halt.next, max(to, halt.next)


def _end(halt: Halt, log_start: int) -> int:
    if halt.available is not None and (
        halt.application == DEDUPLICATOR
        or halt.reason in (HaltReason.STAGE_FAILED, HaltReason.SCHEMA_UNKNOWN)
    ):
        return halt.available  # one record that can't be delivered, or that a stage fails on, or waits with
    return log_start


@click.command("accept-loss")
@settings_options
@click.argument("topic")
@click.argument("partition", type=int)
@click.option("--reason", default="", help="Why; kept with the gap.")
@click.option(
    "--next", "next_offset", type=int, help="Where the destination is, for a partition halted as state-lost."
)
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text")
def accept_loss(
    settings: Settings,
    topic: str,
    partition: int,
    reason: str,
    next_offset: int | None,
    yes: bool,
    output: str,
) -> None:
    """Let a halted partition of TOPIC go on behind records that are gone.

    Says which source offsets are skipped, asks, and writes the consent down. The running replicator follows
    it within seconds.
    """
    deadline = Deadline(CALL_S)
    for cluster in CLUSTERS:
        cluster_check.cluster_id(settings, cluster, deadline)
    target = clients.admin(settings.client_config("destination", "admin"))
    if settings.control_topic not in topics.describe(target, [settings.control_topic], deadline):
        raise LinkRefused(
            f"link {settings.application_name} has no control topic {settings.control_topic} on the target; was it ever started?"
        )
    with closing(ControlLog.of(settings)) as control:
        state = control.refresh(deadline)
        key = _key(state, topic, partition)
        source = clients.admin(settings.client_config("source", "admin"))
        log_start, _ = clients.watermarks(source, topic, partition, deadline)
        start, end = resolve(state, key, log_start, next_offset)
        loss = AcceptLoss(topic, *key, start, end, reason=reason or "accepted by an operator")
        if not yes and output == "text":
            click.confirm(f"{topic}-{partition}: skip source offsets [{start}, {end}) for good?", abort=True)
        control.append(loss, deadline)
    if output == "json":
        click.echo(orjson.dumps(loss).decode())
    else:
        click.echo(
            f"{topic}-{partition}: the loss of [{start}, {end}) is accepted; the replicator goes on from {end}"
        )


def _key(state: Control, topic: str, partition: int) -> PartitionId:
    halted = [key for (_, key), halt in state.halts.items() if halt.topic == topic and key[1] == partition]
    if halted:
        return max(halted, key=lambda k: max(h.at for (_, k2), h in state.halts.items() if k2 == k))
    known = [key for key, origin in state.origins.items() if origin.topic == topic and key[1] == partition]
    if not known:
        raise SettingsError(f"TOPIC: {topic}-{partition} is not copied by this link")
    return known[-1]
