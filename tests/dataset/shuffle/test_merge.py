"""The rows of each file of `shuffle=` and `colocate=` against a model in Python, for passes of all sizes.

Modules: dataset.shuffle.merge, dataset.shuffle.spill.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import every_dtype
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from distributed import Client

from dask_tfrecord import Snapshot, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.shuffle import merge, spill

pytestmark = pytest.mark.usefixtures("one_thread")

# Rows of each source partition.
SIZES = [0, 40, 0, 1, 25, 34]
ROWS = sum(SIZES)
TARGETS = 4
NULL = "key=__HIVE_DEFAULT_PARTITION__"

NAN = float("nan")

# Keys: the type of the column, and for some values the directory.
KEYS: dict[str, tuple[pa.DataType, dict[Any, str]]] = {
    "text": (pa.string(), {"a": "key=a", None: NULL, "": "key=", "bc": "key=bc", "ä": "key=ä"}),
    "floats": (pa.float64(), {1.5: "key=1.5", NAN: "key=nan", -0.0: "key=-0", None: NULL}),
    "categories": (pa.dictionary(pa.int8(), pa.string()), {"a": "key=a", "b": "key=b", None: NULL}),
    "distinct": (pa.int64(), {n: f"key={n}" for n in range(ROWS)}),
    "one key": (pa.int64(), {7: "key=7"}),
    "all null": (pa.string(), {None: NULL}),
}

# Options of a write: the seed, and the value of `colocate`.
WRITES = {"shuffle": (5, False), "colocate": (None, True), "both": (-3, True)}

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


def collection(frames: list[pd.DataFrame], kind: str) -> dd.DataFrame:
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
    """Write a collection, and compare each file with the model and all rows with the source."""
    seed, colocate = WRITES[write]
    frames = source(kind=kind or "text")
    snapshot = to_tfrecord(
        collection(frames, kind or "text"),
        root,
        partition_on=kind and "key",
        shuffle=seed,
        colocate=colocate,
        npartitions=TARGETS,
        schema={"key": pa.string()} if kind == "categories" else None,
        **options,
    )
    assert written(root, snapshot) == expected(SIZES, kind, seed, colocate)
    found = read_tfrecord(root).compute().sort_values("n")
    for name in ("word", "list", "mood", "key"):
        assert texts([found], name) == texts(frames, name)
    return snapshot


KINDS = [*KEYS, None]


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
    to_tfrecord(ddf, tmp_path, lossy="allow", shuffle=1)
    found = read_tfrecord(tmp_path).compute().sort_values("number").reset_index(drop=True)
    every_dtype.assert_same(found.drop(columns="number"), every_dtype.read_back())


@pytest.mark.parametrize(
    ("write", "limits"),
    [("shuffle", {}), ("colocate", {"max_rows_per_file": 7}), ("shuffle", {"max_bytes_per_file": 500})],
)
def test_the_bytes_of_a_colocated_shuffle_do_not_depend_on_the_passes(
    tmp_path: Path, write: str, limits: dict[str, int]
) -> None:
    seed, colocate = WRITES[write]
    options: dict[str, Any] = {"partition_on": "key", "shuffle": seed, "colocate": colocate, **limits}
    found = []
    for name, sizes in PASSES.items():
        set_passes(*sizes)
        snapshot = to_tfrecord(collection(source(), "text"), tmp_path / name, **options)
        files = [(file.path.rpartition("part-")[0], file.records, file.crc32c) for file in snapshot.files]
        found.append(files)
    assert all(one == found[0] for one in found)


def test_two_rounds_of_many_passes_on_a_cluster(tmp_path: Path, client: Client) -> None:
    set_passes(*PASSES["two rounds"])
    client.run(set_passes, *PASSES["two rounds"])
    check(tmp_path, "text", "both", compute_kwargs={"scheduler": client})
    client.run(set_passes, *PASSES["all rows"])
    set_passes(*PASSES["all rows"])


def test_all_partitions_may_be_empty(tmp_path: Path, passes: str) -> None:
    frames = [frame.iloc[:0] for frame in source()]
    ddf = collection(frames, "text")
    assert to_tfrecord(ddf, tmp_path / "a", shuffle=1, npartitions=3).records == 0
    assert to_tfrecord(ddf, tmp_path / "b", partition_on="key", colocate=True).files == ()


def test_a_pass_reads_what_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass reads some pieces. No piece is read twice."""
    set_passes(*PASSES["some rows"])
    read: list[list[Any]] = []
    original = merge._read

    def note(store: Any, sections: Any, pieces: Any, held: Any) -> Any:
        read.append([(sections[piece.section].path, piece.offset) for piece in pieces])
        assert held is None or held.table.num_rows < ROWS / 2
        return original(store, sections, pieces, held)

    monkeypatch.setattr(merge, "_read", note)
    to_tfrecord(collection(source(kind="one key"), "one key"), tmp_path, partition_on="key", colocate=True)
    set_passes(*PASSES["all rows"])
    pieces = [piece for one in read for piece in one]
    assert len(read) > 1
    assert len(set(pieces)) == len(pieces) > len(read)
