"""`check`, `verify`, `index`, `cleanup`, `export` and `serve`.

Modules: cli.maintenance, cli.serve.
"""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import oracle
import pyarrow as pa
import pytest
from conftest import Run
from pyarrow import flight

import dask_tfrecord
from dask_tfrecord.dataset.snapshot.model import Snapshot

SCRIPT = Path(sys.executable).parent / "dask-tfrecord"


def test_intact_files_exit_with_0_and_damage_with_3(run: Run, people: Path) -> None:
    assert run("verify", people).stdout.startswith("all 2 files are intact, 3 rows, ")
    report = json.loads(run("verify", people, "--json").stdout)
    assert (report["files"], report["rows"], report["problems"]) == (2, 3, [])
    file = sorted(people.glob("part-*"))[0]
    file.write_bytes(file.read_bytes().replace(b"Ada", b"Eve"))
    first, last = run("verify", people, code=3).stdout.splitlines()
    assert first.startswith(f"{file}: 1 damaged, 1 intact records; the first damage is at byte 0: ")
    assert last.startswith("1 of 2 files have problems, 2 rows, ")
    (problem,) = json.loads(run("verify", people, "--json", code=3).stdout)["problems"]
    assert (problem["path"], problem["damaged"], problem["agrees"]) == (str(file), 1, False)
    run("verify", file, code=3)  # without a snapshot
    file.unlink()
    assert "missing" in run("verify", people, code=3).stdout


def test_a_check_exits_with_3_for_differences_but_not_for_unfinished_writes(run: Run, people: Path) -> None:
    staged = people / "_tfrecord" / "staging" / ("0123abcd" * 4)
    staged.mkdir(parents=True)
    assert run("check", people).stdout == "the directory holds the files of the snapshot\n"
    (staged / "started").touch()
    assert run("check", people).stdout.splitlines()[1:] == ["files with problems: 1 unfinished"]
    first, second = sorted(people.glob("part-*"))
    first.write_bytes(b"")
    second.rename(people / "other.tfrecord")
    report = json.loads(run("check", people, "--json", code=3).stdout)
    problems = report.pop("problems")
    assert report == dict.fromkeys(("missing", "resized", "unlisted", "unfinished"), 1)
    assert [one["path"] for one in problems[:2]] == [str(second), str(first)]
    lines = run("check", people, code=3).stdout.splitlines()
    assert lines[0] == f"{second}: the file is missing, with 1 row"
    assert lines[1].startswith(f"{first}: the file has 0 bytes, but ")
    assert lines[2] == f"{people}/other.tfrecord: the snapshot does not list the file"


def test_features_that_do_not_fit_and_files_of_another_format_exit_with_3(run: Run, people: Path) -> None:
    other = people.parent / "other"
    dask_tfrecord.to_tfrecord(pa.table({"born": ["x"]}), other)
    assert "born" in run("verify", *people.glob("part-*"), *other.glob("part-*"), code=3).stdout
    (people.parent / "people.csv").write_text("name,born\nAda,1815\n")
    printed = run("verify", people.parent / "people.csv", code=3).stdout
    assert "not a TFRecord file: it looks like text such as CSV" in printed


@pytest.mark.parametrize("options", [[], ["--record-type", "bytes"]])
def test_intact_files_of_other_messages_exit_with_0(run: Run, tmp_path: Path, options: list[str]) -> None:
    message = b"2\x10$\n\x0c\n\x1a\nregression"  # of TensorFlow Serving
    path = tmp_path / "warmup"
    path.write_bytes(oracle.records_file([message] * 3))
    result = run("verify", path, *options)
    assert result.stdout.startswith("the file is intact, 3 rows, ")
    assert ("read as bytes" in result.stderr) == (not options)
    path.write_bytes(oracle.records_file([message] * 3)[:-1])
    assert "1 damaged, 2 intact" in run("verify", path, *options, code=3).stdout


def test_index_stores_a_snapshot_and_export_prints_the_files(run: Run, people: Path) -> None:
    foreign = people.parent / "foreign"
    foreign.mkdir()
    for number, file in enumerate(sorted(people.glob("part-*"))):
        (foreign / f"{number}.tfrecord").write_bytes(file.read_bytes())
    stored = json.loads(run("add-snapshot", foreign, "--type", "born=int16", "--json").stdout)
    assert stored["rows"] == 3
    assert stored["columns"]["born"] == "int16"
    assert Snapshot.open(foreign).records == 3
    assert "up to date" in run("add-snapshot", foreign, code=1).stderr
    (foreign / "2.tfrecord").write_bytes((foreign / "0.tfrecord").read_bytes())
    assert run("add-snapshot", foreign).stdout.splitlines()[:3] == ["version  2", "files    3", "rows     5"]
    run("add-snapshot", people, "--type", "born=int17", code=2)
    written = run("export", people, "--format", "idx").stdout.splitlines()
    assert [Path(file).exists() for file in written] == [True, True]
    run("export", people, "--format", "nothing", code=2)


def test_a_dry_cleanup_lists_what_a_cleanup_removes(run: Run, people: Path) -> None:
    name = f"_tfrecord/staging/{'0' * 32}/part-{'0' * 32}-00000-of-00001.tfrecord"
    staged = people / name  # of a write that never ended
    staged.parent.mkdir(parents=True)
    staged.touch()
    assert run("cleanup", people).stdout == "0 files removed\n"
    for wrong in ("soon", "24"):
        assert "is not a duration" in run("cleanup", people, "--older-than", wrong, code=1).stderr
    listed = run("cleanup", people, "--older-than", "0 s", "--dry-run").stdout.splitlines()
    assert listed == [name, "1 file would be removed"]
    assert staged.exists()
    removed = json.loads(run("cleanup", people, "--older-than", "0 s", "--json").stdout)
    assert removed == {"removed": [name], "dry_run": False}
    assert not staged.exists()
    assert run("count", people).stdout == "3\n"


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_missing_directory_cannot_be_cleaned(run: Run, tmp_path: Path, options: list[str]) -> None:
    error = run("cleanup", tmp_path / "poeple", *options, code=1).stderr
    assert error == f"Error: {tmp_path}/poeple: no such file or directory\n"
    (tmp_path / "empty").mkdir()
    assert run("cleanup", tmp_path / "empty").stdout == "0 files removed\n"


@contextmanager
def serving(*command: object) -> Iterator[tuple[Any, str]]:
    """Start a server, and yield its process and the first line that it prints."""
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*map(str, command)], **options) as server:
        yield server, server.stdout.readline().strip()


def ended(server: Any) -> tuple[int, str]:
    """The exit code and the errors of a server that ends."""
    errors = server.communicate()[1]
    return server.returncode, errors


def test_serve_prints_its_address_and_ends_after_the_passes(quick: Path, people: Path) -> None:
    with serving(quick, "serve", people, "--columns", "born", "--passes", 1) as (server, address):
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        with socket.create_connection((host, int(port))) as client, client.makefile("rb") as stream:
            rows = pa.ipc.open_stream(stream).read_all()
        assert "ArrowStreamDataset" in server.stdout.read()
    assert rows["born"].to_pylist() == [1815, 1912, 1906]
    assert server.returncode == 0


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("rows", "errors"),
    [(3, ""), (40, " A client has not read its stream to the end.")],
    ids=["a client that has read all", "a client that does not read"],
)
def test_serve_runs_until_an_interrupt(tmp_path: Path, rows: int, errors: str) -> None:
    dask_tfrecord.to_tfrecord(pa.table({"x": [bytes(1 << 20)] * rows}), tmp_path / "rows")
    command = [SCRIPT, "serve", tmp_path / "rows", "--to", "grpc://127.0.0.1:0", "--batch-size", 1]
    with serving(*command) as (server, address), flight.connect(address) as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_path("rows"))
        stream = client.do_get(info.endpoints[0].ticket)
        if errors:
            stream.read_chunk()
        else:
            assert stream.read_all().num_rows == rows
        server.send_signal(signal.SIGINT)
        assert ended(server) == (130, f"Interrupted.{errors}\n")
        stream.cancel()


def test_a_failed_pass_fails_the_command(quick: Path, people: Path) -> None:
    path = people.parent / "s.sock"
    with serving(quick, "serve", people, "--to", f"unix://{path}", "--passes", 1) as (server, _):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            with client.makefile("rb") as stream:
                stream.read()
        code, errors = ended(server)
    assert code == 1  # TensorFlow I/O has no nulls
    assert "Error: " in errors


def test_a_running_cluster_computes(run: Run, people: Path, client: Any) -> None:
    out = people.parent / "out"
    run("convert", people, out, "--scheduler", client.scheduler.address, "--shuffle", "--seed", 1)
    frame = dask_tfrecord.read_tfrecord(out).compute(scheduler="sync")
    assert sorted(frame["born"]) == [1815, 1906, 1912]
    run("count", people, "--scheduler", "tcp://127.0.0.1:1", "--workers", 2, code=2)
