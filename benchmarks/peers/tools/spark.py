"""Run Spark-TFRecord, if the user names its jar. Spark runs in a JVM on all cores.

`mvn -Pscala-2.12 clean install` in the repository of Spark-TFRecord makes the jar. That of the stored figures
is Spark-TFRecord 0.7.0 (commit 5bc46ee), compiled with Scala 2.12.18 and protobuf 4.32.1.
"""

import os
from typing import Any

from benchmarks.peers.tools import Pass, Used, Ways, Work

USED = (
    Used(
        "the format `tfrecord` with a schema, on all cores of one JVM; reads go to Spark's sink that drops "
        "all rows",
        "https://github.com/linkedin/spark-tfrecord#usage-examples",
    ),
)
JAR = "SPARK_TFRECORD_JAR"
PARTITIONS = 8
_GZIP = "org.apache.hadoop.io.compress.GzipCodec"


def _spark() -> Any:
    from pyspark.sql import SparkSession

    # This option puts the jar before those of Spark, which contain protobuf 2.5.
    builder = SparkSession.builder.master("local[*]").config("spark.driver.extraClassPath", os.environ[JAR])
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "4g")
    return builder.config("spark.sql.execution.arrow.pyspark.enabled", "true").getOrCreate()


def _schema(work: Work) -> str:
    types = {"int": "bigint", "float": "float", "byte": "binary"}
    fields = []
    for name in work.columns:
        kind, values = work.features[name]
        fields.append(f"`{name}` " + (f"array<{types[kind]}>" if values else types[kind]))
    return ", ".join(fields)


def _reader(work: Work) -> Any:
    return _spark().read.format("tfrecord").option("recordType", "Example")


def read(work: Work) -> Pass:
    """Read into Spark's sink that drops all rows, as Spark's own benchmarks do."""

    def read_all(_: str) -> int:
        frame = _reader(work).schema(_schema(work)).load(work.paths())
        frame.write.format("noop").mode("overwrite").save()
        return work.rows

    _spark()
    return read_all


def count(work: Work) -> Pass:
    return lambda _: _reader(work).schema(_schema(work)).load(work.paths()).count()


def _frame(work: Work, columns: str = "*") -> Any:
    """Return the rows to write as a DataFrame that Spark holds in memory."""
    frame = _spark().createDataFrame(work.source().to_pandas()).repartition(PARTITIONS)
    frame = frame.selectExpr("*", columns) if columns != "*" else frame
    frame = frame.cache()
    frame.count()
    return frame


def write(work: Work) -> Pass:
    frame = _frame(work)

    def write_all(path: str) -> int:
        writer = frame.write.format("tfrecord").option("recordType", "Example")
        (writer.option("codec", _GZIP) if work.codec else writer).save(path)
        return work.rows

    return write_all


def write_partitioned(work: Work) -> Pass:
    frame = _frame(work, "user_id % 200 as key")

    def write_all(path: str) -> int:
        frame.write.partitionBy("key").format("tfrecord").option("recordType", "Example").save(path)
        return work.rows

    return write_all


WAYS: Ways = {"": {"read": read, "count": count, "write": write, "partition_on": write_partitioned}}
