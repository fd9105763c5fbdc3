"""A lock for what lies in a folder, held by one process of the machine at a time."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from common.errors import StateError


@contextlib.contextmanager
def file_lock(folder: Path, deadline: float) -> Iterator[None]:
    """The lock of what lies in a folder. It holds on a volume of several machines too (NFS 4 and the
    like)."""
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(folder / ".lock", "w"))
            while not _got(file):
                if time.monotonic() > deadline:
                    raise StateError(f"{folder} is being written by another process")
                time.sleep(0.05)
        except OSError as error:
            raise StateError(f"{folder} can't be locked: {error.strerror}") from error
        yield


def _got(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
