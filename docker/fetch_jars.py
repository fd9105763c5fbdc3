"""Resolves jars when the image is built: into the folder that VERBATIM_JARS names, or straight onto Spark's class path.

    python docker/fetch_jars.py [--into-spark "GROUP:ARTIFACT:VERSION ..."] DELTA [KAFKA KAFKA_LOGGING]

The names are those of common/jars.py. What Spark ships itself is left out of --into-spark: two versions of a class on one
class path are a riddle for later.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common import jars

NAMES = {"DELTA": jars.DELTA, "KAFKA": jars.KAFKA, "KAFKA_LOGGING": jars.KAFKA_LOGGING}


def into_spark(coordinate: str) -> list[Path]:
    """Copy a coordinate's jars, less what Spark ships, into pyspark's folder; the copies. Raises JarsMissing."""
    import pyspark

    folder = Path(pyspark.__file__).parent / "jars"
    return [
        Path(shutil.copy(jar, folder)) for jar in jars.resolve(coordinate, exclude=jars.shipped_by_spark())
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into-spark", default="", metavar="COORDINATES", help="space-separated")
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=", ".join(NAMES))
    given = parser.parse_args()
    try:
        for name in given.names:
            print(f"{name}: {len(jars.resolve(NAMES[name]))} jars")
        if given.into_spark.split():
            # Not kept in VERBATIM_JARS: these are copied, and a second copy would only make the image larger. They come
            # last, for what lies in Spark's folder decides which jars a coordinate of the first kind leaves out.
            with tempfile.TemporaryDirectory() as folder:
                found = _resolve_into(Path(folder), given.into_spark.split())
            print(f"on Spark's class path: {', '.join(sorted(found))}")
    except jars.JarsMissing as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
