"""A site's configuration changes the defaults of keywords, and a keyword that the caller passes wins.

Modules: arguments, writer.
"""

import os
import subprocess
import sys
from pathlib import Path

import dask
import dask.dataframe as dd
import pandas as pd
import pytest
import yaml

import dask_tfrecord
from dask_tfrecord import SchemaError, TFRecordError, arguments, read_tfrecord, to_tfrecord

FILE = Path(arguments.__file__).with_name("dask-tfrecord.yaml")


def numbers(npartitions: int = 2) -> dd.DataFrame:
    return dd.from_pandas(pd.DataFrame({"n": range(8)}), npartitions=npartitions)


def test_the_configuration_has_what_the_file_documents() -> None:
    assert dask.config.get("dask-tfrecord") == yaml.safe_load(FILE.read_text())["dask-tfrecord"]


def test_the_compression_is_read_when_a_write_is_called(tmp_path: Path) -> None:
    with dask.config.set({"dask-tfrecord.compression": "gzip"}):
        assert to_tfrecord(numbers(), tmp_path / "a").compression == "gzip"
    assert to_tfrecord(numbers(), tmp_path / "b").compression is None


def test_a_keyword_wins_over_the_configuration(tmp_path: Path) -> None:
    with dask.config.set({"dask-tfrecord.compression": "gzip", "dask-tfrecord.blocksize": "1 MiB"}):
        assert to_tfrecord(numbers(), tmp_path, compression=None).compression is None
        assert read_tfrecord(tmp_path, blocksize=None).npartitions == 2
        assert read_tfrecord(tmp_path).npartitions == 1


def test_the_configuration_can_ask_for_one_partition_per_file(tmp_path: Path) -> None:
    to_tfrecord(numbers(), tmp_path)
    with dask.config.set({"dask-tfrecord.blocksize": None}):
        assert read_tfrecord(tmp_path).npartitions == 2


def test_a_site_can_refuse_rounding(tmp_path: Path) -> None:
    ddf = dd.from_pandas(pd.DataFrame({"x": [0.1]}), npartitions=1)
    with dask.config.set({"dask-tfrecord.lossy": "raise"}):
        with pytest.raises(SchemaError, match="lossy"):
            to_tfrecord(ddf, tmp_path)
        to_tfrecord(ddf, tmp_path, lossy="allow")


def test_a_site_can_repeat_failed_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, object]] = []

    def compute(result: object, run: object, kwargs: object, retries: int | None) -> None:
        seen.append({"retries": retries})

    monkeypatch.setattr("dask_tfrecord.writer._compute", compute)
    with dask.config.set({"dask-tfrecord.retries": 3}):
        to_tfrecord(numbers(), tmp_path)
        to_tfrecord(numbers(), tmp_path, retries=0)
    assert seen == [{"retries": 3}, {"retries": 0}]


@pytest.mark.parametrize(
    ("key", "value"), [("compression", "zip"), ("lossy", "maybe"), ("retries", -1), ("blocksize", "big")]
)
def test_a_bad_value_raises_an_error_that_names_the_key(tmp_path: Path, key: str, value: object) -> None:
    to_tfrecord(numbers(), tmp_path / "a")
    with dask.config.set({f"dask-tfrecord.{key}": value}), pytest.raises(TFRecordError) as caught:
        read_tfrecord(tmp_path / "a").to_tfrecord(tmp_path / "b")
    assert f"{value!r} of 'dask-tfrecord.{key}' in Dask's configuration" in str(caught.value)
    assert f"pass {key}=" in str(caught.value)


def test_environment_variables_set_the_defaults(tmp_path: Path) -> None:
    to_tfrecord(numbers(), tmp_path / "a")
    code = (
        "import dask_tfrecord\n"
        "ddf = dask_tfrecord.read_tfrecord('a')\n"
        "print(ddf.npartitions, dask_tfrecord.to_tfrecord(ddf, 'b').compression)\n"
    )
    variables = {"DASK_DASK_TFRECORD__BLOCKSIZE": "None", "DASK_DASK_TFRECORD__COMPRESSION": "zlib"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["2", "zlib"]


def test_every_key_of_a_call_is_a_keyword_and_is_documented() -> None:
    page = (Path(__file__).parent.parent / "docs" / "cluster.md").read_text()
    for key in dask.config.get("dask-tfrecord").keys() - {"memory-pool"}:  # of a process, not of a call
        assert f"({key.replace('-', '_')}=)" in FILE.read_text()
        assert f"`{key}`" in page
        assert f"``dask-tfrecord.{key}``" in f"{to_tfrecord.__doc__}{dask_tfrecord.read_tfrecord.__doc__}"
