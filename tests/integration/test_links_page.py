"""The page of a process that runs several links, in a real Chromium."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from common.app.health_server import HealthServer
from common.app.links.pages import LinksPages
from tests.support.chromium import browsing
from tests.support.made_up_links import LINK, links_of, refusing, running


def test_the_sick_come_first_with_their_reason_and_each_leads_to_its_own_page(tmp_path: Path) -> None:
    """Promise: who opens the page sees which link needs someone and why, and what is done about it, as it
    happens."""
    for name in ("east", "north", "west"):
        (tmp_path / f"{name}.yaml").write_text(LINK)
    wrong: list[str] = []
    with running(links_of(tmp_path, refusing("north"))) as links, browsing() as browser:
        server = HealthServer(LinksPages(links), "127.0.0.1", 0)
        try:
            page = browser.new_page()
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
            page.goto(f"http://127.0.0.1:{server.port}/")
            rows = page.locator("#links tr")
            expect(rows.locator("th")).to_have_text(["north", "east", "west"])
            expect(rows.locator("td:nth-child(2)")).to_have_text(
                ["failed: north is refused", "leads", "leads"], timeout=15_000
            )
            expect(page.get_by_role("status")).to_have_text("3 links, 1 of them need someone")
            (tmp_path / "north.yaml").unlink()
            expect(page.get_by_role("status")).to_have_text("2 links, all well", timeout=15_000)
            page.get_by_role("link", name="west").click()
            expect(page.get_by_role("heading", level=1)).to_have_text("west")
        finally:
            server.close()
    assert wrong == []
