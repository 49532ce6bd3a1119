"""`filters=` and predicates on the frame: the rows are pandas' own, and few files are opened."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import oracle
import pandas as pd
import pyarrow as pa
import pytest

from dask_tfrecord import SchemaError, read_tfrecord, to_tfrecord
from dask_tfrecord.dataset.store import Store


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with dask.config.set(scheduler="sync"):
        yield


class Opened(list[str]):
    """Paths of the files that were opened for their records."""

    @property
    def parts(self) -> list[str]:
        return sorted(path.split("part-")[-1][-20:] for path in self)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    found = Opened()
    original = Store.open

    @contextmanager
    def opening(self: Store, path: str, *args: Any) -> Iterator[Any]:
        found.append(path)
        with original(self, path, *args) as source:
            yield source

    monkeypatch.setattr(Store, "open", opening)
    return found


ROWS = 40
FRAME = pd.DataFrame(
    {
        "n": range(ROWS),
        "share": pd.array([n / 8 if n % 5 else None for n in range(ROWS)], pd.ArrowDtype(pa.float32())),
        "word": pd.array([f"w{n:02}" if n % 4 else None for n in range(ROWS)], pd.ArrowDtype(pa.string())),
        "list": pd.array([[n] * (n % 3) for n in range(ROWS)], pd.ArrowDtype(pa.list_(pa.int64()))),
        "country": ["FR", "PL", "FR", "US"] * (ROWS // 4),
    }
).astype({"n": pd.ArrowDtype(pa.int64())})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four partitions of ten rows in three countries each: twelve files."""
    root = tmp_path_factory.mktemp("pruning") / "data"
    to_tfrecord(dd.from_pandas(FRAME, npartitions=4), root, partition_on=["country"])
    return root


def numbers(frame: pd.DataFrame) -> list[int]:
    return sorted(frame["n"].tolist())


def wanted(mask: "pd.Series[Any]") -> list[int]:
    return FRAME["n"][mask.astype("boolean").fillna(False).astype(bool)].tolist()


FILTERS: list[tuple[Any, "pd.Series[Any]", int]] = [
    ([("country", "==", "PL")], FRAME.country == "PL", 4),
    ([("country", "in", ["PL", "US"])], FRAME.country.isin(["PL", "US"]), 8),
    ([("country", "!=", "FR")], FRAME.country != "FR", 8),
    ([("country", "==", "DE")], FRAME.country == "DE", 0),
    ([("n", "<", 10)], FRAME.n < 10, 3),
    ([("n", ">=", 25), ("country", "==", "FR")], (FRAME.n >= 25) & (FRAME.country == "FR"), 2),
    (
        [[("n", "<", 5)], [("n", ">", 35), ("country", "==", "US")]],
        (FRAME.n < 5) | ((FRAME.n > 35) & (FRAME.country == "US")),
        4,
    ),
    ([("word", "is not", None)], FRAME.word.notna(), 12),
    ([("word", "==", "w13")], FRAME.word == "w13", 3),
    ([("share", ">", 4.5)], FRAME.share > 4.5, 3),
    ([("list", "is", None)], FRAME.list.isna(), 0),
]


@pytest.mark.parametrize("case", range(len(FILTERS)))
@pytest.mark.parametrize("blocksize", [None, "128 MiB"])
def test_filters_load_the_rows_and_open_the_files_that_may_hold_them(
    case: int, blocksize: str | None, root: Path, opened: Opened
) -> None:
    filters, mask, files = FILTERS[case]
    ddf = read_tfrecord(root, filters=filters, blocksize=blocksize)
    assert opened == []
    found = ddf.compute()
    assert numbers(found) == wanted(mask)
    assert len(opened) == files
    assert len(ddf) == len(found)
    if files and blocksize is None:
        assert ddf.npartitions == files
    for column in ("list", "country"):
        assert len(ddf[column].compute()) == len(found)
    assert found.dtypes.equals(ddf.dtypes)


def test_a_length_is_known_where_filters_are_certain(root: Path, opened: Opened) -> None:
    assert len(read_tfrecord(root, filters=[("country", "in", ["PL", "US"])])) == 20
    assert len(read_tfrecord(root, filters=[("n", "<", 10)])) == 10
    assert len(read_tfrecord(root, filters=[("n", "<", 100)])) == 40
    assert opened == []
    assert len(read_tfrecord(root, filters=[("n", "<", 12)], blocksize=None)) == 12
    assert len(opened) == 2  # country by country, 10 and 11 are in files that hold others too


def test_rows_of_foreign_files_are_filtered(tmp_path: Path, opened: Opened) -> None:
    rows = [
        {"n": ("int64", [n]), "x": ("int64", [n * 2])} if n % 3 else {"x": ("int64", [1])} for n in range(12)
    ]
    for number in range(3):
        (tmp_path / f"{number}.tfrecord").write_bytes(oracle.features_file(rows[4 * number : 4 * number + 4]))
    ddf = read_tfrecord(tmp_path, filters=[("n", ">", 4)], columns=["x"])
    assert ddf.compute()["x"].tolist() == [n * 2 for n in range(5, 12) if n % 3]
    assert list(ddf.columns) == ["x"]
    assert len(read_tfrecord(tmp_path, filters=[("n", "not in", [1, 2])])) == 10
    assert len(read_tfrecord(tmp_path, filters=[("n", "is", None)])) == 4


def test_filters_may_look_at_columns_that_are_not_loaded(root: Path) -> None:
    ddf = read_tfrecord(root, filters=[("n", "<", 3), ("word", "is not", None)], columns=["country", "share"])
    assert list(ddf.compute().columns) == ["country", "share"]
    assert ddf.compute()["share"].tolist() == [2 / 8, 1 / 8]  # FR before PL
    assert len(read_tfrecord(root, filters=[("n", "<", 3)], columns=[]).compute()) == 3


def test_no_filters_are_no_filter(root: Path) -> None:
    assert len(read_tfrecord(root, filters=[])) == len(read_tfrecord(root, filters=None)) == ROWS


def test_a_wrong_filter_is_refused_at_once(root: Path) -> None:
    with pytest.raises(SchemaError, match=r"no column is named 'm'; there are 'n'"):
        read_tfrecord(root, filters=[("m", "==", 1)])
    with pytest.raises(SchemaError, match=r"feature 'country'.*not a string"):
        read_tfrecord(root, filters=[("country", "==", b"PL")])


def test_statistics_of_another_type_rule_nothing_out(tmp_path: Path) -> None:
    days = pd.DataFrame({"x": pd.array(["2024-01-01", "2024-01-02"], pd.ArrowDtype(pa.string()))})
    days["x"] = days["x"].astype(pd.ArrowDtype(pa.date32()))
    to_tfrecord(dd.from_pandas(days, npartitions=1), tmp_path / "data")
    ddf = read_tfrecord(
        tmp_path / "data", schema={"x": pa.timestamp("s")}, filters=[("x", "<", "1970-01-02")]
    )
    assert len(ddf.compute()) == 2


def test_the_filters_are_part_of_the_name(root: Path) -> None:
    names = {read_tfrecord(root, filters=[("n", "<", bound)]).expr._name for bound in (33, 34, 34)}
    assert len(names) == 2
