"""What a bundle asks of instances: also of one that runs many links, without what is secret."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from common.app.health_server import Answer, HealthServer
from common.app.links.links import Links
from common.app.links.pages import LinksPages, state_of
from tests.support.harness import eventually
from tests.support.made_up_links import LINK, links_of, refusing, running, settings_of
from verbatim.bundle.parts import of_instance
from verbatim.bundle.scrubbing import Scrubber, secrets_of
from verbatim.commands.bundle import write
from verbatim.local.processes import HOST, free_ports

SECRET = "C4n!ary-of-east"  # noqa: S105
PASSWORD = "KAFKA_CLUSTERS_SOURCE_PROPERTIES_SASL_PASSWORD"  # noqa: S105
ANSWERS = {"healthz.json", "readyz.json", "status.json", "metrics.txt"}


@pytest.fixture
def links(tmp_path: Path) -> Iterator[Links]:
    """East and west lead, "far north" fails with a secret in what it says; one file has another name than
    its link."""
    for file, name in (("file of east", "east"), ("west", "west"), ("far north", "north")):
        (tmp_path / f"{file}.yaml").write_text(f"{LINK}APPLICATION_NAME: {name}\n{PASSWORD}: {SECRET}\n")
    (tmp_path / "nonsense.yaml").write_text("NO_SUCH_SETTING: 1\n")
    with running(links_of(tmp_path, refusing("north", why=f"is refused with {SECRET}"))) as found:
        eventually(
            lambda: (
                {name: state_of(runner) for name, runner in found.runners.items()}
                == {"file of east": "leads", "west": "leads", "far north": "failed", "nonsense": "failed"}
            ),
            "all to lead or to fail",
        )
        yield found


def bundled(at: str, link: str | None) -> tuple[dict[str, str], dict[str, str]]:
    """The parts without the instance's folder, and why others are missing."""
    out = io.BytesIO()
    scrubber = Scrubber(secrets_of(settings_of("east", **{PASSWORD: SECRET})))
    missing = write(out, "folder", of_instance(at, link), scrubber)
    folder = f"folder/instances/{at.replace(':', '_')}/"
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        there = {name.removeprefix(folder): file.read().decode() for name, file in files.items() if file}
    there.pop("folder/contents.json")
    return there, {name.removeprefix(folder.removeprefix("folder/")): why for name, why in missing.items()}


def test_of_a_process_of_many_links_the_one_that_is_asked_for_is_in_it(links: Links) -> None:
    """Promise: what the process says, and what that link says, whatever its file is called; no other link's
    pages, and no secret, also where the process shows one."""
    with closing(HealthServer(LinksPages(links), HOST, 0)) as server:
        there, missing = bundled(f"{HOST}:{server.port}", "east")
    assert missing == {}
    own = "link-file%20of%20east/"
    assert there.keys() == ANSWERS | {f"{own}{name}" for name in ANSWERS}
    assert json.loads(there[f"{own}status.json"])["link"] == "east"
    assert 'link="east"' in there[f"{own}metrics.txt"] and 'link="west"' not in there[f"{own}metrics.txt"]
    assert SECRET in (links.runners["far north"].failed or "")
    assert "is refused with [hidden]" in there["status.json"]
    assert SECRET not in "".join(there.values())


def test_every_link_is_in_it_where_that_is_asked_for_also_those_that_do_not_run(links: Links) -> None:
    with closing(HealthServer(LinksPages(links), HOST, 0)) as server:
        there, missing = bundled(f"{HOST}:{server.port}", None)
    folders = {f"link-{name}/" for name in ("file%20of%20east", "west", "far%20north", "nonsense")}
    assert missing == {}
    assert there.keys() == ANSWERS | {f"{folder}{name}" for folder in folders for name in ANSWERS}
    assert "NO_SUCH_SETTING" in json.loads(there["link-nonsense/status.json"])["why"]
    assert SECRET not in "".join(there.values())


def test_a_link_that_the_process_does_not_run_is_named_as_missing(links: Links) -> None:
    with closing(HealthServer(LinksPages(links), HOST, 0)) as server:
        there, missing = bundled(at := f"{HOST}:{server.port}", "south")
    assert there.keys() == ANSWERS
    assert missing.keys() == {"link-south"}
    assert missing["link-south"].startswith(f"{at} does not run link south, but ")
    assert "east" in missing["link-south"] and "west" in missing["link-south"]


def test_nobody_there_and_somebody_else_there_have_no_links() -> None:
    """Promise: a bundle is written whatever it is that answers."""
    (nobody,) = free_ports(1)
    assert bundled(f"{HOST}:{nobody}", None)[1].keys() == ANSWERS
    with closing(HealthServer(lambda *_: Answer(404, b"no such page"), HOST, 0)) as server:
        there, missing = bundled(f"{HOST}:{server.port}", None)
    assert there == {} and all(why.endswith(": no such page") for why in missing.values())
    for said in (b"<html>", b"[]", b'{"links":[1]}', b'{"links":[{"name":"../../x"}]}'):
        with closing(HealthServer(lambda *_, said=said: Answer(200, said), HOST, 0)) as server:
            there, missing = bundled(f"{HOST}:{server.port}", None)
        assert there.keys() == ANSWERS and missing == {}, said
