"""`colocate=` and `shuffle=`: rows move to another partition before they are written.

The rows of each file are those of a model in Python, for passes of all sizes.

Modules: dataset.shuffle.spill, dataset.shuffle.merge, dataset.names.
"""

import hashlib
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from math import factorial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import dask.dataframe as dd
import every_dtype
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask.callbacks import Callback
from distributed import Client, LocalCluster
from memory import peak_kib

from dask_tfrecord import SchemaError, TFRecordError, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.shuffle import merge, spill
from dask_tfrecord.dataset.shuffle import spill as exchange
from dask_tfrecord.dataset.shuffle.spill import Route, Shuffle
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.schema.fields import Schema
from dask_tfrecord.storage.store import Store

ROWS = 400


pytestmark = pytest.mark.usefixtures("one_thread")


def collection(npartitions: int = 4) -> dd.DataFrame:
    numbers = np.arange(ROWS)
    keys = pd.array([[None, "", "a", "b", "c"][n % 5] for n in numbers], pd.ArrowDtype(pa.string()))
    lists = pd.ArrowDtype(pa.list_(pa.binary()))
    blobs = pd.array([[b"\xff" * (n % 4)] * (n % 3) for n in numbers], lists)
    return dd.from_pandas(pd.DataFrame({"n": numbers, "key": keys, "blobs": blobs}), npartitions=npartitions)


def order(path: Path) -> list[int]:
    found: list[int] = read_tfrecord(path)["n"].compute().tolist()
    return found


def contents(snapshot: Snapshot) -> list[Any]:
    """The directory, records and checksum of each file; the names contain the random id of a run."""
    return [(file.path.rpartition("part-")[0], file.records, file.crc32c) for file in snapshot.files]


def test_each_key_has_one_file_with_its_rows_in_their_order(tmp_path: Path) -> None:
    lazy = to_tfrecord(collection(), tmp_path / "one", partition_on="key", colocate=True, compute=False)
    assert not (tmp_path / "one").exists()
    lazy.compute()
    assert [file.records for file in Snapshot.open(tmp_path / "one").files] == [80] * 5

    limits: dict[str, Any] = {
        "partition_on": "key",
        "colocate": True,
        "write_options": {"max_rows_per_file": 30},
    }
    to_tfrecord(collection(), tmp_path / "several", **limits)
    snapshot = Snapshot.open(tmp_path / "several")
    assert sorted(file.records for file in snapshot.files) == [20] * 5 + [30] * 10


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_each_order_of_a_few_shuffled_rows_is_as_likely_as_any_other(rows: int) -> None:
    orders = [
        tuple(np.argsort(exchange.sort_keys(np.arange(rows, dtype=np.uint64), seed))) for seed in range(2400)
    ]
    expected = len(orders) / factorial(rows)
    counts = Counter(orders)
    assert len(counts) == factorial(rows)
    # Chi-square has 1, 5 or 23 degrees of freedom; 60 is beyond one in 30,000 for all of them.
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 60


def test_no_seed_gives_the_first_row_the_smallest_possible_key() -> None:
    first = np.zeros(1, np.uint64)
    assert min(int(exchange.sort_keys(first, seed)[0]) for seed in range(1000)) > 0


def test_lists_of_lists_survive_the_shuffle(tmp_path: Path) -> None:
    values = [[[1, 2], []], None, []]
    nested = pd.array(values, pd.ArrowDtype(pa.list_(pa.list_(pa.int64()))))
    ddf = dd.from_pandas(pd.DataFrame({"steps": nested, "n": [0, 1, 2]}), npartitions=2)
    to_tfrecord(ddf, tmp_path, record_type="sequence_example", shuffle=True, seed=1)
    assert pa.array(read_tfrecord(tmp_path).compute().sort_values("n")["steps"]).to_pylist() == values


def test_a_value_that_cannot_be_stored_says_which_row(tmp_path: Path) -> None:
    lists = pd.array([[1]] * 5 + [[1, None]], pd.ArrowDtype(pa.list_(pa.int64())))
    ddf = dd.from_pandas(pd.DataFrame({"lists": lists}), npartitions=2)
    with pytest.raises(SchemaError, match=r"partition 1 of 2, record 2: .*holds a null") as caught:
        to_tfrecord(ddf, tmp_path / "a", shuffle=True, seed=1)
    assert caught.value.feature == "lists"


PARTITION_BYTES = 48_000_000


def large_partition(index: int) -> pd.DataFrame:
    """Rows of 88 bytes: numbers, and a text of 56 letters. In "one", 9 of 10 rows have the same value."""
    count = PARTITION_BYTES // 88
    offsets = pa.py_buffer(np.arange(0, 56 * count + 1, 56, np.int32))
    text = pa.Array.from_buffers(pa.string(), count, [None, offsets, pa.py_buffer(b"x" * 56 * count)])
    numbers = np.arange(count) + count * index
    columns = {
        "n": numbers,
        "key": np.random.default_rng(index).integers(0, 100, count),
        "one": np.where(numbers % 10, 0, numbers // 10 % 100),
        "small": numbers.astype(np.int32),
        "real": numbers.astype(np.float32),
        "text": pd.arrays.ArrowExtensionArray(text),
    }
    return pd.DataFrame(columns)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak memory of a process, in /proc")
def test_a_task_takes_2_2_times_its_partition_and_64_mib(tmp_path: Path) -> None:
    """The rows of the largest key of "one" are 4.5 partitions. Workers that need more than 1 GB die."""
    ddf = dd.from_map(large_partition, range(5), meta=large_partition(0).iloc[:0])
    workers: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": "1GB"}
    with (
        LocalCluster(**workers, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        dask.config.set(scheduler=client),
    ):
        client.run(large_partition, 0)
        before = client.run(peak_kib)
        to_tfrecord(ddf, tmp_path, partition_on="one", colocate=True, shuffle=True, seed=42)
        snapshot = Snapshot.open(tmp_path)
        after = client.run(peak_kib)
    assert snapshot.records == 5 * (PARTITION_BYTES // 88)
    growth = max(after[worker] - before[worker] for worker in after) * 1024
    assert growth < 2.2 * PARTITION_BYTES + (64 << 20)


def test_rows_move_in_several_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_tfrecord(collection(), tmp_path / "a", partition_on="key", colocate=True, shuffle=True, seed=5)
    whole = Snapshot.open(tmp_path / "a")
    monkeypatch.setattr(exchange, "_PIECE_ROWS", 7)
    to_tfrecord(collection(), tmp_path / "b", partition_on="key", colocate=True, shuffle=True, seed=5)
    pieces = Snapshot.open(tmp_path / "b")
    assert contents(whole) == contents(pieces)


def test_rows_are_taken_of_more_than_two_gigabytes_of_text() -> None:
    count, size = 1100, 1_000_000
    offsets = np.arange(0, count * size + 1, size, np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.zeros(count * size, np.uint8))]
    batch = pa.record_batch({"s": pa.Array.from_buffers(pa.string(), count, buffers), "n": range(count)})
    found = exchange.Batches(pa.Table.from_batches([batch] * 3)).take(np.array([3000, 0, 1500]))
    assert found["n"].to_pylist() == [800, 0, 400]
    assert found["s"].to_pylist() == ["\0" * size] * 3


def test_the_text_of_a_category_moves_once(tmp_path: Path) -> None:
    values = pd.Categorical(["long" * 1000, "longer" * 1000] * 5000)
    ddf = dd.from_pandas(pd.DataFrame({"c": values, "n": range(10_000)}), npartitions=2)
    moved: list[int] = []

    def look(*_: Any) -> None:
        moved.append(sum(path.stat().st_size for path in tmp_path.glob("_tfrecord/staging/*/rows/*")))

    with Callback(posttask=look):
        to_tfrecord(ddf, tmp_path, shuffle=True, seed=1)
    assert 0 < max(moved) < 1_000_000
    found = read_tfrecord(tmp_path).compute().sort_values("n")["c"]
    assert found.tolist() == values.tolist()


@pytest.mark.parametrize(("sources", "targets"), [(36, 36), (50, 7), (5, 60)])
def test_two_rounds_write_the_rows_of_one_with_few_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: int, targets: int
) -> None:
    options: dict[str, Any] = {
        "partition_on": "key",
        "shuffle": True,
        "seed": 5,
        "write_options": {"npartitions": targets},
    }
    to_tfrecord(collection(sources), tmp_path / "one", **options)
    one = Snapshot.open(tmp_path / "one")
    monkeypatch.setattr(spill, "_MOST_SECTIONS", 1)
    with patch.object(Store, "read_ranges", autospec=True, side_effect=Store.read_ranges) as read_ranges:
        to_tfrecord(collection(sources), tmp_path / "two", **options)
        two = Snapshot.open(tmp_path / "two")
    assert contents(two) == contents(one)
    assert order(tmp_path / "two") == order(tmp_path / "one")
    requests = sum(len(call.args[1]) for call in read_ranges.call_args_list)
    assert 0 < requests <= (sources + targets) * targets**0.5


def test_a_route_leads_every_row_to_one_task() -> None:
    """Groups cover the targets, chunks cover the sources, and no group and no chunk is empty."""
    for sources, targets in [(10_000, 10_000), (1, 10**6), (10**6, 1), (700, 701), (10**6, 2), (600, 5_003)]:
        plan = Route.plan(sources, targets)
        assert (plan.groups - 1) * plan.width < targets <= plan.groups * plan.width
        assert (plan.chunks - 1) * plan.chunk < sources <= plan.chunks * plan.chunk
        sections = sources * plan.groups + targets * plan.chunks
        assert plan.groups == 1 or sections <= 2 * (sources + targets) * targets**0.5


def change_spills(path: Path, change: Callable[[Path], None]) -> Callback:
    """Apply ``change`` to the first spill file after it is written."""
    left = [change]

    def look(*_: Any) -> None:
        found = sorted(path.glob("_tfrecord/staging/*/rows/*"))
        if found and left:
            left.pop()(found[0])

    return Callback(posttask=look)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (flip, r"shuffled rows .* are damaged"),
        (cut, r"shuffled rows .* are damaged"),
        (Path.unlink, r"was removed during the write; .*cleanup"),
    ],
)
def test_damage_to_rows_on_their_way_is_no_damage_to_the_data(
    tmp_path: Path, change: Callable[[Path], None], problem: str
) -> None:
    with change_spills(tmp_path, change), pytest.raises(TFRecordError, match=problem):
        to_tfrecord(collection(), tmp_path, shuffle=True, seed=1)
    assert not list(tmp_path.iterdir())


def doom(step: str, marker: str) -> None:
    """Have the first worker die that calls a step of the shuffle for the second time."""
    module: Any = exchange if hasattr(exchange, step) else merge
    original, calls = getattr(module, step), []

    def work_or_die(*args: Any) -> Any:
        calls.append(step)
        if len(calls) == 2 and not os.path.exists(marker):
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)

    setattr(module, step, work_or_die)


@pytest.mark.parametrize("step", ["_to_stream", "_read", "_read_group"])
def test_a_worker_killed_during_a_shuffle_leaves_exactly_the_committed_rows(
    tmp_path: Path, mortals: Client, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A worker is killed in the second round, or while rows move in one round."""
    options: dict[str, Any] = {"partition_on": "key", "colocate": True, "shuffle": True, "seed": 5}
    to_tfrecord(collection(8), tmp_path / "a", **options)
    plain = Snapshot.open(tmp_path / "a")
    if step == "_read_group":
        monkeypatch.setattr(spill, "_MOST_SECTIONS", 1)
    killed = tmp_path / "killed"
    mortals.wait_for_workers(2)  # the one killed by the test before may still be starting again
    mortals.run(doom, step, str(killed))
    to_tfrecord(collection(8), tmp_path / "b", **options, compute_kwargs={"scheduler": mortals})
    other = Snapshot.open(tmp_path / "b")
    assert killed.exists()
    assert contents(plain) == contents(other)
    assert len(list(tmp_path.glob("b/*/part-*"))) == len(other.files)


def test_only_the_first_file_of_a_source_counts(tmp_path: Path) -> None:
    run = WriteRun(Store.at(tmp_path), Schema.from_arrow(pa.schema([("n", pa.int64())])), "0" * 32)
    tables = [pa.table({"n": pa.array(numbers)}) for numbers in (range(100), range(99, -1, -1))]
    first, again = (exchange.spill(run, table, 0, Shuffle((), 1, 4), Route.plan(1, 4)) for table in tables)
    assert again.path == first.path
    assert again.starts.tolist() == first.starts.tolist()
    assert again.checksums.tolist() == first.checksums.tolist()
    assert len(list(tmp_path.glob("_tfrecord/staging/*/rows/*-*"))) == 1


# Rows of each source partition.
SIZES = [0, 40, 0, 1, 25, 34]
TOTAL = sum(SIZES)
TARGETS = 4
NULL = "key=__HIVE_DEFAULT_PARTITION__"

NAN = float("nan")

# Keys: the type of the column, and for some values the directory.
KEYS: dict[str, tuple[pa.DataType, dict[Any, str]]] = {
    "text": (pa.string(), {"a": "key=a", None: NULL, "": "key=", "bc": "key=bc", "ä": "key=ä"}),
    "floats": (pa.float64(), {1.5: "key=1.5", NAN: "key=nan", -0.0: "key=-0", None: NULL}),
    "categories": (pa.dictionary(pa.int8(), pa.string()), {"a": "key=a", "b": "key=b", None: NULL}),
    "distinct": (pa.int64(), {n: f"key={n}" for n in range(TOTAL)}),
    "one key": (pa.int64(), {7: "key=7"}),
    "all null": (pa.string(), {None: NULL}),
}

# The seed of a shuffle, or None, and the value of `colocate`.
WRITES = {"shuffle": (5, False), "colocate": (None, True), "both": (3, True)}

# Bytes of a pass, least bytes of a piece, share that is read whole, and most sections of one round.
PASSES = {
    "a row": (1, 1, 0.0, 1 << 18),
    "some rows": (8_000, 300, 0.0, 1 << 18),
    "two rounds": (8_000, 300, 0.0, 1),
    "all rows": (1 << 25, 1 << 14, 1.25, 1 << 18),
}


def source(sizes: list[int] = SIZES, kind: str = "text") -> list[pd.DataFrame]:
    """The source partitions. Categories of each have other codes, and are all in another order."""
    type_, directories = KEYS[kind]
    rows = sum(sizes)
    values = list(directories)
    keys = [values[n % len(values)] for n in range(rows)]
    if kind == "text":  # most rows have the same key
        keys = [key if n % 7 == 0 else "bc" for n, key in enumerate(keys)]
    columns = {
        "n": pa.array(range(rows)),
        "word": pa.array([None if n % 5 == 0 else "w" * (n % 9) for n in range(rows)]),
        "list": pa.array([[n] * (n % 4) for n in range(rows)], pa.list_(pa.int64())),
    }
    frames, start = [], 0
    for size in sizes:
        part = {name: column.slice(start, size) for name, column in columns.items()}
        part["key"] = pa.array(keys[start : start + size], type_)
        frame = pd.DataFrame({name: pd.arrays.ArrowExtensionArray(column) for name, column in part.items()})
        frame["mood"] = pd.Categorical([["sad", "fine"][n % 2] for n in range(size)])
        if kind == "categories":
            frame["key"] = pd.Categorical(keys[start : start + size])
        frames.append(frame)
        start += size
    return frames


def collected(frames: list[pd.DataFrame], kind: str) -> dd.DataFrame:
    meta = frames[1].iloc[:0]
    if kind == "categories":
        meta = meta.assign(key=pd.Categorical([], categories=["a", "b"]))
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_map(lambda number: frames[number], range(len(frames)), meta=meta)


def mix(row_id: int, seed: int | None) -> int:
    """The sort key of a row."""
    if seed is None:
        return row_id
    mask = (1 << 64) - 1
    number = row_id ^ int(np.random.SeedSequence(seed & mask).generate_state(1, np.uint64)[0])
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & mask
    number = (number ^ number >> 27) * 0x94D049BB133111EB & mask
    number ^= number >> 31
    return number


def expected(
    sizes: list[int], kind: str | None, seed: int | None, colocate: bool
) -> dict[tuple[str, int], list[int]]:
    """The numbers of the rows of each file: a file is a directory and a target partition."""
    names: list[str] = [""] * sum(sizes)
    if kind is not None:
        directories = list(KEYS[kind][1].values())
        names = [directories[n % len(directories)] for n in range(sum(sizes))]
        if kind == "text":
            names = [name if n % 7 == 0 else "key=bc" for n, name in enumerate(names)]
    files = defaultdict(list)
    n = 0
    for source, size in enumerate(sizes):
        for row in range(size):
            key = mix((source << 40) + row, seed)
            digest = hashlib.blake2b(names[n].encode(), digest_size=8).digest()
            target = (int.from_bytes(digest, "little") if colocate else key) % TARGETS
            files[names[n], target].append((key, n))
            n += 1
    return {file: [n for _, n in sorted(rows)] for file, rows in files.items()}


def written(root: Path, snapshot: Snapshot) -> dict[tuple[str, int], list[int]]:
    """The numbers of the rows of each file."""
    found = {}
    for file in snapshot.files:
        directory, _, name = file.path.rpartition("/")
        if numbers := read_tfrecord(root / file.path, columns="n").compute().tolist():
            found[directory, int(name.split("-")[2])] = numbers
    return found


def set_passes(size: int, least: int, whole: float, sections: int) -> None:
    """Change the sizes of passes and pieces, and the number of rounds."""
    merge.pass_bytes = spill.pass_bytes = lambda _: size
    spill._LEAST_PIECE_BYTES = least
    merge._WHOLE_SHARE = whole
    spill._MOST_SECTIONS = sections


@pytest.fixture(params=list(PASSES))
def passes(request: pytest.FixtureRequest) -> Iterator[str]:
    set_passes(*PASSES[request.param])
    yield request.param
    set_passes(*PASSES["all rows"])


def texts(frames: list[pd.DataFrame], name: str) -> list[str]:
    """The values of a column as text. A null is None, whatever the type of the column."""
    columns = [pa.array(frame[name], from_pandas=frame[name].dtype.kind == "O") for frame in frames]
    return [repr(value) for column in columns for value in column.to_pylist()]


def check(root: Path, kind: str | None, write: str, **options: Any) -> Snapshot:
    """Write a collected, and compare each file with the model and all rows with the source."""
    seed, colocate = WRITES[write]
    frames = source(kind=kind or "text")
    to_tfrecord(
        collected(frames, kind or "text"),
        root,
        partition_on=kind and "key",
        shuffle=seed is not None,
        seed=seed or 0,
        colocate=colocate,
        write_options={"npartitions": TARGETS},
        schema={"key": pa.string()} if kind == "categories" else None,
        **options,
    )
    snapshot = Snapshot.open(root)
    assert written(root, snapshot) == expected(SIZES, kind, seed, colocate)
    found = read_tfrecord(root).compute().sort_values("n")
    for name in ("word", "list", "mood", "key"):
        assert texts([found], name) == texts(frames, name)
    return snapshot


KINDS = [*KEYS, None]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("passes", "kind", "write"),
    [
        (list(PASSES)[(at + number) % len(PASSES)], kind, write)
        for at, kind in enumerate(KINDS)
        for number, write in enumerate(WRITES)
        if kind is not None or write == "shuffle"
    ],
    indirect=["passes"],
)
def test_every_file_has_the_rows_of_the_model(
    tmp_path: Path, passes: str, kind: str | None, write: str
) -> None:
    """Each of the passes is tested with every kind of key, and with every way to write."""
    check(tmp_path, kind, write)


def test_every_dtype_survives_many_passes(tmp_path: Path, passes: str) -> None:
    table = every_dtype.frame()
    ddf = dd.from_pandas(table.assign(number=range(len(table))), npartitions=3)
    to_tfrecord(ddf, tmp_path, lossy="allow", shuffle=True, seed=1)
    found = (
        read_tfrecord(tmp_path, dtype_backend="pyarrow")
        .compute()
        .sort_values("number")
        .reset_index(drop=True)
    )
    every_dtype.assert_same(found.drop(columns="number"), every_dtype.read_back())


@pytest.mark.parametrize(
    ("write", "limits"),
    [
        ("shuffle", {}),
        ("colocate", {"write_options": {"max_rows_per_file": 7}}),
        ("shuffle", {"write_options": {"max_bytes_per_file": 500}}),
    ],
)
def test_the_bytes_of_a_colocated_shuffle_do_not_depend_on_the_passes(
    tmp_path: Path, write: str, limits: dict[str, int]
) -> None:
    seed, colocate = WRITES[write]
    options: dict[str, Any] = {"partition_on": "key", "colocate": colocate, **limits}
    if seed is not None:
        options |= {"shuffle": True, "seed": seed}
    found = []
    for name, sizes in PASSES.items():
        set_passes(*sizes)
        to_tfrecord(collected(source(), "text"), tmp_path / name, **options)
        snapshot = Snapshot.open(tmp_path / name)
        files = [(file.path.rpartition("part-")[0], file.records, file.crc32c) for file in snapshot.files]
        found.append(files)
    assert all(one == found[0] for one in found)


def test_all_partitions_may_be_empty(tmp_path: Path, passes: str) -> None:
    frames = [frame.iloc[:0] for frame in source()]
    ddf = collected(frames, "text")
    assert to_tfrecord(ddf, tmp_path / "a", shuffle=True, seed=1, write_options={"npartitions": 3}).rows == 0
    to_tfrecord(ddf, tmp_path / "b", partition_on="key", colocate=True)
    assert Snapshot.open(tmp_path / "b").files == ()


def test_a_pass_reads_what_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass reads some pieces. No piece is read twice."""
    set_passes(*PASSES["some rows"])
    read: list[list[Any]] = []
    original = merge._read

    def note(store: Any, sections: Any, pieces: Any, held: Any) -> Any:
        read.append([(sections[piece.section].path, piece.offset) for piece in pieces])
        assert held is None or held.table.num_rows < TOTAL / 2
        return original(store, sections, pieces, held)

    monkeypatch.setattr(merge, "_read", note)
    to_tfrecord(collected(source(kind="one key"), "one key"), tmp_path, partition_on="key", colocate=True)
    set_passes(*PASSES["all rows"])
    pieces = [piece for one in read for piece in one]
    assert len(read) > 1
    assert len(set(pieces)) == len(pieces) > len(read)
