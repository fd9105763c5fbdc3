"""What goes on in a thread of its own while a test does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(main: Callable[[threading.Event], object], join_s: float = 30.0) -> Iterator[None]:
    """Runs `main` until the block ends, however it ends: then the event that it was given is set, and it is
    waited for."""
    over = threading.Event()
    thread = threading.Thread(target=main, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(join_s)
