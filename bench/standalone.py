"""A standalone cluster of Spark's on this machine, from pyspark's own jars."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark

from verbatim.local.applications import Application
from verbatim.local.processes import HOST, free_ports


def standalone(
    folder: Path, workers: int, cores: int, memory: str, conf: Mapping[str, str] | None = None
) -> tuple[str, dict[str, Application]]:
    """A master's URL, and the master and its workers, not started yet: in whatever order they and drivers
    start, they wait for each other.

    Each worker has so many cores and so much memory ("1g") to give away. `conf` are Spark properties of all
    of them, in `folder`/conf.
    """
    home = Path(pyspark.__file__).parent
    variables = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    if conf:
        variables["SPARK_CONF_DIR"] = str(folder / "conf")
        (folder / "conf").mkdir(parents=True)
        (folder / "conf" / "spark-defaults.conf").write_text("".join(f"{k} {v}\n" for k, v in conf.items()))
    port, *ports = free_ports(2 + 2 * workers)
    url = f"spark://{HOST}:{port}"

    def daemon(name: str, kind: str, *arguments: str) -> Application:
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", HOST]
        return Application(name, variables, folder, [*command, *arguments, "--webui-port", str(ports.pop())])

    daemons = {"master": daemon("master", "master.Master", "--port", str(port))}
    for number in range(1, workers + 1):
        name = f"worker-{number}"
        give = ["--cores", str(cores), "--memory", memory, "--work-dir", str(folder / name)]
        daemons[name] = daemon(name, "worker.Worker", "--port", str(ports.pop()), *give, url)
    return url, daemons
