"""What every command line here shares: a flag for each setting, and logging; no command of its own. How
commands end is entry's."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import orjson

from common.app.links.folder import ASSUMED, LinkFolder
from common.config import durations, loading
from common.config.fields import FIELDS, flag_of
from common.config.live_reload import LiveFile
from common.config.settings import Settings
from common.errors import SettingsError
from common.log_lines import setup_logging

log = logging.getLogger(__name__)

_LINKS = click.option(
    "--links",
    envvar="LINKS",
    metavar="FOLDER",
    help="Run many links in this process, one for each YAML file of the folder.",
)


def settings_options(
    command: Callable[..., Any], assumed: Mapping[str, str] | None = None, links: bool = False
) -> Callable[..., Any]:
    """Give a click command a flag for every setting, `--config`, `--conf` and `--version`, and pass
    `settings=` to it. `assumed`: settings that it can do without, as common/config/loading.py has them.
    `links`: give it `--links` too.

    `live_file()` is the file that they were read from, `link_folder()` what `--links` names: then the
    settings are the process' own. Loads the settings, sets up logging and logs the settings' warnings before
    the command begins. Raises SettingsError: run the command through entry.py's `entry`."""

    @functools.wraps(command)
    def with_settings(*args: Any, **options: Any) -> Any:
        flags = {variable: options.pop(f"setting_{field}") for variable, field in _flags().items()}
        file, folder = options.pop("config_file"), options.pop("links", None)
        conf = _spark_conf(options.pop("spark_conf"))
        load = functools.partial(loading.load, flags=flags, spark_conf=conf)
        if folder:
            if file:
                raise SettingsError("--links: goes with no --config: each link has its file in the folder")
            click.get_current_context().obj = LinkFolder(Path(folder), load, flags)
            settings = load(assumed=ASSUMED)
        else:
            load = functools.partial(load, config_file=file, assumed=assumed)
            # Looked at before it is read: what is written in between is a change.
            click.get_current_context().obj = LiveFile(Path(file), load) if file else None
            settings = load()
        setup_logging(settings.log_level, settings.log_format)
        for warning in settings.warnings:
            log.warning("%s", warning)
        return command(*args, settings=settings, **options)

    decorated: Callable[..., Any] = with_settings
    decorators: list[Callable[..., Any]] = [
        click.option("--config", "config_file", metavar="FILE", help="YAML file with the variables as keys."),
        click.option(
            "--conf", "spark_conf", multiple=True, metavar="KEY=VALUE", help="A Spark property; repeatable."
        ),
        *(_option(variable, field) for variable, field in _flags().items()),
        version_option,
    ]
    if links:
        decorators.insert(1, _LINKS)
    for decorator in reversed(decorators):
        decorated = decorator(decorated)
    return decorated


class Duration(click.ParamType[float]):
    """Seconds, given as settings give durations (`500ms`, `40s`, `5m`), or as a number of seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return durations.seconds_or_number(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def echo_json(found: Any) -> None:
    """Print what a command has found, as JSON for people and programs."""
    click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())


def live_file() -> LiveFile | None:
    """The `--config` file of the command that runs, for one that goes on running."""
    found = click.get_current_context().obj
    return found if isinstance(found, LiveFile) else None


def link_folder() -> LinkFolder | None:
    """What `--links` of the command that runs names."""
    found = click.get_current_context().obj
    return found if isinstance(found, LinkFolder) else None


def version_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--version`, for groups too: the installed package's."""
    decorate: Callable[..., Any] = click.version_option(package_name="verbatim-kafka")
    return decorate(command)  # type: ignore[no-any-return]


def _flags() -> dict[str, str]:
    """Field of each variable that has a flag: all but those of the older system."""
    return {variable: field for variable, field in FIELDS.items() if Settings.model_fields[field].description}


def _option(variable: str, field: str) -> Callable[..., Any]:
    info = Settings.model_fields[field]
    shown = info.json_schema_extra["shown"]  # type: ignore[index]
    help_text = (
        f"{info.description} [{variable}; {'' if info.is_required() else 'default: '}{shown}]".replace(
            "`", ""
        )
    )
    return click.option(flag_of(variable), f"setting_{field}", metavar="VALUE", help=help_text)


def _spark_conf(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise SettingsError("--conf: expected key=value")  # without the text, which may be a secret
        found[key.strip()] = value
    return found


def aligned(rows: list[list[str]]) -> str:
    """Rows of cells, a heading first, as text whose columns are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
