"""Column files and snapshots lie where readers that list directories do not look.

Modules: files.column_files, files.entry.
"""

import os
import warnings
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest

import dask_tfrecord
from dask_tfrecord import to_tfrecord

ROWS = 60


@pytest.fixture(params=[None, "gzip"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A dataset with column files after an append, a delete and a compaction that keep old versions."""
    path = tmp_path / "data set"
    frame = pd.DataFrame({"id": range(ROWS), "key": [("a", "b c", "ü=x")[n % 3] for n in range(ROWS)]})
    frame["image"] = pd.array([bytes([n]) * 50 for n in range(ROWS)], pd.ArrowDtype(pa.binary()))
    options: dict[str, Any] = {"partition_on": "key", "compression": request.param, "keep_versions": True}
    to_tfrecord(dd.from_pandas(frame[:40], npartitions=2), path, columnar=["id"], **options)
    to_tfrecord(dd.from_pandas(frame[40:], npartitions=1), path, append=True, **options)
    dask_tfrecord.delete(path, filters=[("id", "==", 7)], keep_versions=True)
    dask_tfrecord.compact(path, keep_versions=True)
    return path


EXPECTED = [n for n in range(ROWS) if n != 7]


def listed(path: Path) -> list[Path]:
    """The files that Hadoop lists: no name of a directory or file begins with an underscore or a dot."""
    found = [one for one in path.rglob("*") if one.is_file()]
    return [one for one in found if not any(name[0] in "_." for name in one.relative_to(path).parts)]


@pytest.mark.tensorflow
def test_tensorflow_reads_the_files_of_a_listing(dataset: Path) -> None:
    files = sorted(map(str, listed(dataset)))
    assert len([*dataset.rglob("_tfrecord/columns/*.parquet")]) > 1
    assert all(".tfrecord" in Path(one).name for one in files)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow as tf
    kind = "GZIP" if files[0].endswith(".gz") else ""
    spec = {"id": tf.io.FixedLenFeature([], tf.int64), "image": tf.io.FixedLenFeature([], tf.string)}
    records = tf.data.TFRecordDataset(files, kind).batch(ROWS).map(lambda one: tf.io.parse_example(one, spec))
    [batch] = records.as_numpy_iterator()
    rows = sorted(zip(batch["id"].tolist(), batch["image"], strict=True))
    assert rows == [(n, bytes([n]) * 50) for n in EXPECTED]


@pytest.mark.filterwarnings("ignore")  # PySpark leaves sockets open
def test_spark_reads_the_rows(dataset: Path) -> None:
    """Runs where PySpark is installed, and SPARK_TFRECORD_JAR names the jar of Spark-TFRecord."""
    sql = pytest.importorskip("pyspark.sql")
    if not (jar := os.environ.get("SPARK_TFRECORD_JAR")):
        pytest.skip("the jar of Spark-TFRecord is not known")
    options = {"spark.driver.extraClassPath": jar, "spark.ui.enabled": "false"}
    spark = sql.SparkSession.builder.master("local[1]").config(map=options).getOrCreate()
    reader = spark.read.format("tfrecord").option("recordType", "Example")
    rows = reader.schema("id bigint, image binary, key string").load(str(dataset)).collect()
    spark.stop()
    expected = [(n, bytes([n]) * 50, ("a", "b c", "ü=x")[n % 3]) for n in EXPECTED]
    assert sorted(map(tuple, rows)) == expected
