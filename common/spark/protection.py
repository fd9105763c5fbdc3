"""Pure: the Spark properties that keep others out of what Spark's processes say to each other."""

from __future__ import annotations

from collections.abc import Mapping

from common.config.checks import on_one_machine
from common.errors import SettingsError

_SECRET = "spark.authenticate.secret"  # noqa: S105 - its name


def protect(conf: dict[str, str], environ: Mapping[str, str]) -> None:
    """Have Spark's processes prove who they are to each other and encrypt what they say, where they are on
    several machines.

    YARN and Kubernetes hand a secret to executors that Spark makes up for each application; a standalone
    cluster's daemons must have it before.
    """
    master = conf["spark.master"]
    if on_one_machine(master):
        return
    if conf.setdefault("spark.authenticate", "true").strip().lower() != "true":
        return
    if conf.get("spark.ssl.rpc.enabled", "false").strip().lower() != "true":
        conf.setdefault("spark.network.crypto.enabled", "true")
    if master.startswith("spark://") and not (conf.get(_SECRET) or environ.get("_SPARK_AUTH_SECRET")):
        raise SettingsError(
            f"{_SECRET}: not set; drivers of {master} need the secret of its masters and workers (in spark-defaults.conf under SPARK_CONF_DIR); "
            "spark.authenticate=false goes without, and lets plans and progress go in clear"
        )
