"""The operator's page in a real Chromium, served by a health server with a made-up link."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from common.app.group_state import GroupState
from common.app.health_server import HealthServer
from common.app.link_pages import LinkPages
from common.link.control_kinds import Halted, Leader, Resumed
from common.link.lane_words import Said, hear
from tests.support.chromium import browsing
from tests.support.made_up_link import MadeUp, busy

ANSWERS_MS = 200
"""How long 1,000 partitions may take to be sorted or filtered."""
HOSTILE = "<img src=x onerror=window.harmed=1>\"'&<script>window.harmed=1</script>"
LIGHT, DARK = "rgb(246, 247, 249)", "rgb(18, 21, 26)"
TIMED = """async (act) => {
  const began = performance.now();
  await eval(act);
  document.body.offsetHeight;
  return performance.now() - began;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture
def made() -> MadeUp:
    return busy(topics=40, partitions=25)


@pytest.fixture
def server(made: MadeUp) -> Iterator[HealthServer]:
    server = HealthServer(LinkPages(made.health), "127.0.0.1", 0)
    yield server
    server.close()


Opened = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser, server: HealthServer) -> Iterator[Opened]:
    """Opens the page; afterwards nothing may have gone wrong in it, nor been `refused` by its policy."""
    wrong: list[str] = []
    pages: list[Page] = []

    def open_page(width: int = 1200, refused: bool = False, **options: object) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)  # type: ignore[arg-type]
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        if not refused:
            page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.goto(f"http://127.0.0.1:{server.port}/")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.context.close()
    assert [one for one in wrong if "ERR_CONNECTION_REFUSED" not in one] == []


def now_ms() -> int:
    return int(time.time() * 1000)


def test_the_link_is_shown_part_by_part(opened: Opened) -> None:
    page = opened()
    expect(page.get_by_role("heading", level=1)).to_have_text("east")
    expect(page.locator("#flow b")).to_have_text(
        ["source", "replicator", "staging", "deduplicator", "target"]
    )
    expect(page.locator("#flow li").nth(1)).to_contain_text("host-1-42")
    expect(page.locator("#live")).to_contain_text("live,")
    assert page.locator("#trouble").is_hidden()
    expect(page.locator("#charts svg")).to_have_count(3)
    assert page.locator("#charts polyline").count() >= 3
    expect(page.locator("#numbers")).to_contain_text("Delivered, records/s19,985")
    expect(page.locator("#applications tbody tr")).to_have_count(2)


def test_halts_appear_with_their_commands_are_announced_and_vanish(opened: Opened, made: MadeUp) -> None:
    page = opened()
    expect(page.locator("#flow li").first).to_be_visible()
    assert page.locator("#halts").is_hidden()
    made.say(Halted("deduplicator", "topic-003", "id-topic-003", 4, "key-missing", "record 7 has no key"))
    made.look(now_ms())
    expect(page.locator("#halted")).to_have_text("1 partition is halted")
    expect(page.locator("#halts")).to_contain_text("record 7 has no key")
    expect(page.locator("#halts .command")).to_have_text(["verbatim accept-loss topic-003 4"])
    expect(page.locator("#halts")).to_contain_text("docs: operations/halts#key-missing")
    expect(page.get_by_role("status")).to_have_text("1 partition is halted: topic-003-4, key-missing")
    expect(page).to_have_title("(1 halted) east")
    made.say(Resumed(application="deduplicator", topic="topic-003", topic_id="id-topic-003", partition=4))
    made.look(now_ms())
    expect(page.locator("#halts")).to_be_hidden()
    expect(page.get_by_role("status")).to_have_text("No partition is halted any more")


def test_groups_are_shown_where_they_are_translated(opened: Opened, made: MadeUp) -> None:
    page = opened()
    expect(page.locator("#flow li").first).to_be_visible()
    assert page.locator("#consumers").is_hidden()
    made.health.groups = {
        "billing": GroupState(exact=12, written=40, in_step_ms=now_ms()),
        HOSTILE: GroupState(exact=1, behind=2, held_back=3),
    }
    rows = page.locator("#groups tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.locator("td:nth-child(4)")).to_have_text(["3", "0"])
    expect(rows.first).to_contain_text(HOSTILE)
    expect(rows.first).to_contain_text("never")
    expect(rows.last).to_contain_text(re.compile(r"\d m?s ago"))
    page.locator("#groups th button", has_text="Exact").click()
    expect(rows.first).to_contain_text("billing")
    assert page.evaluate("window.harmed") is None
    made.health.groups = {}
    expect(page.locator("#consumers")).to_be_hidden()


def test_what_a_pipeline_keeps_from_going_on_is_told_beside_the_state(opened: Opened) -> None:
    page = opened()
    of = "{filtered: 3, skipped: 0, dead_letters: 1200, copied: true, halted: null}"
    said = "copied, 3 filtered, 1,200 dead letters"
    assert page.evaluate(f"PARTITIONS.at(-1)[1]({of})") == page.evaluate(f"topicState({of})") == said


def all_of(page: Page, column: str) -> list[int]:
    """The numbers of a column, read row by row as somebody does who scrolls down to the end."""
    found: dict[int, int] = {}
    box = page.locator(".scroll").first
    box.evaluate("box => { box.scrollTop = 0; }")
    page.wait_for_timeout(30)
    i = page.locator("#copied th button").all_text_contents().index(column)
    for _ in range(100):
        rows = page.locator("#copied tbody tr:not(.space)").evaluate_all(
            "(rows, i) => rows.map((row) => [Number(row.getAttribute('aria-rowindex')), row.cells[i].textContent])",
            i,
        )
        found |= {at: int(text.replace(",", "")) for at, text in rows}
        before = box.evaluate("box => box.scrollTop")
        box.evaluate("box => { box.scrollTop += box.clientHeight; box.offsetHeight; }")
        page.wait_for_timeout(30)
        if box.evaluate("box => box.scrollTop") == before:
            break
    assert sorted(found) == list(range(2, len(found) + 2))
    return [found[at] for at in sorted(found)]


def test_rows_stay_where_they_are_while_answers_come(opened: Opened) -> None:
    page = opened()
    page.locator("#by-partition").click()
    expect(page.locator("#count")).to_have_text("1,000")
    box = page.locator(".scroll").first
    box.focus()
    for _ in range(3):
        page.keyboard.press("PageDown")
        page.wait_for_timeout(300)
    at = box.evaluate("box => box.scrollTop")
    seen = page.locator("#copied tbody tr").nth(20).text_content()
    assert at > 500
    page.evaluate("ask()")
    assert box.evaluate("box => box.scrollTop") == at
    assert page.locator("#copied tbody tr").nth(20).text_content() == seen
    heights = page.locator("#copied tbody tr:not(.space)").evaluate_all(
        "all => all.map((one) => one.offsetHeight)"
    )
    assert set(heights) == {32}, "as the space for those out of sight is reckoned"
    assert 32_000 < box.evaluate("box => box.scrollHeight") < 32_100


def test_a_thousand_partitions_are_shown_sorted_and_filtered_at_once(opened: Opened) -> None:
    page = opened()
    expect(page.locator("#copied tbody tr")).to_have_count(40)
    timed: dict[str, float] = {}

    def act(name: str, what: str, times: int = 3) -> None:
        """The fastest of some times: others work on the machine, too."""
        timed[name] = min(page.evaluate(TIMED, what) for _ in range(times))

    act("show", "byId('by-partition').click()")
    expect(page.locator("#count")).to_have_text("1,000")
    head = "document.querySelectorAll('#copied th button')"
    for column in range(8):
        act(f"sort {column}", f"{head}[{column}].click()")
    page.evaluate(f"{head}[4].click()")
    numbers = all_of(page, "Delivered")
    assert len(numbers) == 1000
    assert numbers == sorted(numbers, reverse=True) and numbers[0] > numbers[-1]
    page.evaluate(f"{head}[4].click()")
    assert all_of(page, "Delivered") == numbers[::-1]
    type_in = "byId('filter').value = '{}'; byId('filter').dispatchEvent(new Event('input'))"
    act("filter", type_in.format("topic-007"))
    expect(page.locator("#copied tbody tr")).to_have_count(25)
    expect(page.locator("#count")).to_have_text("25 of 1,000")
    act("all again", type_in.format(""))
    act("the next answer", "ask()")
    print({name: round(ms) for name, ms in timed.items()})
    assert {name: ms for name, ms in timed.items() if ms > ANSWERS_MS} == {}


def test_what_others_have_named_or_written_stays_text(opened: Opened, made: MadeUp) -> None:
    word = made.heard["deduplicator", 0]
    word.said.work.of[HOSTILE, 0] = word.said.work.of["topic-000", 0].copy()
    hear(made.heard, Said("deduplicator", 0, 4, 1, word.said.work), word.at_ms)
    made.say(Halted("deduplicator", HOSTILE, "id-x", 0, HOSTILE, HOSTILE), Leader("offsets", HOSTILE))
    made.say(Halted("replicator", HOSTILE, "id-x", 0, "source-lost", HOSTILE))
    made.health.instance = made.health.source = HOSTILE
    made.settings = made.settings.model_copy(update={"source_topic": HOSTILE})
    made.look(now_ms())
    page = opened()
    expect(page.locator("#halts li").first).to_contain_text(HOSTILE)
    page.locator("#by-partition").click()
    page.locator("#filter").fill("<img")
    expect(page.locator("#copied tbody tr")).to_have_count(1)
    page.locator("#settings summary").click()
    expect(page.locator("#settings")).to_contain_text(HOSTILE)
    expect(page.locator("#clusters")).to_have_text(f"{HOSTILE} → tgt-1")
    expect(page.locator("#applications")).to_contain_text(HOSTILE)
    assert page.locator("img").count() == 0 and page.locator("main script").count() == 0
    assert page.evaluate("window.harmed") is None


def test_the_policy_keeps_markup_from_running_even_if_it_came_in(opened: Opened) -> None:
    page = opened(refused=True)
    ran = page.evaluate(
        """() => new Promise((done) => {
          document.addEventListener("securitypolicyviolation", (e) => done(e.effectiveDirective));
          const one = document.createElement("button");
          one.setAttribute("onclick", "window.harmed = 1");
          document.body.append(one);
          one.click();
          setTimeout(() => done("nothing was refused"), 1000);
        })"""
    )
    assert ran == "script-src-attr" and page.evaluate("window.harmed") is None


def test_the_keyboard_alone_sorts_filters_and_opens(opened: Opened) -> None:
    page = opened()
    expect(page.locator("#copied tbody tr")).to_have_count(40)

    def tab_to(wanted: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("(wanted) => document.activeElement.matches(wanted)", wanted):
                return
        pytest.fail(f"no Tab leads to {wanted}")

    tab_to("#by-partition")
    page.keyboard.press("Enter")
    expect(page.locator("#count")).to_have_text("1,000")
    tab_to("#filter")
    page.keyboard.type("topic-01")
    expect(page.locator("#count")).to_have_text("250 of 1,000")
    tab_to("#copied th:nth-child(2) button")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    head = page.locator("#copied th:nth-child(2)")
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(page.locator("#copied tbody td:nth-child(2)").first).to_have_text("24")
    page.keyboard.press("Space")
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(page.locator("#copied tbody td:nth-child(2)").first).to_have_text("0")
    expect(page.locator("#copied th:nth-child(6)")).to_have_attribute("aria-sort", "none")
    time.sleep(2.5)
    assert page.evaluate("document.activeElement.closest('th') !== null"), (
        "answers leave the focus where it is"
    )
    tab_to("#settings summary")
    page.keyboard.press("Enter")
    expect(page.locator("#settings tbody tr").first).to_be_visible()


def test_a_phone_shows_it_without_scrolling_sideways(opened: Opened, made: MadeUp) -> None:
    long = "a-very-long-name." * 14
    made.say(Halted("deduplicator", long, "id-x", 0, "source-lost", long), Leader("offsets", long))
    made.health.source = long
    made.look(now_ms())
    page = opened(width=390, is_mobile=True, has_touch=True)
    expect(page.locator("#halts li")).to_have_count(1)
    page.locator("#by-partition").tap()
    page.locator("#settings summary").tap()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    tops = page.locator("#flow li").evaluate_all("all => all.map((one) => one.getBoundingClientRect().top)")
    assert tops == sorted(set(tops)), "one below the other"


@pytest.mark.parametrize(("scheme", "ground"), [("light", LIGHT), ("dark", DARK)])
def test_it_is_dark_or_light_as_asked_and_readable(opened: Opened, scheme: str, ground: str) -> None:
    page = opened(color_scheme=scheme)
    expect(page.locator("#flow li").first).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
    poor = page.evaluate(
        """() => {
          const light = (colour) => {
            const [r, g, b] = colour.match(/[\\d.]+/g).map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const behind = (one) => {
            for (; one; one = one.parentElement) {
              const colour = getComputedStyle(one).backgroundColor;
              if (!colour.endsWith(", 0)")) return colour;
            }
          };
          return [...document.querySelectorAll("h1, h2, dt, dd, td, th button, button, span, small, code, li, figcaption")]
            .filter((one) => one.textContent.trim())
            .map((one) => {
              const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort((x, y) => y - x);
              return [one.textContent.slice(0, 30), (a + 0.05) / (b + 0.05)];
            })
            .filter(([, contrast]) => contrast < 4.5);
        }"""
    )
    assert poor == [], "WCAG's AA"


def test_what_is_old_is_told(opened: Opened, made: MadeUp, server: HealthServer) -> None:
    page = opened()
    expect(page.locator("#flow li").first).to_be_visible()
    made.health.turned = time.monotonic() - 100
    expect(page.get_by_role("alert")).to_contain_text("has not turned for 10", timeout=10_000)
    made.health.turned = time.monotonic()
    expect(page.get_by_role("alert")).to_be_hidden()
    server.close()
    expect(page.get_by_role("alert")).to_contain_text("can't be reached: what is shown is of", timeout=10_000)
    expect(page.locator("#live")).to_contain_text("not live")
    expect(page.locator("body")).to_have_class("stale")
    expect(page.locator("#copied tbody tr")).to_have_count(40)


def test_an_instance_that_knows_no_link_yet_says_so(opened: Opened, made: MadeUp) -> None:
    made.health.seen = None
    page = opened()
    expect(page.get_by_role("alert")).to_contain_text("nothing is known of the link yet")
    made.look(now_ms())
    expect(page.get_by_role("alert")).to_be_hidden()
