"""How the state tables are laid out, and how Spark is told rows and says what went wrong; knows no path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

STATE_DDL = (
    "kind string, mappings_partition int, cluster string, topic string, topic_id string, partition int, "
    "next bigint, destination_topic string, destination_partition int, records bigint, duplicates bigint, "
    "lost bigint, mappings_offset bigint, folded bigint, staging_offset bigint, hole bigint, updated timestamp, pipeline bigint"
)
"""kind "source": a source partition; mappings_offset is the last mapping folded into it. kind "mappings": a
partition of the mappings topic (`partition` too is its number; cluster and topic_id are ""): folded is M,
hole as in Snapshot."""
PIPELINE = "pipeline"
"""A column of both tables, where the link ever had a pipeline. Others stay as earlier releases know them."""

STATE_PROPERTIES = {
    "delta.isolationLevel": "Serializable",
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": "20",
    # A commit a minute, and nobody travels back in time here. (A reader is done within seconds.)
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
HISTORY_PROPERTIES = {
    **STATE_PROPERTIES,
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.dataSkippingNumIndexedCols": "10",
}


def struct(ddl: str) -> StructType:
    """A row's schema; fromDDL also reads the DDL of other types, and says DataType."""
    from pyspark.sql.types import StructType

    return cast("StructType", StructType.fromDDL(ddl))


def local(spark: SparkSession, rows: list[dict[str, Any]], schema: StructType) -> DataFrame:
    """Rows as a local relation: Delta takes it for deterministic and reads it without a job of its own."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    return spark.createDataFrame(
        pa.Table.from_pylist(rows, schema=to_arrow_schema(schema, timezone="UTC")), schema
    )


def first_line(error: Exception) -> str:
    """The line of a Spark error that says what happened: a task's traceback ends with it, a Java one begins
    with it."""
    lines = [
        line.strip()
        for line in str(error).splitlines()
        if line.strip() and not line.strip().startswith("at ")
    ]
    telling = [
        line for line in lines if "common.errors." in line or "raise_error" in line or "USER_RAISED" in line
    ]
    return (telling or lines or [type(error).__name__])[0][:500]
