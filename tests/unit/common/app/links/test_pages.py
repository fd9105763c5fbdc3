"""What a process of several links answers: of all, and of each below its name."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from common.app.health import STALE_S, Health
from common.app.links.links import Links
from common.app.links.pages import LinksPages, state_of
from common.link.lane_work import Work
from tests.support.harness import eventually
from tests.support.made_up_links import LINK, links_of, refusing, running


@pytest.fixture
def links(tmp_path: Path) -> Iterator[Links]:
    """East leads and has a halt, north fails, west leads."""
    for name in ("east", "north", "west"):
        (tmp_path / f"{name}.yaml").write_text(LINK)
    with running(links_of(tmp_path, refusing("north"))) as found:
        eventually(
            lambda: len(found.runners) == 3 and found.runners["north"].failed is not None, "one to fail"
        )
        eventually(
            lambda: [state_of(found.runners[name]) for name in ("east", "west")] == ["leads", "leads"],
            "the others to lead",
        )
        east = health(found, "east")
        east.halted = {"orders-1": "offset-gap"}
        for name, records in (("east", 5), ("west", 7)):
            health(found, name).work = Work(Counter(), {("orders", 1): Counter(records=records, lag=2)})
        yield found


def health(links: Links, name: str) -> Health:
    instance = links.runners[name].instance
    assert instance is not None
    return instance.health


def test_all_links_are_told_and_each_below_its_name(links: Links) -> None:
    pages = LinksPages(links)
    found = json.loads(pages("/status.json", "").body)
    assert found["status"] == "degraded"
    shown = {
        line["name"]: (line["state"], line["halted"], line["records"], line["lag"]) for line in found["links"]
    }
    assert shown == {"east": ("leads", 1, 5, 2), "north": ("failed", 0, 0, 0), "west": ("leads", 0, 7, 2)}
    assert next(line for line in found["links"] if line["name"] == "north")["why"] == "north is refused"
    assert json.loads(pages("/east/healthz", "").body)["halted"] == {"orders-1": "offset-gap"}
    assert b"<html" in pages("/east/", "").body and pages("/east/", "").body != pages("/", "").body
    assert pages("/east", "").headers["Location"] == "east/"
    assert {pages(path, "").status for path in ("/none/", "/south", "/east/none")} == {404}


def test_one_sick_link_leaves_the_process_alive_and_ready(links: Links) -> None:
    pages = LinksPages(links)
    assert (pages("/healthz", "").status, pages("/readyz", "").status) == (200, 200)
    health(links, "east").turned -= STALE_S + 1
    assert pages("/healthz", "").status == 200, "one hangs"
    health(links, "west").turned -= STALE_S + 1
    assert pages("/healthz", "").status == 503, "all hang"


def test_a_process_that_does_not_turn_is_not_alive(links: Links) -> None:
    links.stopping.set()
    pages = LinksPages(links)
    eventually(lambda: all(runner.join(0) for runner in links.runners.values()), "it to stop")
    links.turned -= STALE_S + 1
    assert pages("/healthz", "").status == 503


def test_metrics_of_all_links_are_one_well_formed_text(links: Links) -> None:
    answer = LinksPages(links)("/metrics", "")
    text = answer.body.decode()
    families = [family.name for family in text_string_to_metric_families(text)]
    assert len(families) == len(set(families)), "each family once"
    samples = {
        (s.name, s.labels["link"]): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if "link" in s.labels
    }
    assert samples["verbatim_records_total", "east"] == 5 and samples["verbatim_records_total", "west"] == 7
    assert [samples["verbatim_link_failed", name] for name in ("east", "north", "west")] == [0, 1, 0]
    assert LinksPages(links, metrics=False)("/metrics", "").status == 404


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (of Prometheus) is not installed")
def test_promtool_has_nothing_to_complain_of(links: Links) -> None:
    text = LinksPages(links)("/metrics", "").body
    found = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")
