"""What users get wrong: the message says what was given, what is wrong, and the call that mends it.

Modules: errors, keywords.public_functions, keywords.arguments.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner

import dask_tfrecord
from dask_tfrecord import TFRecordError, Writer, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.feed import iter_batches
from dask_tfrecord_launcher import main

ROWS = pd.DataFrame({"n": [1, 2, 3], "label": [0, 1, 0], "text": ["a", "b", "c"]})
FLOATS = pd.DataFrame({"x": [0.1]})

# A call in a directory with the dataset "train" and a CSV file, and parts of the message in their order.
WRITES: list[tuple[Callable[[], Any], str]] = [
    (lambda: to_tfrecord("new", ROWS), "str is not a Dask DataFrame ... pass the rows as the first argument"),
    (
        lambda: to_tfrecord([1, 2], "new"),
        "list is not a Dask DataFrame ... pass pandas.DataFrame({",
    ),
    (
        lambda: to_tfrecord(ROWS["n"], "new"),
        'Series is one column, not a table; pass column.to_frame("n")',
    ),
    (
        lambda: to_tfrecord(ROWS, "train"),
        "already holds a dataset; choose another ... append=True ... overwrite=True",
    ),
    (lambda: to_tfrecord(ROWS, "rows.csv"), "rows.csv: is a file, not a directory"),
    (
        lambda: to_tfrecord(ROWS, "train/more"),
        "lies inside the dataset ... call ddf.to_tfrecord( ... append=True",
    ),
    (lambda: to_tfrecord(ROWS, ".", overwrite=True), "the current directory is never overwritten; write to"),
    (
        lambda: to_tfrecord(ROWS, "train", mode="append"),
        "unexpected keyword argument 'mode'; pass append=True",
    ),
    (lambda: to_tfrecord(ROWS, "new", colums=["n"]), "'colums'; select the columns first, as in ddf["),
    (
        lambda: to_tfrecord(ROWS, "new", npartitions=4),
        "'npartitions'; pass write_options={\"npartitions\": 4}",
    ),
    (lambda: to_tfrecord(ROWS, "new", retries=4), "'retries'; pass compute_kwargs={\"retries\": 4}"),
    (lambda: to_tfrecord(ROWS, "new", num_shards=4), 'pass write_options={"npartitions": 4}'),
    (lambda: to_tfrecord(ROWS, "new", partition_on="lable"), "non-existent column 'lable'; the columns are"),
    (lambda: to_tfrecord(ROWS, "new", colocate=True), "requires partition columns; pass partition_on="),
    (
        lambda: to_tfrecord(ROWS, "new", compression="snappy"),
        "unknown compression 'snappy'; pass one of None, 'gzip'",
    ),
    (
        lambda: to_tfrecord(ROWS, "new", split={"train": 0.5}),
        'sum to 0.5, not to 1; pass split={"train": 0.9',
    ),
    (
        lambda: to_tfrecord(ROWS, "new", overwrite="yes"),
        "unknown overwrite 'yes'; pass one of False, True, 'partitions'",
    ),
    (lambda: to_tfrecord(ROWS, "train", append=True, overwrite=True), "append=True keeps ... pass only one"),
    (lambda: to_tfrecord(ROWS, "new", shuffle=7), "shuffle=7 is a number ... pass shuffle=True and seed=7"),
    (lambda: to_tfrecord(ROWS, "new", seed=7), "seed=7 has no effect ... pass shuffle=True"),
    (
        lambda: to_tfrecord(ROWS, "new", schema={"text": "int64"}),
        "feature 'text': a value does not fit int64",
    ),
    (lambda: to_tfrecord(FLOATS, "new", lossy="raise"), "feature 'x' ... 32-bit ... pass lossy=\"allow\""),
    (
        lambda: to_tfrecord(ROWS.assign(new=1), "train", append=True),
        "feature 'new' ... schema_change=\"add\" to add",
    ),
    (
        lambda: to_tfrecord(ROWS.drop(columns="n"), "train", append=True),
        "feature 'n': the dataset has this column",
    ),
    (
        lambda: to_tfrecord(ROWS.astype({"n": "str"}), "train", append=True),
        "column is string, in the dataset it is int64",
    ),
    (lambda: to_tfrecord(pd.DataFrame({"c": [1j]}), "new"), "feature 'c' ... complex"),
    (lambda: to_tfrecord(pd.DataFrame({"c": [object()]}), "new"), "feature 'c' ... object"),
    (
        lambda: Writer("new", schema={"n": "int64"}).write([{"n": "x"}]),
        "feature 'n': a value does not fit int64",
    ),
    (lambda: Writer("train").write("rows.csv"), "write() takes rows, not str; pass a table"),
    (
        lambda: Writer("train").write(ROWS.assign(new=1)),
        'Writer takes schema={"new": "int64"} and schema_change="add" to add the column',
    ),
    (
        lambda: to_tfrecord([b"x"], "new"),
        'pass pyarrow.table({"record": rows}) and record_type="bytes" for whole records',
    ),
    (
        lambda: Writer("new", write_options={"name": "x"}),
        "write_options= has no option 'name'; its options are",
    ),
]
READS: list[tuple[Callable[[], Any], str]] = [
    (lambda: read_tfrecord("trian"), "trian: no such file or directory"),
    (
        lambda: read_tfrecord("train/*.gz"),
        "train/*.gz: no visible file matches the glob; pass ... read all files there",
    ),
    (lambda: read_tfrecord([]), "the list of paths is empty; pass a directory, a glob, a file"),
    (lambda: read_tfrecord(None), "None is not a path; pass a directory, a glob, a file"),  # type: ignore[call-overload]
    (lambda: read_tfrecord("s33://bucket/train"), "no filesystem is known for s33://; did you mean 's3'"),
    (lambda: read_tfrecord("rows.csv"), "looks like text such as CSV; read it with dask.dataframe.read_csv"),
    (
        lambda: read_tfrecord("rows.parquet"),
        "looks like a Parquet file; read it with dask.dataframe.read_parquet",
    ),
    (
        lambda: read_tfrecord("train", columns=["lable"]),
        "no column is named 'lable'; there are ... did you mean 'label'?",
    ),
    (lambda: read_tfrecord("train", colums=["n"]), "'colums'; pass columns="),
    (lambda: read_tfrecord("train", usecols=["n"]), "'usecols'; pass columns=[\"n\"]"),
    (
        lambda: read_tfrecord("train", chunksize=5),
        "call dask_tfrecord.open_dataset(path).batches(5) for batches of rows",
    ),
    (
        lambda: read_tfrecord("train", batch_size=5),
        "call dask_tfrecord.open_dataset(path).batches(5) for batches of rows",
    ),
    (lambda: read_tfrecord("train", blocksize="64 Megs"), 'is not a size such as "128 MiB"'),
    (lambda: read_tfrecord("train", engine="pyarrow"), "'engine'; leave it out, because there is one engine"),
    (
        lambda: read_tfrecord("train", verify_crc=False),
        "'verify_crc'; pass read_options={\"verify_crc\": False}",
    ),
    (
        lambda: read_tfrecord("train", read_options={"crc": 0}),
        "has no option 'crc'; did you mean 'verify_crc'?",
    ),
    (
        lambda: read_tfrecord("train", dtype_backend="arrow"),
        "unknown dtype_backend 'arrow'; pass one of None, 'pyarrow'",
    ),
    (lambda: read_tfrecord("train", split="train"), "not divided into splits; pass split=None to read all"),
    (lambda: read_tfrecord("train", version=9), "the dataset has no version 9; its only version is 1"),
    (lambda: read_tfrecord("train", index="time"), "no column is named 'time'; there are"),
    (
        lambda: read_tfrecord("train", filters="n > 1"),
        "filters= is not a list ... pass filters=[('n', '>', 1)]",
    ),
    (
        lambda: read_tfrecord("train", filters=[("n", "equals", 1)]),
        "unknown operator 'equals' in filters=; known are '='",
    ),
    (
        lambda: read_tfrecord("train", filters=[("n", "in", 1)]),
        "needs a list of values, not 1; pass ('n', 'in', [1])",
    ),
    (lambda: read_tfrecord("train", filters=[("n", "==", "a")]), "'a' is not a number, the column is int64"),
    (
        lambda: read_tfrecord("train", schema={"text": "int64"}).compute(),
        'feature \'text\' ... schema={"text": "string"}',
    ),
    (lambda: open_dataset("train").restore(5), "the dataset has no version 5; its only version is 1"),
    (
        lambda: open_dataset(["train"]).compact(),
        "needs the directory of one dataset ... open the directory alone",
    ),
    (
        lambda: open_dataset("train", columns="n").compact(),
        "columns= was passed; call open_dataset without columns=",
    ),
    (
        lambda: open_dataset("splits", split="train").add_snapshot(),
        "lists the files of all splits, but split='train' was passed; open_dataset takes split=\"all\"",
    ),
    (
        lambda: open_dataset("train").filter([("n", ">", 1)]),  # type: ignore[arg-type]
        "is not a pyarrow expression (got list); pass pyarrow.parquet.filters_to_expression([('n', '>', 1)])",
    ),
    (
        lambda: open_dataset("train").expire(),
        "neither versions= nor older_than= ... pass versions=10 to keep",
    ),
    (
        lambda: open_dataset("train").expire(older_than="7"),
        "is not a duration with a unit; pass a number and its unit",
    ),
    (
        lambda: open_dataset("train").cleanup(older_than="2.25 sms"),
        "'sms' is none of the units ns, us, ms, ... such as \"2.25 ms\"",
    ),
    (lambda: open_dataset("train").expire(older_than="2 weeks"), "'weeks' is none of ... such as \"2 W\""),
    (
        lambda: read_tfrecord("train", blocksize="64 MiBs"),
        "'MiBs' is none of ... blocksize=\"64 MiB\" to set",
    ),
    (lambda: Writer("train", commit_every="5 secs"), "'secs' is none of ... pass for example \"5 seconds\""),
    (lambda: open_dataset("train").export("csv"), "not its rows as csv; call to_csv of the result of read"),
    (lambda: open_dataset("train").batches(5, shuffle=1000), 'shuffle="buffer" and shuffle_buffer=1000'),
    (
        lambda: open_dataset("train").batches(5, shard=2),
        "shard=2 is not a pair ... pass shard=(0, 2) to read the first",
    ),
    (
        lambda: iter_batches(dd.from_pandas(ROWS, npartitions=1), 5, shuffle="blocks"),
        'needs a path, not a Dask collection; pass shuffle="buffer"',
    ),
    (
        lambda: dask_tfrecord.explain(ROWS),
        "explain() takes a Dask collection, not DataFrame; pass the result of read_tfrecord",
    ),
]


COMMANDS: list[tuple[str, str]] = [
    ("head train --columns lable", "--columns lable: no column is named 'lable'; ... did you mean 'label'?"),
    ("head train --where 'text == a'", "compares the columns 'text' and 'a' ... as in text == \"a\""),
    ("head train --where 'n is null'", "write None, as in x is None"),
    ("head train --where 'n == null'", "write None, as in x is None"),
    ("head train --where 'n = 1'", "write == to compare"),
    ("head train --where 'n <> 1'", "write != to compare"),
    ("head train --where 'n > 1 && n < 3'", "write `and` between conditions"),
    ("head train --where 'n > 1 | n < 3'", "write `or` between conditions"),
    ("head train --where '!(n > 1)'", "write `not` before a condition"),
    ("head train --where 'text like \"a%\"'", "for other patterns, query the dataset with DuckDB"),
    ("head train --limit 2", "no option --limit; did you mean --rows?"),
    ("count train --filter 'n > 1'", "no option --filter; did you mean --where?"),
    ("hed train", "no command is named 'hed'; did you mean head?"),
    ("inspect train", "did you mean describe?"),
    ("frobnicate train", "there are describe, head, cat"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    to_tfrecord(ROWS, folder / "train")
    to_tfrecord(ROWS.assign(split="train"), folder / "splits", partition_on="split")
    ROWS.to_csv(folder / "rows.csv", index=False)
    pa.parquet.write_table(pa.Table.from_pandas(ROWS), folder / "rows.parquet")
    return folder


@pytest.mark.parametrize("number", range(len(WRITES) + len(READS)))
def test_the_message_says_what_is_wrong_and_what_mends_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    call, message = [*WRITES, *READS][number]
    monkeypatch.chdir(folder)
    with pytest.raises((TFRecordError, FileNotFoundError)) as caught:
        call()
    found = str(caught.value).replace(str(folder), "")
    assert re.search(".*".join(map(re.escape, message.split(" ... "))), found), found
    assert len(found) < 400
    assert not any(path.is_file() for path in folder.glob("new/**/*"))
    package = Path(dask_tfrecord.__file__).parent
    frames = [entry for entry in caught.traceback if package in Path(entry.path).parents]
    assert len(frames) <= 1


@pytest.mark.parametrize(("command", "message"), COMMANDS)
def test_the_command_line_answers_in_its_own_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, message: str
) -> None:
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(main, shlex.split(command))
    assert result.exit_code in (1, 2)
    assert re.search(".*".join(map(re.escape, message.split(" ... "))), result.output), result.output


def test_a_frame_written_to_the_name_of_a_file_makes_a_directory(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"n\.tfrecord' will be a directory of files"):
        to_tfrecord(ROWS, tmp_path / "n.tfrecord")
    assert read_tfrecord(tmp_path / "n.tfrecord").compute().equals(ROWS)


def test_a_job_of_many_writes_warns_once(tmp_path: Path) -> None:
    program = """
import pandas as pd, dask_tfrecord
dask_tfrecord.to_tfrecord(pd.DataFrame({"x": [0.1]}), "a")
dask_tfrecord.to_tfrecord(pd.DataFrame({"x": [0.1]}), "b")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr.count("RemedyWarning") == 1, done.stderr
