"""The shared command line: flags reach the settings, errors are one line with their exit code, records are
one line."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from confluent_kafka import KafkaError, KafkaException

from common.app.cli import Duration, settings_options
from common.app.entry import INTERRUPTED, entry
from common.config.fields import FIELDS, flag_of
from common.config.legacy import OLD_VARIABLES
from common.config.settings import Settings
from common.errors import LinkRefused, PartitionsHalted, SettingsError, VerbatimError
from verbatim.main import COMMANDS

REQUIRED = {
    "KAFKA_CLUSTERS_SOURCE_BOOTSTRAP_SERVERS": "source:9092",
    "KAFKA_CLUSTERS_SOURCE_TOPIC": "orders",
    "KAFKA_CLUSTERS_DESTINATION_BOOTSTRAP_SERVERS": "target:9092",
}


@click.command()
@settings_options
@click.option("--until-caught-up", is_flag=True)
def show(settings: Settings, until_caught_up: bool) -> None:
    """Show what was understood."""
    click.echo(f"{settings.application_name} {settings.health_port} {settings.spark_conf} {until_caught_up}")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of whoever runs the tests, and no handler left behind."""
    for variable in (*FIELDS, *OLD_VARIABLES):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in REQUIRED.items():
        monkeypatch.setenv(variable, value)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def ended(command: click.Command, *args: str) -> int:
    with pytest.raises(SystemExit) as caught:
        entry(command, list(args), "show")
    assert isinstance(caught.value.code, int)
    return caught.value.code


def failing(error: BaseException) -> click.Command:
    @click.command()
    def fail() -> None:
        raise error

    return fail


def test_a_flag_beats_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEALTH_PORT", "1")
    monkeypatch.setenv("APPLICATION_NAME", "from-environment")
    assert ended(show, "--health-port", "2") == 0
    assert capsys.readouterr().out == "from-environment 2 {} False\n"


def test_config_file_and_spark_conf_reach_the_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "link.yaml"
    file.write_text("APPLICATION_NAME: from-file\n")
    code = ended(show, "--config", str(file), "--conf", "a=1", "--conf", "b=x=y", "--until-caught-up")
    assert code == 0
    assert capsys.readouterr().out == "from-file 8080 {'a': '1', 'b': 'x=y'} True\n"


def test_help_names_every_setting_its_variable_and_its_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert ended(show, "--help") == 0
    shown = re.sub(r"\s+", " ", capsys.readouterr().out).replace("- ", "-")
    for variable, field in FIELDS.items():
        if variable in OLD_VARIABLES:
            assert flag_of(variable) not in shown
            continue
        assert f"{flag_of(variable)} VALUE" in shown
        assert f"[{variable};" in shown
        assert Settings.model_fields[field].description
    assert "[HEALTH_PORT; default: 8080]" in shown
    assert "[KAFKA_CLUSTERS_SOURCE_TOPIC; required]" in shown
    assert all(flag in shown for flag in ("--config FILE", "--conf KEY=VALUE", "--version"))


def test_version_is_the_packages_and_needs_no_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in REQUIRED:
        monkeypatch.delenv(variable)
    assert ended(show, "--version") == 0
    assert version("verbatim-kafka") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--health-port", "x"], r"error: HEALTH_PORT \(--health-port\): .+"),
        (["--conf", "hunter2"], r"error: --conf: expected key=value"),
        (["--config", "/does/not/exist"], r"error: --config: can't read /does/not/exist: .+"),
        (["--no-such-flag"], r"error: No such option.+"),
        (["--source-topic="], r"error: KAFKA_CLUSTERS_SOURCE_TOPIC: .+"),
    ],
)
def test_bad_settings_end_with_one_line_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: list[str], line: str
) -> None:
    monkeypatch.delenv("KAFKA_CLUSTERS_SOURCE_TOPIC")
    if args != ["--source-topic="]:
        monkeypatch.setenv("KAFKA_CLUSTERS_SOURCE_TOPIC", "orders")
    assert ended(show, *args) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(line + "\n", shown.err)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("a\nb"), 2),
        (LinkRefused("a\n  b"), 2),
        (PartitionsHalted("a b"), 3),
        (VerbatimError("a b"), 1),
        (KeyboardInterrupt(), INTERRUPTED),
    ],
)
def test_an_error_is_one_line_with_its_own_exit_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int
) -> None:
    assert ended(failing(error)) == code
    err = capsys.readouterr().err.strip("\n")
    assert err == ("error: interrupted" if code == INTERRUPTED else "error: a b")


def test_what_a_cluster_says_is_one_line_and_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(failing(KafkaException(KafkaError(KafkaError.INVALID_CONFIG, "a\nb")))) == 1
    assert re.fullmatch(r"error: Kafka: \S*.*INVALID_CONFIG.*a b.*\n", capsys.readouterr().err)


def test_an_interruption_in_the_middle_of_a_clients_call_is_one_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = SystemError("<built-in method> returned a result with an exception set")
    error.__cause__ = KeyboardInterrupt()
    assert ended(failing(error)) == INTERRUPTED
    assert capsys.readouterr().err == "error: interrupted\n"


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(SystemError):
        entry(failing(SystemError()), [])
    with pytest.raises(ZeroDivisionError):
        entry(failing(ZeroDivisionError()), [])


@pytest.mark.parametrize(("how", "code"), [("return", 3), ("exit", 1), ("system", 3)])
def test_a_commands_own_exit_code_is_kept(how: str, code: int) -> None:
    @click.command()
    @click.pass_context
    def command(context: click.Context) -> int:
        if how == "exit":
            context.exit(code)
        if how == "system":
            raise SystemExit(code)
        return code

    assert ended(command) == code


def test_warnings_are_logged_before_the_command_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STREAMS_NUM_STANDBY_REPLICAS", "1")
    assert ended(show) == 0
    assert re.fullmatch(
        r"\S+Z WARNING common\.app\.cli: STREAMS_NUM_STANDBY_REPLICAS: .+\n", capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("40s", 40),
        ("40", 40),
        ("2.5", 2.5),
        (".5", 0.5),
        ("0", 0),
        ("0s", 0),
        ("500ms", 0.5),
        ("1m", 60),
        ("2 h", 7200),
    ],
)
def test_every_option_that_is_a_duration_takes_a_unit_or_seconds(given: str, seconds: float) -> None:
    assert Duration().convert(given, None, None) == seconds


@pytest.mark.parametrize("given", ["", "soon", "-1", "-1s", "1e3", "inf", "nan", "40 seconds", "1h30m"])
def test_what_is_no_duration_is_refused_with_examples(given: str) -> None:
    with pytest.raises(click.BadParameter, match="expected a duration such as 500ms, 30s, 5m or 7d"):
        Duration().convert(given, None, None)


def test_the_commands_durations_are_all_of_this_kind() -> None:
    """But for those of no unit at all: sizes, counts and fractions."""
    found = {
        (command.name, option.name): type(option.type).__name__
        for command in COMMANDS
        for option in command.load().params
        if option.name in ("quiet_s", "wait_s", "timeout_s", "seconds")
    }
    assert len(found) == 10 and set(found.values()) == {"Duration"}, found
