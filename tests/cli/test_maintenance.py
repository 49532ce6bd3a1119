"""`verify`, `index`, `cleanup`, `export` and `serve`.

Modules: cli.maintenance.
"""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest
from conftest import Run
from pyarrow import flight

import dask_tfrecord

SCRIPT = Path(sys.executable).parent / "dask-tfrecord"


def _damage(people: Path) -> Path:
    file = sorted(people.glob("part-*"))[0]
    file.write_bytes(file.read_bytes().replace(b"Ada", b"Eve"))
    return file


def test_intact_files_exit_with_0(run: Run, people: Path) -> None:
    assert run("verify", people).stdout.startswith("all 2 files are intact, 3 rows, ")
    report = json.loads(run("verify", people, "--json").stdout)
    assert (report["files"], report["rows"], report["problems"]) == (2, 3, [])


def test_damage_exits_with_3(run: Run, people: Path) -> None:
    file = _damage(people)
    first, last = run("verify", people, code=3).stdout.splitlines()
    assert first.startswith(f"{file}: 1 damaged, 1 intact records; the first damage is at byte 0: ")
    assert last.startswith("1 of 2 files have problems, 2 rows, ")
    (problem,) = json.loads(run("verify", people, "--json", code=3).stdout)["problems"]
    assert (problem["path"], problem["damaged"], problem["agrees"]) == (str(file), 1, False)


def test_damage_without_a_snapshot_exits_with_3(run: Run, people: Path) -> None:
    run("verify", _damage(people), code=3)


def test_a_missing_file_exits_with_3(run: Run, people: Path) -> None:
    sorted(people.glob("part-*"))[0].unlink()
    assert "missing" in run("verify", people, code=3).stdout


def test_features_that_do_not_fit_exit_with_3(run: Run, people: Path) -> None:
    other = dd.from_dict({"born": ["x"]}, npartitions=1)
    dask_tfrecord.to_tfrecord(other, people.parent / "other")
    files = [*people.glob("part-*"), *people.parent.glob("other/part-*")]
    assert "born" in run("verify", *files, code=3).stdout


def test_index_stores_a_snapshot(run: Run, people: Path) -> None:
    foreign = people.parent / "foreign"
    foreign.mkdir()
    for number, file in enumerate(sorted(people.glob("part-*"))):
        (foreign / f"{number}.tfrecord").write_bytes(file.read_bytes())
    stored = json.loads(run("index", foreign, "--type", "born=int16", "--json").stdout)
    assert stored["rows"] == 3
    assert stored["columns"]["born"] == "int16"
    assert dask_tfrecord.Snapshot.open(foreign).records == 3
    assert "up to date" in run("index", foreign, code=1).stderr
    (foreign / "2.tfrecord").write_bytes((foreign / "0.tfrecord").read_bytes())
    assert run("index", foreign).stdout.splitlines()[:3] == ["version  2", "files    3", "rows     5"]


def test_an_unknown_type_is_an_error_of_usage(run: Run, people: Path) -> None:
    assert "int16" in run("index", people, "--type", "born=int17", code=2).stderr.replace("int64", "int16")


def _interrupted(people: Path) -> Path:
    """Leave a staged file of a write that never ended."""
    staged = people / "_tfrecord" / "staging" / ("0" * 32) / f"part-{'0' * 32}-00000-of-00001.tfrecord"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"")
    return staged


def test_a_dry_cleanup_lists_what_a_cleanup_removes(run: Run, people: Path) -> None:
    staged = _interrupted(people)
    listed = run("cleanup", people, "--older-than", "0 s", "--dry-run").stdout.splitlines()
    assert listed == [str(staged.relative_to(people)), "1 files would be removed"]
    assert staged.exists()
    removed = json.loads(run("cleanup", people, "--older-than", "0 s", "--json").stdout)
    assert removed == {"removed": [str(staged.relative_to(people))], "dry_run": False}
    assert not staged.exists()
    assert run("count", people).stdout == "3\n"


def test_young_files_are_kept(run: Run, people: Path) -> None:
    staged = _interrupted(people)
    assert run("cleanup", people).stdout == "0 files removed\n"
    assert staged.exists()
    for wrong in ("soon", "24"):
        assert "is not a duration" in run("cleanup", people, "--older-than", wrong, code=1).stderr


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_directory_that_does_not_exist_cannot_be_cleaned(
    run: Run, tmp_path: Path, options: list[str]
) -> None:
    error = run("cleanup", tmp_path / "poeple", *options, code=1).stderr
    assert error == f"Error: {tmp_path}/poeple: no such directory\n"
    (tmp_path / "empty").mkdir()
    assert run("cleanup", tmp_path / "empty").stdout == "0 files removed\n"


def test_a_file_of_another_format_is_named(run: Run, people: Path) -> None:
    (people.parent / "people.csv").write_text("name,born\nAda,1815\n")
    printed = run("verify", people.parent / "people.csv", code=3).stdout
    assert "not a TFRecord file: it looks like text such as CSV" in printed


def test_export_prints_the_files(run: Run, people: Path) -> None:
    files = run("export", people, "--format", "idx").stdout.splitlines()
    assert len(files) == 2
    assert all(Path(file).exists() for file in files)
    run("export", people, "--format", "nothing", code=2)


def test_serve_prints_its_address_and_ends_after_the_passes(quick: Path, people: Path) -> None:
    command = [quick, "serve", people, "--columns", "born", "--passes", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        host, _, port = server.stdout.readline().strip().removeprefix("tcp://").rpartition(":")
        with socket.create_connection((host, int(port))) as client, client.makefile("rb") as stream:
            rows = pa.ipc.open_stream(stream).read_all()
        assert "ArrowStreamDataset" in server.stdout.read()
    assert rows["born"].to_pylist() == [1815, 1912, 1906]
    assert server.returncode == 0


@pytest.mark.usefixtures("interruptible")
def test_serve_runs_until_an_interrupt(people: Path) -> None:
    command = [SCRIPT, "serve", people, "--protocol", "flight"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        with flight.connect(server.stdout.readline().strip()) as client:
            info = client.get_flight_info(flight.FlightDescriptor.for_path("people"))
            rows = client.do_get(info.endpoints[0].ticket).read_all()
        server.send_signal(signal.SIGINT)
        errors = server.stderr.read()
    assert rows.num_rows == 3
    assert (server.returncode, errors) == (130, "Interrupted.\n")


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_a_server_whose_client_does_not_read(people: Path) -> None:
    frame = pd.DataFrame({"x": pd.array([bytes(1 << 20)] * 100, pd.ArrowDtype(pa.binary()))})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=1), people.parent / "large")
    command = [SCRIPT, "serve", people.parent / "large", "--protocol", "flight", "--batch-size", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        with flight.connect(server.stdout.readline().strip()) as client:
            info = client.get_flight_info(flight.FlightDescriptor.for_path("large"))
            stream = client.do_get(info.endpoints[0].ticket)
            stream.read_chunk()
            server.send_signal(signal.SIGINT)
            errors = server.stderr.read()
            stream.cancel()
    assert (server.returncode, errors) == (
        130,
        "Interrupted. A client has not read its stream to the end.\n",
    )


def test_a_failed_pass_fails_the_command(quick: Path, people: Path) -> None:
    command = [quick, "serve", people, "--to", f"unix://{people.parent}/s.sock", "--passes", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        server.stdout.readline()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"{people.parent}/s.sock")
            with client.makefile("rb") as stream:
                stream.read()
        errors = server.stderr.read()
    assert server.returncode == 1  # TensorFlow I/O has no nulls
    assert "Error: " in errors


def test_a_local_cluster_computes_if_an_option_asks_for_it(
    run: Run, people: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import Client

    used: list[str] = []
    enter = Client.__enter__

    def note(client: Any) -> Any:
        used.append(client.cluster.scheduler_address)
        return enter(client)

    monkeypatch.setattr(Client, "__enter__", note)
    options = ["--memory-limit", "2 GB", "--threads", "1"]
    assert run("verify", people, *options).stdout.startswith("all 2 files are intact, 3 rows")
    assert len(used) == 1


def test_a_running_cluster_computes(run: Run, people: Path, client: Any) -> None:
    address = client.scheduler.address
    out = people.parent / "out"
    run("convert", people, out, "--scheduler", address, "--shuffle", 1)
    frame = dask_tfrecord.read_tfrecord(out).compute(scheduler="sync")
    assert sorted(frame["born"]) == [1815, 1906, 1912]
    assert isinstance(frame, pd.DataFrame)


def test_both_kinds_of_clusters_are_an_error_of_usage(run: Run, people: Path) -> None:
    run("count", people, "--scheduler", "tcp://127.0.0.1:1", "--workers", 2, code=2)
