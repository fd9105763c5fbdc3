"""Lays by which classes Spark loads, when the image is built: a container then starts with half the CPU.

    python container/lay_by_classes.py

The quick start runs once, in the environment that this Python is of; the brokers' jars that it fetches to
VERBATIM_JARS go again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import verbatim_kafka  # noqa: F401  finds the installed packages
from common.spark.session import class_archive, jars
from verbatim.local import kafka_cluster


def main() -> int:
    folder = jars.cache_folder()
    before = set(folder.iterdir())
    verbatim = Path(sys.executable).with_name("verbatim")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as lines:
        lines.writelines(f'{{"key": "{n % 100}", "value": "{n:0100}"}}\n' for n in range(20_000))
        lines.flush()
        subprocess.run([verbatim, "quickstart", "--no-kill", "--input", lines.name], check=True)
    found = class_archive.of_spark(jars.classpath(jars.DELTA))
    of_brokers = kafka_cluster.class_data_archive()
    new = set(folder.iterdir()) - before
    for fetched in filter(Path.is_dir, new):
        shutil.rmtree(fetched)
    if not jars.known(jars.KAFKA):
        of_brokers.unlink()
    print(f"{found}: {found.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
