"""Schedules: what happens to a world from its first record until everything has arrived. Seeded ones, to be
repeated by number."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

from common.config.settings import Settings
from tests.simulation import faults
from tests.simulation.pipelines import ROUTED
from tests.simulation.scheduler import Seeded
from tests.simulation.world import MERGED, World, Wrong, by_names, settings

BETWEEN = [3, 10, 30, 100]
"""Steps from one fault to the next."""


@cache
def _settings(staging_partitions: int) -> Settings:
    return settings(STAGING_PARTITIONS=str(staging_partitions))


def by_seed(
    seed: int,
    merged: bool = False,
    names: bool = False,
    pipelines: bool = False,
    promotions: bool = False,
    routes: bool = False,
) -> Counter[str]:
    """Run a schedule; the states it visited. `merged`: of two source topics that go into one; `names`: which
    are asked for by name; `pipelines`: one changes again and again; `promotions`: topics are taken from the
    link and given back; `routes`: the pipeline takes records to other topics, now these, now those. Raises
    Wrong, or whatever the code under it raised."""
    with by_names(names):
        return _by_seed(seed, merged, pipelines, promotions, routes)


def _by_seed(seed: int, merged: bool, pipelines: bool, promotions: bool, routes: bool) -> Counter[str]:
    r = random.Random(seed)
    world = World(
        Seeded(seed, r.choice([0.0, 0.02, 0.1, 0.3])),
        MERGED if merged else _settings(r.choice([1, 1, 2])),
        partitions=r.choice([1, 2]),
        lanes=r.choice([1, 2]),
        lazy=r.random() < 0.5,
        records=r.choice([0, 1, 3]),
    )
    world.fold_s = r.choice([10.0, 60.0, 300.0])
    lossy = seed % 8 == 7
    kinds = faults.LOSSY if lossy else faults.HARMLESS
    if pipelines:
        kinds = kinds + [faults.change_pipeline, faults.leave_a_replicator] * 8
    if routes:
        more = [faults.change_routes, faults.leave_a_replicator] * 8
        kinds = [*kinds, *more, faults.foreign_record_in_a_route]
    if promotions:
        kinds = kinds + [faults.promote] * 10
    with world.living():
        if pipelines:
            world.pipelines.change("2", "37")
        if routes:
            world.pipelines.change("2", "37", routes=(("05", ROUTED[0]), ("1468", ROUTED[1])))
        world.start()
        for _ in range(r.choice([2, 5, 10])):
            world.run(r.choice(BETWEEN))
            r.choice(kinds)(world, lambda n: int(r.random() * n))
            world.check()
        settle(world, r)
    return world.states


def settle(world: World, r: random.Random) -> None:
    """Everything arrives; if records are lost for good, once an operator has accepted that."""
    if not world.lost:
        world.settle()
        return
    for _ in range(6):
        try:
            world.settle(1500.0)
            return
        except Wrong:
            world.check()
            faults.accept_all_losses(world)
    world.settle()
