"""Fetches the jars that Spark and the test brokers need, once, into a folder of the user's; starts neither of
them.

Ivy comes with Spark, so Java is all this needs: no Maven, no Docker. The jars are asked of Maven Central, or
of the Maven repository that DEFAULT_ARTIFACT_REPOSITORY names (the variable that spark-submit honours too).
Ivy gets settings and a cache of its own: a `~/.m2` that holds a pom without its jar makes it fail otherwise.

    python -m common.spark.jars        fetches everything the project uses, and prints where it lies
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from common.errors import LinkRefused

KAFKA = "org.apache.kafka:kafka_2.13:4.4.0"
# Kafka's pom leaves the choice of a logger to whoever runs it; without one a broker says nothing at all.
KAFKA_LOGGING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
ALL = (KAFKA, KAFKA_LOGGING, DELTA)

# These run inside Spark's JVM, where a second version of what Spark brings would be in the way.
_INSIDE_SPARK = frozenset({DELTA})

_MARKER = "complete.json"
_TIMEOUT_S = 600
_COORDINATE = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+")
_VERSION_SUFFIX = re.compile(r"-\d+(\.\w+)*.*$")


class JarsMissing(LinkRefused):
    """Jars can't be had: no Java, no such coordinate, no way to the repository, or a cache that can't be
    written."""


def resolve(coordinate: str, exclude: Sequence[str] = ()) -> list[Path]:
    """The jar of a Maven coordinate and all that it needs at run time, as absolute paths sorted by name.

    `coordinate` is `group:artifact:version`; `exclude` holds `group:artifact` patterns (`*` allowed) to leave
    out, with what only they need. Of a coordinate that runs inside Spark (`DELTA`) the artifacts that Spark
    ships are left out. The first call needs the network; later ones, by any process, read one small file.
    Raises JarsMissing.
    """
    if not _COORDINATE.fullmatch(coordinate):
        raise JarsMissing(f"{coordinate!r} is no Maven coordinate: expected group:artifact:version")
    excluded = _left_out(coordinate, exclude)
    if wrong := [pattern for pattern in excluded if pattern.count(":") != 1]:
        raise JarsMissing(f"{wrong[0]!r} excludes nothing: expected group:artifact")
    folder = cache_folder() / _folder_name(coordinate, excluded)
    if (found := _complete(folder)) is not None:
        return found
    try:
        with _locked(folder.parent):
            # Whoever held the lock before may just have fetched the same.
            if (found := _complete(folder)) is not None:
                return found
            _fetch(coordinate, excluded, folder)
    except OSError as error:
        raise JarsMissing(
            f"{coordinate}: {error}; the jars go to {folder.parent}, VERBATIM_JARS names another folder"
        ) from error
    found = _complete(folder)
    if found is None:
        raise JarsMissing(f"{coordinate}: its jars vanished from {folder} while they were being fetched")
    return found


def known(coordinate: str) -> list[Path]:
    """What `resolve` gives where that needs no network; [] where it does."""
    return _complete(cache_folder() / _folder_name(coordinate, _left_out(coordinate))) or []


def classpath(*coordinates: str) -> str:
    """A class path of several coordinates' jars. What they share, in one version each, stands there once."""
    jars: dict[str, Path] = {}
    for coordinate in coordinates:
        for jar in resolve(coordinate):
            jars.setdefault(jar.name, jar)
    return os.pathsep.join(map(str, jars.values()))


def cache_folder() -> Path:
    """Where jars are kept: VERBATIM_JARS, else `verbatim/jars` in the user's cache folder (XDG base
    directories)."""
    if given := os.environ.get("VERBATIM_JARS"):
        return Path(given).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "verbatim" / "jars"


def java() -> str:
    """The Java launcher: that of JAVA_HOME, else the PATH's, as Spark chooses it. Raises JarsMissing."""
    if home := os.environ.get("JAVA_HOME"):
        return str(Path(home, "bin", "java"))
    if found := shutil.which("java"):
        return found
    raise JarsMissing("no java found: install Java 17 or newer, or set JAVA_HOME")


def shipped_by_spark() -> list[str]:
    """`*:artifact` for each jar in pyspark's own folder."""
    names = {_VERSION_SUFFIX.sub("", jar.stem) for jar in spark_jars().glob("*.jar")}
    return [f"*:{name}" for name in sorted(names)]


def spark_jars() -> Path:
    """The folder of the jars that pyspark brings."""
    # Without importing it: that takes half a second.
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise JarsMissing("pyspark is not installed")
    return Path(found.origin).parent / "jars"


def _left_out(coordinate: str, exclude: Sequence[str] = ()) -> list[str]:
    return sorted({*exclude, *(shipped_by_spark() if coordinate in _INSIDE_SPARK else ())})


def _folder_name(coordinate: str, excluded: Sequence[str]) -> str:
    name = coordinate.replace(":", "_")
    if not excluded:
        return name
    # The list follows Spark's version, so another Spark gets another folder.
    return f"{name}-{hashlib.sha256(json.dumps(list(excluded)).encode()).hexdigest()[:8]}"


def _complete(folder: Path) -> list[Path] | None:
    try:
        sizes: dict[str, int] = json.loads((folder / _MARKER).read_text())
    except (OSError, ValueError):
        return None
    jars = [folder / name for name in sorted(sizes)]
    if any(not jar.is_file() or jar.stat().st_size != sizes[jar.name] for jar in jars):
        return None
    return jars


@contextlib.contextmanager
def _locked(cache: Path) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / ".lock", "w") as lock:
        # Closing the file, or the end of the process however it comes, gives the lock back.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(coordinate: str, excluded: Sequence[str], folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as scratch:
        work, jars = Path(scratch), Path(scratch, "jars")
        jars.mkdir()
        _run_ivy(coordinate, excluded, work, jars)
        sizes = {jar.name: jar.stat().st_size for jar in jars.glob("*.jar")}
        artifact = coordinate.split(":")[1]
        if not any(artifact in name for name in sizes):
            raise JarsMissing(f"{coordinate} was resolved without a jar of its own")
        (jars / _MARKER).write_text(json.dumps(sizes, indent=1, sort_keys=True))
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(jars, folder)


def _run_ivy(coordinate: str, excluded: Sequence[str], work: Path, jars: Path) -> None:
    settings, module = work / "ivysettings.xml", work / "ivy.xml"
    settings.write_text(_ivy_settings(work / "cache"))
    module.write_text(_ivy_module(coordinate, excluded))
    ivy = sorted(spark_jars().glob("ivy-*.jar"))
    if not ivy:
        raise JarsMissing(f"{coordinate}: pyspark holds no Ivy to fetch it with; reinstall pyspark")
    pattern = jars / "[organisation]_[artifact]-[revision](-[classifier]).[ext]"
    command = [java(), f"-Duser.home={work}", "-cp", str(ivy[-1]), "org.apache.ivy.Main"]
    command += ["-settings", str(settings), "-ivy", str(module), "-confs", "default"]
    command += ["-retrieve", str(pattern), "-types", "jar", "bundle", "-warn"]
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            cwd=work,
        )
    except subprocess.TimeoutExpired as error:
        raise JarsMissing(f"{coordinate} could not be fetched within {_TIMEOUT_S} s") from error
    if done.returncode != 0:
        reason = _reason(done.stdout + done.stderr)
        raise JarsMissing(
            f"{coordinate} could not be fetched: {reason}; check the coordinate and the network, or name a Maven "
            "repository in DEFAULT_ARTIFACT_REPOSITORY"
        )


def _ivy_settings(cache: Path) -> str:
    # Without a root this resolver asks Maven Central.
    mirror = os.environ.get("DEFAULT_ARTIFACT_REPOSITORY")
    root = f" root={quoteattr(mirror.rstrip('/') + '/')}" if mirror else ""
    return f"""<ivysettings>
  <settings defaultResolver="maven"/>
  <caches defaultCacheDir={quoteattr(str(cache))}/>
  <resolvers><ibiblio name="maven" m2compatible="true"{root}/></resolvers>
</ivysettings>
"""


def _ivy_module(coordinate: str, excluded: Sequence[str]) -> str:
    group, artifact, version = coordinate.split(":")
    rules = "\n    ".join(
        f"<exclude org={quoteattr(org)} module={quoteattr(name)}/>"
        for org, name in (pattern.split(":") for pattern in excluded)
    )
    return f"""<ivy-module version="2.0">
  <info organisation="verbatim" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)} conf="default->default"/>
    {rules}
  </dependencies>
</ivy-module>
"""


def _reason(output: str) -> str:
    """The line of Ivy's output that says most: it prints a page of warnings for one artifact that isn't
    there."""
    lines = [line.strip(" \t:") for line in output.splitlines()]
    for sign in ("not found", "download failed", "unresolved dependency", "exception", "error"):
        if hits := [
            line for line in lines if sign in line.lower() and line.lower() != "unresolved dependencies"
        ]:
            return hits[0]
    return next((line for line in reversed(lines) if line), "Ivy gave no reason")


def main() -> None:
    try:
        for coordinate in ALL:
            jars = resolve(coordinate)
            size_mb = sum(jar.stat().st_size for jar in jars) / 1e6
            print(f"{coordinate}: {len(jars)} jars, {size_mb:.0f} MB, {jars[0].parent}")
    except JarsMissing as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
