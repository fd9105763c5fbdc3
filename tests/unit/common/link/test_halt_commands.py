"""What is named to go on behind a halt: every reason has it, each command exists, and runbooks say the
same."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from common.link.halt_commands import WAYS, ways_on
from common.link.halt_reasons import HaltReason
from tests.documents import RUNBOOKS
from verbatim.main import COMMANDS

OURS = {command.name: command for command in COMMANDS}
KAFKAS = {"kafka-acls.sh", "kafka-configs.sh"}
HOSTILE = "a b; rm -rf / $(x) `y` 'z'"


def commands(topic: str, destination: str | None) -> list[list[str]]:
    """As a shell takes them apart."""
    return [
        shlex.split(way["command"])
        for reason in HaltReason
        for way in ways_on(reason, topic, 3, destination, "east.staging")
        if way["command"]
    ]


def test_every_reason_has_a_way_on_and_no_other_has() -> None:
    assert set(WAYS) == set(HaltReason)
    assert all(way.what for ways in WAYS.values() for way in ways)
    assert ways_on("of-another-release", "orders", 3, None, "east.staging") == []


def test_every_command_exists_and_takes_what_it_is_given() -> None:
    for words in commands("orders", "copy.orders"):
        if words[0] == "verbatim":
            command = OURS[words[1]].load()
            given = ["7" if word == "OFFSET" else word for word in words[2:]]
            command.make_parser(click.Context(command)).parse_args(list(given))
        else:
            assert words[0] in KAFKAS, words


@pytest.mark.parametrize("reason", HaltReason)
def test_the_runbook_names_the_same_commands(reason: HaltReason) -> None:
    section = re.search(rf"^## `{reason}` .*?(?=^## |\Z)", RUNBOOKS.read_text(), re.MULTILINE | re.DOTALL)
    assert section
    for way in ways_on(reason, "orders", 3, "copy.orders", "east.staging"):
        if way["command"].startswith("verbatim ") and reason is not HaltReason.MISSING:
            assert " ".join(way["command"].split()[:2]) in re.sub(r"\s+", " ", section[0])


def test_a_hostile_name_is_one_word_to_a_shell() -> None:
    assert all(
        HOSTILE in words for words in commands(HOSTILE, HOSTILE) if len(words) > 2 and "orders" in words
    )
    (way,) = ways_on("source-lost", HOSTILE, 3, None, "east.staging")
    assert shlex.split(way["command"]) == ["verbatim", "accept-loss", HOSTILE, "3"]


def test_a_destination_that_is_not_known_is_left_to_the_operator() -> None:
    assert ways_on("destination-gone", "orders", 3, None, "s")[-1]["command"].endswith(" DESTINATION")
