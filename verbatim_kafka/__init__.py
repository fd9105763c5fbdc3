"""What the distribution verbatim-kafka installs: the console scripts, and in `packages/` all else. Importing
it puts that first on the import path.

`common`, `verbatim` and the others are names that other distributions have too. Side by side in site-packages
they would overwrite each other's files, and whichever were removed first would take the other's along. Here
they lie below a name that is ours alone, and only our own processes look there: console scripts, and Spark's
Python workers (worker_daemon). In the repository these packages lie beside this one.
"""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
ROOT = _HERE / "packages" if (_HERE / "packages").is_dir() else _HERE.parent
"""The folder that holds our packages."""

# First: another `common` in site-packages, or where a command is started, is not meant.
sys.path[:] = [str(ROOT), *(entry for entry in sys.path if entry != str(ROOT))]
