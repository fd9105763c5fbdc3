"""Debian's Chromium, without a window, for tests of the page, which are skipped where there is none. No
browser is downloaded."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def installed() -> str | None:
    return shutil.which("chromium")


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """Each time with a profile of its own, which is deleted afterwards."""
    path = installed()
    if path is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()
