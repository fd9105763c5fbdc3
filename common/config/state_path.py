"""Pure: what STATE_PATH means, the one place that says so: as Spark (Hadoop) gets it, and as this machine's
disk has it.

As in Hadoop's own reading of a path, nothing in it is decoded: `%20`, `#` and `?` stand for themselves, in a
URL too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from common.errors import SettingsError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)
_S3 = ("s3", "s3a", "s3n")
"""Schemes for which Delta takes a LogStore that is for one driver, for it asks S3 for no conditional
write."""
ONE_DRIVER, VOLUME = "one-driver", "shared-volume"
"""What STATE_SHARING may say."""


class StatePath(NamedTuple):
    """`hadoop`: in the one spelling that Hadoop gives back, so that Delta never meets two of one place.
    `local`: the folder, if it is this machine's."""

    scheme: str
    hadoop: str
    local: Path | None

    @property
    def shown(self) -> str:
        """For messages."""
        return redacted(self.hadoop)

    def child(self, name: str) -> StatePath:
        """A folder in it."""
        return StatePath(
            self.scheme, f"{self.hadoop.rstrip('/')}/{name}", self.local / name if self.local else None
        )


def parse(given: str) -> StatePath:
    """What a path or a URL means; a relative path begins where the process was started. Raises
    SettingsError."""
    found = _URL.fullmatch(given)
    if found is None:
        return _local(given)
    scheme, rest = found[1].lower(), found[2]
    if not rest.startswith("/"):
        raise SettingsError(
            f"STATE_PATH: {scheme}: is not followed by a slash; write {scheme}:///... for a URL, ./{scheme}:... for a folder"
        )
    authority, path = "", rest
    if rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        path = slash + path
    if scheme != "file":
        place = f"//{authority}" if authority else ""
        return StatePath(scheme, f"{scheme}:{place}{_tidy(path)}", None)
    if authority:
        raise SettingsError(
            f"STATE_PATH: file://{authority}/ names a machine; a path on this one is file:///..."
        )
    return _local(path)


def check_writers(given: str, sharing: str, spark_conf: Mapping[str, str]) -> None:
    """Raise SettingsError where two drivers would overwrite each other's commits.

    A Delta commit is a file that must not be there yet. On S3 drivers A and B both see version 7 and both
    write version 8: what A has folded is gone, though it was told that it is there.
    """
    place = parse(given)
    log_store = f"spark.delta.logStore.{place.scheme}.impl"
    own = spark_conf.get(log_store, spark_conf.get("spark.delta.logStore.class", ""))
    if place.scheme not in _S3 or sharing == ONE_DRIVER or (own and "SingleDriver" not in own):
        return
    raise SettingsError(
        f"STATE_PATH: {place.shown}: on S3 Delta lets two drivers overwrite each other's commits; name a LogStore for several writers "
        f"(--conf {log_store}=io.delta.storage.S3DynamoDBLogStore), or say STATE_SHARING={ONE_DRIVER} where there is never a second instance"
    )


def redacted(path: str) -> str:
    """Without the password that an older Hadoop took in a URL."""
    return re.sub(r"//[^/@]*:[^/@]*@", "//[hidden]@", path)


def _local(path: str) -> StatePath:
    # With its scheme, or it would be a path of whatever fs.defaultFS names.
    folder = _tidy(os.path.abspath(path))
    return StatePath("file", f"file:{folder}", Path(folder))


def _tidy(path: str) -> str:
    return re.sub(r"/+", "/", path).rstrip("/") or "/"
