"""What the logger ``dask_tfrecord`` reports of reads and writes, and what the logs of workers show.

Modules: writer, dataset.write.transaction.
"""

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
import s3fs
from distributed import Client
from servers import s3_server

from dask_tfrecord import SchemaError, cleanup, index, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.write import transaction

pytestmark = pytest.mark.usefixtures("one_thread")


def numbers() -> dd.DataFrame:
    return dd.from_pandas(pd.DataFrame({"n": range(20)}), npartitions=4)


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


@pytest.fixture(autouse=True)
def debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dask_tfrecord")


def test_a_write_logs_its_plan_each_step_of_the_commit_and_a_summary(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot = to_tfrecord(numbers(), tmp_path, compression="gzip")
    found = messages(caplog)
    assert all(text.startswith(f"{tmp_path}: write {snapshot.run[:8]}: ") for text in found)
    actions = [text.split(": ", 2)[2] for text in found]
    assert actions[0] == "planned: mode create after version 0, 4 partitions, 1 columns, compression gzip"
    steps = [re.match(r"commit step (\d) of 7: ", text) for text in actions]
    assert [int(step[1]) for step in steps if step] == [1, 2, 3, 4, 5, 6, 7]
    assert "committed version 1" in actions
    assert re.fullmatch(
        rf"done: version 1, 4 files, 20 rows, {snapshot.bytes} bytes in \d+\.\d s \(\d+ rows/s\)", actions[-1]
    )


def test_the_steps_are_those_of_the_specification() -> None:
    page = (Path(__file__).parent.parent / "docs" / "format.md").read_text()
    steps = re.findall(r"^(\d)\. \*\*", page.split("### The commit")[1].split("### ")[0], re.MULTILINE)
    assert steps == [str(number) for number in range(1, transaction._STEPS + 1)]


def test_the_summary_counts_what_the_write_added(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    to_tfrecord(numbers(), tmp_path)
    caplog.clear()
    to_tfrecord(numbers(), tmp_path, append=True)
    assert "done: version 2, 4 files, 20 rows" in messages(caplog)[-1]


def test_each_file_has_a_line_for_debugging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    snapshot = to_tfrecord(numbers(), tmp_path)
    written = messages(caplog, logging.DEBUG)
    title = f"{tmp_path}: write {snapshot.run[:8]}: wrote"
    assert sorted(written) == [f"{title} {file.path}: 5 rows, 150 bytes" for file in snapshot.files]
    caplog.clear()
    ddf = read_tfrecord(tmp_path)
    assert messages(caplog) == [
        f"{tmp_path}: read planned: 4 files, 20 rows, 600 bytes, 1 partitions, version 1, columns: n"
    ]
    ddf.compute()
    assert messages(caplog, logging.DEBUG) == [
        f"{tmp_path}/{file.path}: read 5 rows from byte 0" for file in snapshot.files
    ]


def test_a_failed_write_logs_an_error_and_the_removal_of_its_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = pd.array([[1], [None]], pd.ArrowDtype(pa.list_(pa.int64())))
    with pytest.raises(SchemaError):
        to_tfrecord(dd.from_pandas(pd.DataFrame({"n": values}), npartitions=1), tmp_path)
    [failed] = messages(caplog, logging.ERROR)
    assert re.search(r"failed after \d+\.\d s: SchemaError\(", failed)
    assert messages(caplog)[-1].endswith("remove what the failed write staged")


def test_cleanup_and_index_log_what_they_did(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    snapshot = to_tfrecord(numbers(), tmp_path / "a")
    (tmp_path / "b").mkdir()
    for file in snapshot.files:
        (tmp_path / "a" / file.path).rename(tmp_path / "b" / file.path)
    staging = tmp_path / "a" / "_tfrecord" / "staging" / ("0" * 32)
    staging.mkdir(parents=True)
    (staging / "started").touch()
    caplog.clear()
    assert len(cleanup(tmp_path / "a", older_than="0 s")) == 1
    assert messages(caplog) == [
        f"{tmp_path}/a: remove 1 files of the interrupted write 00000000",
        f"{tmp_path}/a: cleanup removed 1 files",
    ]
    index(tmp_path / "b")
    assert f"{tmp_path}/b: index stored version 1: Snapshot(4 files, 20 records, " in messages(caplog)[-1]


def test_the_log_has_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    with s3_server() as options:
        s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket="bucket")
        place = "s3://bucket/data"
        snapshot = to_tfrecord(numbers(), place, storage_options=options)
        read_tfrecord(place, storage_options=options).compute()
        with pytest.raises(ValueError, match="hunter2"):
            numbers().map_partitions(fail, options["secret"], meta=numbers()._meta).to_tfrecord(
                place, overwrite=True, storage_options=options, retries=0
            )
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("dask_tfrecord")]
    assert any(f"{place}: write {snapshot.run[:8]}: done" in text for text in ours)
    assert any("failed after" in text and "***" in text for text in ours)
    assert not any("hunter2" in text for text in ours)


def fail(part: pd.DataFrame, secret: str) -> pd.DataFrame:
    raise ValueError(f"cannot log in with {secret}")


def test_the_log_of_a_worker_shows_the_whole_message_of_an_error(tmp_path: Path, client: Client) -> None:
    snapshot = to_tfrecord(numbers(), tmp_path)
    path = tmp_path / snapshot.files[2].path
    content = bytearray(path.read_bytes())
    content[15] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="record 0") as caught:
        read_tfrecord(tmp_path).compute(scheduler=client)
    logs = "\n".join(text for lines in client.get_worker_logs().values() for _, text in lines)
    assert str(caught.value) in logs
    assert f"{path}, record 0 (byte 0)" in repr(caught.value)
    assert str(caught.value.remedies[0]) in repr(caught.value)


_SCRIPT = """
if __name__ == "__main__":
    import dask.dataframe as dd
    from distributed import Client, LocalCluster
    import dask_tfrecord
    cluster = LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", silence_logs=False)
    with cluster, Client(cluster):
        dask_tfrecord.to_tfrecord(dd.from_dict({"n": [1, 2]}, npartitions=2), "a")
"""


def test_an_environment_variable_shows_the_messages_of_client_and_worker(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(_SCRIPT)
    result = subprocess.run(
        [sys.executable, "job.py"],
        cwd=tmp_path,
        env={**os.environ, "DASK_LOGGING__DASK_TFRECORD": "debug"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in result.stderr.splitlines() if " - dask_tfrecord." in line]
    assert any("dask_tfrecord.writer - INFO" in line and "planned" in line for line in lines)
    assert any(
        "transaction - INFO" in line and "commit step 6 of 7: create version 1" in line for line in lines
    )
    assert sum("run - DEBUG" in line for line in lines) == 2
    assert any(": done: version 1, 2 files, 2 rows" in line for line in lines)


def test_nothing_is_printed_unless_the_application_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Without a handler, Python prints warnings and errors to stderr.
    monkeypatch.setattr(logging.root, "handlers", [])
    with pytest.raises(SchemaError):
        to_tfrecord(dd.from_dict({"n": [[1, None]]}, npartitions=1), tmp_path)
    assert capsys.readouterr().err == ""
