"""The page cache has what it was filled with."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from pathlib import Path

import pytest

from bench import page_cache

MIB = 1 << 20


def cached(file: Path) -> int:
    """MiB of a file that the page cache has, by mincore(2)."""
    size = file.stat().st_size
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), size) as mapped:
        first = ctypes.byref(ctypes.c_char.from_buffer(mapped))
        pages = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
        assert ctypes.CDLL(None).mincore(first, ctypes.c_size_t(size), pages) == 0
        del first
        return sum(page & 1 for page in pages) * mmap.PAGESIZE // MIB


def forget(file: Path) -> None:
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_all_of_the_file_is_there_however_often_it_is_dropped_and_it_grows(tmp_path: Path) -> None:
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True)
    if kind.stdout.strip() == "tmpfs":
        pytest.skip("holes of a tmpfs take no memory")
    holes = tmp_path / "holes"
    page_cache.fill(holes, 20 * MIB)
    assert cached(holes) == 20
    forget(holes)
    assert cached(holes) < 20
    page_cache.fill(holes, 5 * MIB)
    assert cached(holes) == 20
    page_cache.fill(holes, 30 * MIB)
    assert cached(holes) == 30


def test_it_takes_no_place_on_the_disk(tmp_path: Path) -> None:
    holes = tmp_path / "holes"
    page_cache.fill(holes, 20 * MIB)
    assert holes.stat().st_blocks * 512 < MIB


def test_what_is_free_is_less_than_all_there_is() -> None:
    all_there_is = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < page_cache.free_bytes() < all_there_is
