"""Starts a real schema registry, Apicurio's, from Maven Central, on loopback: in memory, without logins. It
speaks Confluent's API below `/apis/ccompat/v7`."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from common.spark import jars
from verbatim.local.processes import HOST, free_ports, spawn, tail

VERSION = "3.0.9"
START_S = 90.0
_MODULE = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="verbatim" module="registry"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{VERSION}" conf="default->*" transitive="false">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


def folder() -> Path:
    """Where it is unpacked; the first call fetches it (109 MB). Raises JarsMissing where it can't be had."""
    found = jars.cache_folder() / f"apicurio-registry-{VERSION}"
    found.parent.mkdir(parents=True, exist_ok=True)
    with open(found.parent / ".apicurio-lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.is_dir():
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=found.parent) as work:
                _fetch(Path(work))
                os.rename(Path(work, "all"), found)
    return found


def _fetch(work: Path) -> None:
    settings, module = work / "ivysettings.xml", work / "ivy.xml"
    # What it needs to run is in it: nobody asks what its pom says.
    text = jars._ivy_settings(work / "cache")
    settings.write_text(text.replace('m2compatible="true"', 'm2compatible="true" usepoms="false"'))
    module.write_text(_MODULE)
    (ivy,) = jars.spark_jars().glob("ivy-*.jar")
    command = [jars.java(), f"-Duser.home={work}", "-cp", str(ivy), "org.apache.ivy.Main"]
    command += ["-settings", str(settings), "-ivy", str(module), "-confs", "default", "-warn"]
    command += ["-retrieve", str(work / "[artifact].[ext]"), "-types", "tar.gz"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, cwd=work)
    archive = work / "apicurio-registry-app.tar.gz"
    if done.returncode != 0 or not archive.exists():
        raise jars.JarsMissing(
            f"Apicurio's registry can't be fetched: {jars._reason(done.stdout + done.stderr)}"
        )
    with tarfile.open(archive) as tar:
        tar.extractall(work / "all", filter="data")


class Apicurio:
    """One registry. `url`: of its Confluent API; the first request may have to wait for it."""

    def __init__(self, unpacked: Path, work: Path) -> None:
        port, management = free_ports(2)
        self._root = f"http://{HOST}:{port}"
        self.url = f"{self._root}/apis/ccompat/v7"
        self._log = work / f"apicurio-{port}.log"
        (runner,) = unpacked.rglob("*-runner.jar")
        command = [
            jars.java(),
            "-Xmx300m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-jar",
            str(runner),
        ]
        environment = {
            **os.environ,
            "QUARKUS_HTTP_HOST": HOST,
            "QUARKUS_HTTP_PORT": str(port),
            "QUARKUS_MANAGEMENT_HOST": HOST,
            "QUARKUS_MANAGEMENT_PORT": str(management),
        }
        self._process = spawn(command, self._log, environment)

    def wait(self) -> Apicurio:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/subjects", timeout=2):  # noqa: S310 - our own
                    return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise RuntimeError(f"Apicurio's registry did not start: {tail(self._log)}")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def apicurios(stack: ExitStack, count: int) -> list[Apicurio]:
    """So many, started at the same time; the test is skipped where they can't be had."""
    work = Path(tempfile.mkdtemp(prefix="apicurio-"))
    stack.callback(shutil.rmtree, work, ignore_errors=True)
    try:
        unpacked = folder()
    except (jars.JarsMissing, OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"no real registry: {error}")
    made = [Apicurio(unpacked, work) for _ in range(count)]
    for registry in made:
        stack.callback(registry.stop)
    return [registry.wait() for registry in made]
