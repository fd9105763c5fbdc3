"""A look-alike of S3 in this process, and the jars with which Hadoop speaks to it. Whoever asserts something
is elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3  # type: ignore[import-untyped]
from moto.server import ThreadedMotoServer

from common.spark import jars
from verbatim.local.processes import HOST

HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.5.0"
_SDK = "2.35.4"
"""Of the AWS SDK that this hadoop-aws goes with; its modules, for all of it in one jar are 600 MB."""
_MODULES = ("s3-transfer-manager", "sts")


def s3a_jars() -> list[Path]:
    """hadoop-aws and what it needs beside Spark's own jars."""
    spark = jars.shipped_by_spark()
    found = jars.resolve(HADOOP_AWS, ["software.amazon.awssdk:bundle", *spark])
    found += [
        jar for name in _MODULES for jar in jars.resolve(f"software.amazon.awssdk:{name}:{_SDK}", spark)
    ]
    return list({jar.name: jar for jar in found}.values())


def s3a_conf(endpoint: str) -> dict[str, str]:
    """The Spark properties with which `s3a://` means the look-alike."""
    hadoop = {
        "endpoint": endpoint,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "access.key": "key",
        "secret.key": "secret",
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }
    return {f"spark.hadoop.fs.s3a.{key}": value for key, value in hadoop.items()}


@contextmanager
def s3(bucket: str) -> Iterator[str]:
    """The endpoint of a server that has one bucket, empty."""
    server = ThreadedMotoServer(HOST, 0)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    try:
        boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="any",  # noqa: S106
        ).create_bucket(Bucket=bucket)
        yield endpoint
    finally:
        server.stop()
