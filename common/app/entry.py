"""How a command line ends: an exit code, and one line for each of the project's errors. Imports nothing that
takes its time."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from common.errors import SettingsError, VerbatimError
from common.log_lines import tell_error

log = logging.getLogger(__name__)

INTERRUPTED = 130
"""Exit code, as shells have it, of a command ended by SIGINT that has no handler of its own."""


def entry(
    command: click.Command, args: Sequence[str] | None = None, prog_name: str | None = None
) -> NoReturn:
    """Run a click command and exit: with 0, or after one line `error: ...` on stderr with the error's exit
    code.

    Any other exception is a bug and keeps its traceback. A command may return an exit code.
    """
    try:
        outcome = command.main(args=args, prog_name=prog_name, standalone_mode=False, max_content_width=120)
    except VerbatimError as error:
        _fail(str(error), error.exit_code)
    except FileNotFoundError as error:
        if not _no_temporary_folder(error):
            raise
        _fail(f"TMPDIR: {error.strerror}: set it to a folder that can be written to", SettingsError.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except click.Abort:
        _fail("interrupted", INTERRUPTED)
    except Exception as error:
        if isinstance(error, SystemError) and isinstance(error.__cause__, KeyboardInterrupt):
            # In the middle of one of the client library's calls: common.ports.pending.
            _fail("interrupted", INTERRUPTED)
        if not _from_kafka(error):
            raise
        # A cluster's word, not a bug; where it came up is for who looks for one.
        log.debug("%s", error, exc_info=True)
        _fail(f"Kafka: {error.args[0]}", 1)
    sys.exit(outcome if isinstance(outcome, int) else 0)


def _from_kafka(error: Exception) -> bool:
    """Whether it is the client library's, which is imported for that only here: `--version` and `--help`
    don't wait for it."""
    from confluent_kafka import KafkaException

    return isinstance(error, KafkaException)


def _no_temporary_folder(error: FileNotFoundError) -> bool:
    """Whether it is what `tempfile` raises on a read-only file system; that of a file that is missing names
    the file."""
    return error.filename is None and str(error.strerror).startswith("No usable temporary directory")


def _fail(message: str, exit_code: int) -> NoReturn:
    tell_error(message)
    sys.exit(exit_code)
