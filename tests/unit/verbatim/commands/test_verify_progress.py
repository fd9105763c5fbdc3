"""How far `verify` is: a line now and then, or a bar on a terminal; nothing where a program reads the
report."""

from __future__ import annotations

import sys

import pytest

from verbatim.commands import verify


def shown(capsys: pytest.CaptureFixture[str], quiet: bool) -> str:
    with verify._progress(quiet) as show:
        for done in (0, 5, 12):
            show(done, 10, "t/0")
    captured = capsys.readouterr()
    assert captured.out == "", "only the report goes there"
    return captured.err


def test_a_line_comes_now_and_then_and_never_promises_less_than_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(capsys, False) == "", "not before its time"
    monkeypatch.setattr(verify, "_LINE_EVERY_S", 0.0)
    assert shown(capsys, False).splitlines()[-1] == "verify: t/0: 12 of about 12 records read"
    assert shown(capsys, True) == ""


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert "12/12" in shown(capsys, False)
