"""Commands of an operator's, for options that take some, which have done in this process what they are called
after."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.beside import beside


@contextmanager
def hooks(folder: Path, doing: Mapping[str, Callable[[], object]]) -> Iterator[list[str]]:
    """Options of commands that have done what they are called after; each ends once that is done."""

    def main(stop: threading.Event) -> None:
        while not stop.wait(0.02):
            for name, do in doing.items():
                if (folder / name).exists():
                    try:
                        do()
                    finally:
                        (folder / name).unlink()

    with beside(main, 5):
        yield [
            word
            for name in doing
            for word in (
                f"--{name}",
                f"touch {folder / name}; while test -e {folder / name}; do sleep 0.05; done",
            )
        ]
