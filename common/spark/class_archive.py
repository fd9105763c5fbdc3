"""Archives of a JVM's loaded classes (class data sharing): with one, Spark and a broker start with half the
CPU. Starts no JVM.

A JVM that ran with `recording` writes its archive when it ends; `keep` puts it where `options` finds it. The
JVM checks every jar's size and time itself, and goes on without the archive where one differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from common.spark import jars

# Of archives alone, and only that one can't be used: that costs time and nothing else.
_SILENT = "-Xlog:cds*=off"
_FLAGS = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-Xshare")


def archive(class_path: str) -> Path:
    """Where the archive lies that was recorded with the jars of this class path and this Java. Raises
    JarsMissing without Java."""
    there = filter(Path.is_file, map(Path, class_path.split(os.pathsep)))
    # Whole seconds, as the JVM compares them: an image's layers keep no fractions.
    files = [(str(jar), (found := jar.stat()).st_size, int(found.st_mtime)) for jar in there]
    launcher = Path(shutil.which(jars.java()) or jars.java()).resolve()
    release = launcher.parent.parent / "release"
    version = release.read_text() if release.is_file() else ""
    key = hashlib.sha256(json.dumps([str(launcher), version, files]).encode()).hexdigest()[:16]
    return jars.cache_folder() / f"classes-{key}.jsa"


def of_spark(extra_class_path: str) -> Path:
    """Where the archive of a driver's JVM lies that has this class path beside pyspark's own jars."""
    return archive(os.pathsep.join([extra_class_path, *map(str, sorted(jars.spark_jars().glob("*.jar")))]))


def options(found: Path, given: str) -> tuple[str, ...]:
    """The JVM's options that use an archive; none where there is no such archive yet, or the options `given`
    are about archives too."""
    if any(flag in given for flag in _FLAGS) or not found.is_file():
        return ()
    return (f"-XX:SharedArchiveFile={found}", _SILENT)


def recording(found: Path, to: Path) -> tuple[str, ...]:
    """The JVM's options that write an archive at its end, which then takes some seconds longer; none where
    there is one already."""
    return () if found.is_file() else (f"-XX:ArchiveClassesAtExit={to}", _SILENT)


def keep(recorded: Path, at: Path) -> None:
    """Put a recorded archive where it is looked for, whole or not at all. Raises OSError."""
    at.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".classes-", dir=at.parent)
    os.close(handle)
    try:
        shutil.copyfile(recorded, temporary)
        Path(temporary).chmod(0o644)
        os.replace(temporary, at)
    finally:
        Path(temporary).unlink(missing_ok=True)
