"""A page cache that has all memory, as on a machine on which brokers have run for a while."""

from __future__ import annotations

import os
from pathlib import Path

_PIECE = 8 << 20


def free_bytes() -> int:
    """Memory that nothing has, the page cache neither."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def fill(file: Path, size: int) -> None:
    """Read a file of holes, of so many bytes at least, so that the page cache has it: made where it is
    missing, and larger where it is smaller. What it had of it is read again, which takes 0.1 s a GiB. Who
    writes gets these pages.

    A virtual machine gives free memory back to its host, seconds after it became free, and gets it again
    page by page. What a broker wrote cost it 7 us for each 4 KiB so: of 10 KB, 35 us a record and not 22. On
    a tmpfs this does nothing.
    """
    with file.open("ab") as growing:
        growing.truncate(max(growing.tell(), size))
    piece = memoryview(bytearray(_PIECE))
    with file.open("rb", buffering=0) as holes:
        while holes.readinto(piece):
            pass
