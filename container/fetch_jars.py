"""Resolves the image's jars when it is built: the project's into VERBATIM_JARS, others flat into a folder of
their own.

    python container/fetch_jars.py [--extra "GROUP:ARTIFACT:VERSION ..." --extra-folder DIR] [DELTA KAFKA
    KAFKA_LOGGING]

The names are those of common/spark/jars.py. Extra jars must not lie in pyspark's own folder: what is there
decides which jars DELTA leaves out, and so in which folder it is looked for.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.spark import jars

NAMES = {"DELTA": jars.DELTA, "KAFKA": jars.KAFKA, "KAFKA_LOGGING": jars.KAFKA_LOGGING}


def named(name: str) -> str:
    """The coordinate of that name. Not argparse's `choices`, which refuses no name at all."""
    if name not in NAMES:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(NAMES)}")
    return NAMES[name]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--extra", default="", metavar="COORDINATES", help="space-separated")
    parser.add_argument("--extra-folder", type=Path, default=Path("extra-jars"), metavar="DIR")
    parser.add_argument("names", nargs="*", type=named, metavar="NAME", help=", ".join(NAMES))
    given = parser.parse_args()
    try:
        for coordinate in given.names:
            print(f"{coordinate}: {len(jars.resolve(coordinate))} jars")
        given.extra_folder.mkdir(parents=True, exist_ok=True)
        for coordinate in given.extra.split():
            # Two versions of a class on one class path are a riddle for later: what Spark ships stays out.
            found = jars.resolve(coordinate, exclude=jars.shipped_by_spark())
            for jar in found:
                shutil.move(jar, given.extra_folder / jar.name)
            shutil.rmtree(found[0].parent)
            print(f"{coordinate}: {len(found)} jars")
    except jars.JarsMissing as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
