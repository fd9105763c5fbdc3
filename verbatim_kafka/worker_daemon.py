"""Spark's daemon of Python workers as it is named to Spark, by a name that every Python of the environment
finds. Does nothing but begin it."""

from __future__ import annotations

from common.spark import worker_daemon

if __name__ == "__main__":
    worker_daemon.main()
