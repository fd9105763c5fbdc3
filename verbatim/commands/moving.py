"""What the commands that move consumers share: options, how they end, and how a group is told of. No command
of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from confluent_kafka import KafkaException

from common.app.cli import Duration
from common.config import topic_names
from common.errors import SettingsError, VerbatimError

if TYPE_CHECKING:
    from offsets.failback import Back
    from verbatim.moves.steps import Step, Steps

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def wait(words: str) -> Option:
    """`words`: what is waited for, and what then."""
    return click.option(
        "--wait", "wait_s", type=Duration(), default="60s", show_default=True, help=f"How long {words}."
    )


accept_redelivery: Option = click.option(
    "--accept-redelivery",
    is_flag=True,
    help="Groups whose offsets can't be translated exactly may read some records again. None is ever skipped.",
)
output: Option = click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True
)


def entries(option: str, values: Iterable[str]) -> tuple[str, ...]:
    """Names and regular expressions of topics. Raises SettingsError for what is neither."""
    found = [entry for value in values for entry in topic_names.split_entries(value)]
    if not found:
        raise SettingsError(f"{option}: names no topic")
    for entry in found:
        try:
            topic_names.compiled(entry)
        except ValueError as error:
            raise SettingsError(f"{option}: {error}") from None
    return tuple(found)


def tell(step: Step) -> None:
    """A step, for people, as soon as it is over."""
    click.echo(step.line())


def as_json(steps: Steps, error: Exception | None) -> dict[str, Any]:
    """What each of them says of a run."""
    return {
        "ok": error is None,
        "seconds": round(steps.seconds, 3),
        "refused": None if error is None else str(error),
        "steps": steps.as_json(),
    }


def refusal(run: Callable[[], object]) -> VerbatimError | KafkaException | None:
    """Run it: why it has refused, if it has."""
    try:
        run()
    except (VerbatimError, KafkaException) as error:
        return error
    return None


def end(context: click.Context, error: VerbatimError | KafkaException | None) -> None:
    """Exit with what the error says, if there is one."""
    if error is not None:
        context.exit(error.exit_code if isinstance(error, VerbatimError) else 1)


def back_line(found: Back) -> dict[str, Any]:
    """What became of a partition of a group on its way back, for JSON."""
    return {
        "topic": found.key.topic,
        "partition": found.key.partition,
        "target_offset": found.target.offset,
        "offset": found.found.offset,
        "source_offset": found.committed,
        "exact": found.found.exact,
        "why": found.found.why,
        "outcome": found.outcome,
    }
