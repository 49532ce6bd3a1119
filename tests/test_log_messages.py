"""What the logger ``dask_tfrecord`` reports of reads and writes, while they run and in the logs of workers.

Modules: collection.writer, dataset.write.transaction, collection.scheduler, cli.compute.
"""

import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from dask.callbacks import Callback
from distributed import Client
from small_frames import flip

from dask_tfrecord import SchemaError, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.collection import scheduler as progress
from dask_tfrecord.collection import writer
from dask_tfrecord.collection.scheduler import Progress, Report
from dask_tfrecord.dataset.shuffle import table_stream
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write import transaction
from dask_tfrecord.dataset.write.transaction import commit as commit_files
from dask_tfrecord.feed import RecordTable, iter_batches

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


LINE = r"(?:step (\d) of (\d): )?(\d+) of (\d+) partitions(?:, (\d+) rows)?(?:, ([\d,]+) bytes)? in \d+\.\d s"


@pytest.fixture(params=["synchronous", "threads", "processes", "distributed"])
def scheduler(request: pytest.FixtureRequest, client: Client) -> Iterator[str]:
    kind: str = request.param
    scheduler = client if kind == "distributed" else kind
    with dask.config.set(num_workers=2, scheduler=scheduler):
        yield kind


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    others = set(Callback.active), set(progress._jobs)  # of lazy writes that earlier tests still hold
    yield
    assert set(Callback.active) <= others[0]
    assert set(progress._jobs) <= others[1]
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())


class Immediately:
    """A timer that does not wait."""

    def __init__(self, delay: float, function: Callable[[], None]) -> None:
        self.delay, self.function = delay, function

    def start(self) -> None:
        self.function()

    def cancel(self) -> None:
        """Do nothing, because the function was called."""

    join = cancel


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Log a line after each task."""
    monkeypatch.setattr(progress, "Timer", Immediately)
    caplog.set_level(logging.INFO, "dask_tfrecord.collection.scheduler")


def numbers() -> dd.DataFrame:
    return dd.from_pandas(pd.DataFrame({"n": range(20), "k": [0] * 15 + [1] * 5}), npartitions=4)


def lines(caplog: pytest.LogCaptureFixture, title: str) -> list[tuple[str, ...]]:
    """The numbers of each line: step, steps, partitions that are done, all partitions, rows and bytes."""
    messages = [r.getMessage() for r in caplog.records if r.name == "dask_tfrecord.collection.scheduler"]
    caplog.clear()
    found = [re.search(rf"{re.escape(title)}.*?: {LINE}", text) for text in messages]
    assert all(found), messages
    return [match.groups() for match in found if match]


@pytest.mark.usefixtures("always")
def test_schedulers_log_the_same(scheduler: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "a")
    to_tfrecord(numbers(), path)
    snapshot = Snapshot.open(path)
    total = str(snapshot.bytes)
    written = lines(caplog, f"{path}: write {snapshot.run[:8]}")
    assert [line[2] for line in written] == ["1", "2", "3", "4"]
    assert written[-1] == (None, None, "4", "4", "20", total)

    lazy = to_tfrecord(
        numbers(), path, shuffle=True, seed=1, write_options={"npartitions": 2}, overwrite=True, compute=False
    )
    assert dask.compute(lazy)[0].rows == 20
    written = lines(caplog, path)
    assert [line[:4] for line in written] == [
        *(("1", "2", str(done), "4") for done in (1, 2, 3, 4)),
        *(("2", "2", str(done), "2") for done in (1, 2)),
    ]
    assert written[-1][4:] == ("20", total)
    del lazy

    assert open_dataset(path).verify()["agrees"].all()
    assert lines(caplog, f"{path}: verify")[-1] == (None, None, "1", "1", "20", total)


@pytest.mark.usefixtures("always")
def test_a_write_without_dask_logs_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_stream, "_CHUNK_BYTES", 1)
    others = set(progress._jobs)  # of lazy writes that earlier tests still hold

    def commit(*args: Any, **options: Any) -> Snapshot:
        assert set(progress._jobs) <= others  # no line follows the steps of the commit
        return commit_files(*args, **options)

    monkeypatch.setattr(writer, "commit", commit)
    table = pa.Table.from_pandas(numbers().compute(), preserve_index=False)
    to_tfrecord(table.to_reader(5), tmp_path / "a")
    to_tfrecord(table.to_reader(5), tmp_path / "b", shuffle=True, seed=1)
    text = "\n".join(r.getMessage() for r in caplog.records if r.name == "dask_tfrecord.collection.scheduler")
    found = re.findall(r": (?:step (\d) of 3: )?(\d+)( of 4)? parts, ([\d,]+) (?:rows|bytes)", text)
    steps = [("", ""), ("1", ""), ("2", " of 4"), ("3", " of 4")]
    assert [line[:3] for line in found] == [(step, n, known) for step, known in steps for n in "1234"]
    assert found[3][3] == found[-1][3] == "20"


@pytest.mark.usefixtures("always", "one_thread")
def test_reads_of_files_of_other_tools_log_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    to_tfrecord(numbers(), tmp_path / "a")
    snapshot = Snapshot.open(tmp_path / "a")
    (tmp_path / "b").mkdir()
    for file in snapshot.files:
        (tmp_path / "a" / file.path).rename(tmp_path / "b" / file.path)
    caplog.clear()
    assert sum(len(batch) for batch in iter_batches(tmp_path / "b", 7)) == 20
    [counted] = lines(caplog, f"{tmp_path}/b: count rows")
    assert counted[2:5] == ("1", "1", "20")
    assert len(RecordTable(tmp_path / "b")) == 20
    assert lines(caplog, f"{tmp_path}/b")[-1][2:5] == ("4", "4", "20")
    assert read_tfrecord(tmp_path / "b", read_options={"infer": "all"}).npartitions == 1
    assert lines(caplog, f"{tmp_path}/b: read before planning")[-1][4] == "20"
    open_dataset(tmp_path / "b").add_snapshot()
    assert lines(caplog, f"{tmp_path}/b: index")[-1][4:] == ("20", str(snapshot.bytes))


def test_the_first_line_comes_after_ten_seconds_and_counts_tasks_that_end_together(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dask_tfrecord.collection.scheduler")
    now = 0.0
    waiting: list[tuple[float, Callable[[], None]]] = []

    class Waiting(Immediately):
        def start(self) -> None:
            waiting.append((now + self.delay, self.function))

    monkeypatch.setattr(progress, "Timer", Waiting)
    monkeypatch.setattr(progress, "monotonic", lambda: now)

    def log() -> str:
        nonlocal now
        [(now, function)] = waiting
        waiting.clear()
        function()
        return caplog.records[-1].getMessage().partition(": ")[2]

    with Progress("a") as job:
        for task, seconds in ((0, 4.0), (1, 9.5), (1, 9.8)):
            now = seconds
            job.add(Report("", 1, 1, task, 8, 5_000, 2_000_000))
        assert log() == (
            "2 of 8 partitions, 10,000 rows, 4,000,000 bytes in 10.0 s (1000 rows/s), about 0:00:30 left"
        )
        for task in range(2, 6):
            now = 60 + task / 10
            job.add(Report("", 1, 1, task, 0, 5_000, 2_000_000))
        assert log() == "6 partitions, 30,000 rows, 12,000,000 bytes in 61.2 s (490 rows/s)"
        job.add(Report("", 2, 4, 0, 2, 0, 9))
        assert log() == "step 2 of 4: 1 of 2 partitions, 9 bytes in 10.7 s (1 bytes/s), about 0:01:59 left"
    assert not waiting


@pytest.mark.usefixtures("one_thread")
def test_an_error_in_the_log_never_fails_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> str:
        raise RuntimeError("no line")

    monkeypatch.setattr(progress, "Timer", Immediately)
    monkeypatch.setattr(Progress, "_describe", fail)
    assert to_tfrecord(numbers(), tmp_path).rows == 20
