"""Spark's master, as the settings name it, and the slots that a local one has."""

from __future__ import annotations

import contextlib
import math
import os
import re
from pathlib import Path
from typing import NamedTuple

from common.errors import SettingsError


class Master(NamedTuple):
    """A Spark master URL taken apart. `threads` is None unless it is a local one."""

    url: str
    threads: int | None
    failures: str | None

    @property
    def local(self) -> bool:
        return self.threads is not None


def parse_master(url: str) -> Master:
    """Take `local`, `local[n]`, `local[*]`, `local[n,failures]` apart; any other URL is a cluster's.

    Raises SettingsError, naming SPARK_MASTER, for a local master that is ill-formed.
    """
    if url == "local":
        return Master(url, 1, None)
    found = re.fullmatch(r"local\[\s*([0-9]+|\*)\s*(?:,\s*([0-9]+)\s*)?\]", url)
    if found:
        threads = available_cpus() if found[1] == "*" else int(found[1])
        if threads < 1:
            raise SettingsError(f"SPARK_MASTER: {url} has no slots")
        return Master(url, threads, found[2])
    if url.startswith("local") and not url.startswith("local-cluster["):
        raise SettingsError(f"SPARK_MASTER: {url} is neither local, local[n] nor local[*]")
    return Master(url, None, None)


def available_cpus(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """CPUs that this process may use: its affinity, less where a container's quota (cgroup v2 or v1) allows
    less."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cpus = os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = (cgroup / "cpu.max").read_text().split()
        return max(1, min(cpus, math.ceil(int(quota) / int(period))))
    with contextlib.suppress(OSError, ValueError):
        quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text()
        if int(quota) > 0:
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text()
            return max(1, min(cpus, math.ceil(int(quota) / int(period))))
    return cpus
