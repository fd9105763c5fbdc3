"""Delta tables at a path, through Spark: opened, made, and whether there is one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from common.config import state_path
from common.errors import StateError
from deduplicator.state.delta_rows import struct

if TYPE_CHECKING:
    from delta.tables import DeltaTable


def open_table(spark: SparkSession, path: str) -> DeltaTable:
    from delta.tables import DeltaTable

    return DeltaTable.forPath(spark, path)


def made_table(
    spark: SparkSession,
    path: str,
    ddl: str,
    properties: Mapping[str, str],
    partitioned_by: str | None = None,
    without: Collection[str] = (),
) -> DeltaTable:
    """The table at `path`, made if missing: by a commit without data, so that data without a log means
    damage. One of an earlier release gets the columns that it lacks. `without`: columns that it need not
    have."""
    wanted = StructType([of for of in struct(ddl).fields if of.name not in without])
    if exists(spark, path):
        if set(wanted.names) <= set((found := open_table(spark, path)).toDF().columns):
            return found
        empty = spark.createDataFrame([], wanted)
        empty.write.format("delta").mode("append").option("mergeSchema", "true").save(path)
        return open_table(spark, path)
    from delta.tables import DeltaTable

    # Delta remembers the log of a table that was deleted under this session.
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(
        spark._jsparkSession, jvm.org.apache.hadoop.fs.Path(path)
    )
    builder = DeltaTable.createIfNotExists(spark).location(path).addColumns(wanted)
    for key, value in properties.items():
        builder = builder.property(key, value)
    if partitioned_by:
        builder = builder.partitionedBy(partitioned_by)
    return builder.execute()


def exists(spark: SparkSession, path: str) -> bool:
    """Whether there is a table. Raises StateError for data files without a log: what they hold can't be
    known."""
    jvm: Any = spark._jvm
    root = jvm.org.apache.hadoop.fs.Path(path)
    files = root.getFileSystem(spark._jsc.sc().hadoopConfiguration())
    if not files.exists(root):
        return False
    logs = jvm.org.apache.hadoop.fs.Path(root, "_delta_log")
    if files.exists(logs) and any(
        status.getPath().getName().endswith((".json", ".parquet")) for status in files.listStatus(logs)
    ):
        return True
    names = [status.getPath().getName() for status in files.listStatus(root)]
    if any(name.endswith(".parquet") or "=" in name for name in names):
        raise StateError(
            f"{state_path.redacted(path)} has data files but no Delta log; remove it, the mappings will be folded anew"
        )
    return False
