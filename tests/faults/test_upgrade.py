"""A rolling upgrade under load, as docs/operations/upgrades.md says: an earlier version's applications, in
their own environment, are replaced one by one by today's, and back.

Needs the repository's history and uv, and takes a quarter of an hour and more, hence a command of its own:
`uv run pytest -n 0 tests/faults/test_upgrade.py`. VERBATIM_UPGRADE_FROM names another commit.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Kafka, Names
from tests.faults.upgrade import ORDER, START_S, Fleet, NotThere, fleet_of, install, under_load
from tests.support.harness import eventually

FROM = os.environ.get("VERBATIM_UPGRADE_FROM", "904cda4ad83622aab231c084a188a762dbc92dc7")
"""No release is out yet. This one still packs small batches into frames of version 1, and asks and sets
groups' offsets by the client library."""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The earlier version, installed in a folder of its own."""
    folder = tmp_path_factory.mktemp("older")
    try:
        install(FROM, folder)
    except NotThere as error:
        pytest.skip(str(error))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def fleet(
    older: Path, source: Kafka, target: Kafka, names: Names, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Fleet]:
    light = getattr(request, "param", "light") == "light"
    s, t = source.bootstrap_servers, target.bootstrap_servers
    with fleet_of(older, tmp_path, s, t, names, light) as found:
        yield found


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", ["standby", "leader"])
def test_each_instance_is_replaced_readers_first(fleet: Fleet, first: str) -> None:
    """Promise: each application's two instances are replaced one after the other, the standby first, or the
    leader, as a rollout on Kubernetes may: nothing is lost or twice, and it flows in between."""
    for application in ORDER:
        for _ in range(2):
            fleet.start(application, "old")

    def upgrade() -> None:
        for instances in fleet.running.values():
            for instance in instances:
                instance.await_ready()
        for application in ORDER:
            fleet.replace(application, "new", first)

    assert under_load(fleet, upgrade).problems == []


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("fleet", "kill"),
    [("light", False), ("light", True), ("spark", True)],
    ids=["stopped", "killed", "killed-on-spark"],
    indirect=["fleet"],
)
def test_without_a_standby_there_and_one_step_back(fleet: Fleet, kill: bool) -> None:
    """Promise: the only instance of each is replaced, readers first, also where it is killed and its
    successor too; the new version folds on in the older one's state table. Back, writers first, the older
    version goes on with what the newer one has written."""
    for application in ORDER:
        fleet.start(application, "old")

    def upgrade() -> None:
        if not fleet.light:
            # Who takes over with mappings there, and no table, makes one.
            fleet.replace_alone("deduplicator", "old", kill=True)
            eventually(lambda: fleet.folds() > 1, "the older version to fold", START_S)
        folds = fleet.folds()
        for application in ORDER:
            fleet.replace_alone(application, "new", kill)
        if not fleet.light:
            eventually(lambda: fleet.folds() > folds, "the newer version to fold", START_S)
        assert (b"1", True) in fleet.forms() and (b"2", True) in fleet.forms()
        for application in reversed(ORDER):
            # By then no frame of the newer replicator is left that was not delivered.
            fleet.replace_alone(application, "old", kill)

    assert under_load(fleet, upgrade).problems == []
