"""The list of the operator's commands."""

from __future__ import annotations

import pytest

from verbatim.main import COMMANDS, Later


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_the_list_says_of_each_command_what_it_says_itself(command: Later) -> None:
    loaded = command.load()
    assert loaded.name == command.name
    assert command.get_short_help_str(1000) == loaded.get_short_help_str(1000)
