"""The documents say what the program does: settings, commands, reasons for halts."""

from __future__ import annotations

import re
from pathlib import Path

from common.config.reference import settings_table
from common.link.halt_reasons import HaltReason
from common.link.permissions import rights_table
from offsets import commit_rule, translation_index
from tests import versions
from verbatim.main import cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_readme_holds_the_generated_settings_table() -> None:
    assert settings_table().strip() in README


def test_the_readme_holds_the_generated_table_of_rights() -> None:
    assert rights_table().strip() in README


def test_every_command_is_in_the_readme() -> None:
    for command in cli.commands:
        assert f"verbatim {command}" in README


def test_every_outcome_of_a_group_and_every_reason_against_exactness_is_explained_in_the_readme() -> None:
    for outcome in commit_rule.MEANINGS:
        assert f"| `{outcome}` |" in README, outcome
    whys = (
        translation_index.AHEAD,
        translation_index.BEFORE_ORIGIN,
        translation_index.BEFORE_HISTORY,
        translation_index.THINNED,
        translation_index.MISSING,
        translation_index.NOTHING_COPIED,
    )
    for why in whys:
        assert f"`{why}`" in README, why


def test_every_reason_for_a_halt_has_a_way_on_in_the_readme() -> None:
    reasons = list(HaltReason)
    assert len(reasons) >= 10
    for reason in reasons:
        assert f"| `{reason}` |" in README, reason


def test_every_file_that_the_design_names_is_there() -> None:
    for row in re.findall(r"^\| (`[^|]+) \|", (ROOT / "DESIGN.md").read_text(), re.MULTILINE):
        folder = ""
        for name in re.findall(r"`([^`]+)`", row):
            folder = name.rpartition("/")[0] + "/" if "/" in name else folder
            path = ROOT / (name if "/" in name else folder + name)
            assert path.exists(), name


def test_the_readme_tells_which_versions_were_tried_and_none_failed() -> None:
    text = versions.README.read_text()
    assert versions.BEGIN + versions.table() + "\n" + versions.END in text
    assert not [r for r in versions.results() if r["outcome"].startswith("failed")]
