"""The tests of names that a shell would take for patterns, for every store."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar
from unittest.mock import patch

import dask.dataframe as dd
import pandas as pd
import pytest

from dask_tfrecord import open_dataset, read_tfrecord

# Names that the patterns match.
SIBLINGS = ["ab", "a0b", "b", "axb", "ac"]


def rows(*numbers: int, npartitions: int = 2) -> dd.DataFrame:
    frame = pd.DataFrame({"n": list(numbers), "key": [n % 3 for n in numbers]})
    return dd.from_pandas(frame, npartitions=npartitions)


@contextmanager
def killed_before_the_commit() -> Iterator[None]:
    """Leave a write in the body of the with statement as if its process were killed before the commit."""
    with (
        patch("dask_tfrecord.collection.expr.write_expression.commit", side_effect=KeyboardInterrupt),
        patch("dask_tfrecord.api.write.abandon"),
        pytest.raises(KeyboardInterrupt),
    ):
        yield


class PatternNames:
    """A part of `StoreSuite`, whose methods the tests call."""

    # Names of directories that a shell would take for patterns.
    names: ClassVar[list[str]] = ["a[0-9]b", "[!a]", "a**b", "a[b]", "a?b", "a{b,c}", "a[z-a]b"]

    def test_a_root_is_never_taken_for_a_pattern(self, place: str, name: str) -> None:
        above = self.store(place)
        beside = [f"{one}/{path}" for one in SIBLINGS for path in ("_SUCCESS", "_tfrecord/staging/x", "part")]
        for path in beside:
            above.fs.makedirs(above.join(path).rpartition("/")[0], exist_ok=True)
            above.fs.pipe_file(above.join(path), b"x")
        here = f"{place}/{name}"
        self.write(rows(0, 1, 2), here, partition_on="key")
        self.write(rows(3), here, partition_on="key", append=True)
        assert self.read(here) == [0, 1, 2, 3]
        assert open_dataset(here, storage_options=self.options).take([0])["n"].to_pylist() == [0]
        assert open_dataset(here, storage_options=self.options).verify()["agrees"].all()
        self.write(rows(7), here, partition_on="key", overwrite="partitions")
        assert self.read(here) == [0, 2, 3, 7]
        with killed_before_the_commit():
            self.write(rows(4), here, partition_on="key", append=True)
        assert len(self.clean(here)) >= 1
        assert self.read(here) == [0, 2, 3, 7]
        self.write(rows(8), here, overwrite=True)
        assert self.read(here) == [8]
        assert len(self.files(here)) == 3
        found = [path for path in self.files(place) if not path.startswith(f"{name}/")]
        assert found == sorted(beside)

    def test_foreign_files_below_a_root_like_a_pattern_are_indexed_kept_and_replaced(
        self, place: str, name: str
    ) -> None:
        here = f"{place}/{name}"
        self.write(rows(1), here)
        store = self.store(here)
        [part] = [path for path in self.files(here) if path.startswith("part-")]
        data = store.fs.cat_file(store.join(part))
        store.remove(store.join(path) for path in self.files(here))
        store.fs.makedirs(store.join("day=[!a]*"), exist_ok=True)
        store.fs.pipe_file(store.join("day=[!a]*/b[c]?.tfrecord"), data)
        assert open_dataset(here, storage_options=self.options).add_snapshot().rows == 1
        self.write(rows(2).assign(day="x"), here, append=True, partition_on="day")
        assert self.read(here) == [1, 2]
        store.remove(store.join(path) for path in self.files(here) if path.startswith("_tfrecord/"))
        self.write(rows(3), here, overwrite=True)
        assert self.read(here) == [3]
        assert len(self.files(here)) == 3

    def test_values_like_patterns_make_directories_that_are_taken_literally(self, place: str) -> None:
        values = ["a[b]", "ab", "a*", "a?b", "{a,b}", "[!a]", "**", "axb", "b"]
        frame = pd.DataFrame({"n": range(len(values)), "text": values})
        ddf = dd.from_pandas(frame, npartitions=1)
        self.write(ddf, place, partition_on="text")
        some = ddf[ddf["text"].isin(["a[b]", "a*", "[!a]", "**"])].assign(n=-1)
        self.write(some, place, partition_on="text", overwrite="partitions")
        found = read_tfrecord(place, storage_options=self.options).compute()
        expected = {value: n for n, value in enumerate(values)}
        expected |= {"a[b]": -1, "a*": -1, "[!a]": -1, "**": -1}
        assert dict(zip(found["text"], found["n"], strict=True)) == expected
        assert len(self.files(place)) == len(values) + 2
