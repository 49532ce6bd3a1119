"""What the logger ``dask_tfrecord`` reports of reads and writes, while they run and in the logs of workers.

Modules: api.write, dataset.write.transaction.
"""

import logging
import re
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from distributed import Client
from small_frames import flip

from dask_tfrecord import SchemaError, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write import transaction

pytestmark = pytest.mark.usefixtures("one_thread")


NUMBERS = dd.from_pandas(pd.DataFrame({"n": range(20)}), npartitions=4)


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


@pytest.fixture(autouse=True)
def debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dask_tfrecord")


def test_a_write_logs_its_plan_its_steps_and_a_summary(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    to_tfrecord(NUMBERS, tmp_path, compression="gzip")
    snapshot = Snapshot.open(tmp_path)
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
    to_tfrecord(NUMBERS, tmp_path, append=True)
    assert "done: version 2, 4 files, 20 rows" in messages(caplog)[-1]


def test_the_steps_are_those_of_the_specification() -> None:
    page = (Path(__file__).parent.parent / "docs" / "format.md").read_text()
    steps = re.findall(r"^(\d)\. \*\*", page.split("### The commit")[1].split("### ")[0], re.MULTILINE)
    assert steps == [str(number) for number in range(1, transaction._STEPS + 1)]


def test_each_file_has_a_line_for_debugging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    to_tfrecord(NUMBERS, tmp_path)
    snapshot = Snapshot.open(tmp_path)
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


def test_a_failed_write_logs_an_error_and_a_removal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = pd.array([[1], [None]], pd.ArrowDtype(pa.list_(pa.int64())))
    with pytest.raises(SchemaError):
        to_tfrecord(dd.from_pandas(pd.DataFrame({"n": values}), npartitions=1), tmp_path)
    [failed] = messages(caplog, logging.ERROR)
    assert re.search(r"failed after \d+\.\d s: SchemaError\(", failed)
    assert messages(caplog)[-1].endswith("remove what the failed write staged")


def test_the_log_has_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    def fail(part: pd.DataFrame) -> pd.DataFrame:
        raise ValueError("cannot log in with hunter2")

    path, options = "memory://bucket/logged", {"secret": "hunter2"}
    to_tfrecord(NUMBERS, path, storage_options=options, overwrite=True)
    snapshot = Snapshot.open(path, storage_options=options)
    read_tfrecord(path, storage_options=options).compute()
    failing = NUMBERS.map_partitions(fail, meta=NUMBERS._meta)
    with pytest.raises(ValueError, match="hunter2"):
        to_tfrecord(failing, path, overwrite=True, storage_options=options, compute_kwargs={"retries": 0})
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("dask_tfrecord")]
    assert any(f"write {snapshot.run[:8]}: done" in text for text in ours)
    assert any("failed after" in text and "***" in text for text in ours)
    assert not any("hunter2" in text for text in ours)


def test_the_log_of_a_worker_shows_the_whole_message_of_an_error(tmp_path: Path, client: Client) -> None:
    to_tfrecord(NUMBERS, tmp_path)
    path = tmp_path / Snapshot.open(tmp_path).files[2].path
    flip(path, 15)
    with pytest.raises(ValueError, match="record 0") as caught:
        read_tfrecord(tmp_path).compute(scheduler=client)
    logs = "\n".join(text for lines in client.get_worker_logs().values() for _, text in lines)
    assert str(caught.value) in logs
    assert f"{path}, record 0 (byte 0)" in repr(caught.value)
    assert str(caught.value.remedies[0]) in repr(caught.value)


def test_nothing_is_printed_unless_the_application_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Without a handler, Python prints warnings and errors to stderr. pytest's handlers are those of the root.
    monkeypatch.setattr(logging.getLogger("dask_tfrecord"), "propagate", False)
    with pytest.raises(SchemaError):
        to_tfrecord(dd.from_dict({"n": [[1, None]]}, npartitions=1), tmp_path)
    assert capsys.readouterr().err == ""
