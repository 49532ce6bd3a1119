"""Every function that reads or changes a dataset, with how often it lists the files."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem
from small_frames import keyed

from dask_tfrecord import Writer, exists, explain, open_dataset, read_tfrecord, to_tfrecord
from dask_tfrecord.feed import RecordTable, iter_batches
from dask_tfrecord.storage.local_disk import LinkFollowingDisk
from dask_tfrecord.storage.store import LocalStore
from dask_tfrecord_launcher import main

Options = dict[str, Any]


class Listed(NamedTuple):
    """How often all files, and only the metadata or the files that older versions need, were listed."""

    data: int = 0
    kept: int = 0

    @classmethod
    def of(cls, directories: list[str], root: str) -> "Listed":
        """``directories`` contains each directory that was listed with everything below it."""
        below = [path.rstrip("/").removeprefix(root).lstrip("/") for path in directories]
        return cls(below.count(""), below.count("_tfrecord") + below.count("_tfrecord/kept"))


@contextmanager
def noted_listings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note each directory on a local disk or in memory that is listed with everything below it."""
    directories: list[str] = []

    def note(kind: Any, name: str) -> None:
        original = getattr(kind, name)

        def noting(self: Any, path: str = "", *args: Any, **options: Any) -> Any:
            directories.append(self.join(path) if kind is LocalStore else path)
            return original(self, path, *args, **options)

        patched.setattr(kind, name, noting)

    with monkeypatch.context() as patched:
        note(MemoryFileSystem, "find")
        note(LinkFollowingDisk, "find")
        note(LocalStore, "find_everything")
        yield directories


def write(place: str, options: Options) -> None:
    """Write a dataset that keeps replaced files for older versions."""
    for number in (1, 2):
        rows = keyed(a=[number], b=[number], c=[number])
        to_tfrecord(rows, place, partition_on="key", append=True, **options)
    open_dataset(place, **options).compact(filters=[("key", "==", "c")])


def add(place: str, options: Options, **how: Any) -> Any:
    return to_tfrecord(keyed(a=[3], b=[3]), place, partition_on="key", **options, **how)


def _of_dataset(method: str, *args: Any, **keywords: Any) -> Callable[..., Any]:
    def call(place: str, options: Options) -> Any:
        found = getattr(open_dataset(place, **options), method)
        return found(*args, **keywords) if callable(found) else found

    return call


def _command(name: str, *args: str) -> Callable[..., Any]:
    def call(place: str, options: Options) -> None:
        result = CliRunner().invoke(main, [name, place, *args])
        assert result.exit_code == 0, (result.output, result.exception)

    return call


def _commit_rows(place: str, options: Options) -> None:
    with Writer(place, partition_on="key", **options) as writer:
        for number in range(2):
            writer.write([{"n": number, "key": "a"}])
            writer.commit()


PROPERTIES = (
    *("path", "version", "record_type", "num_rows", "nbytes", "files", "metadata", "codecs", "partitioning"),
    *("splits", "supervised_keys", "statistics", "schema", "column_files"),
)

# The calls that list nothing.
READS: dict[str, Callable[[str, Options], Any]] = {
    "read_tfrecord": lambda place, options: read_tfrecord(place, **options),
    "compute": lambda place, options: read_tfrecord(place, **options).compute(),
    "len": lambda place, options: len(read_tfrecord(place, **options)),
    "head of a collection": lambda place, options: read_tfrecord(place, **options).head(1),
    "filters": lambda place, options: read_tfrecord(place, filters=[("n", "==", 1)], **options).compute(),
    "mask": lambda place, options: (lambda ddf: ddf[ddf["n"] == 1].compute())(
        read_tfrecord(place, **options)
    ),
    "version=": lambda place, options: read_tfrecord(place, version=1, **options).compute(),
    "explain": lambda place, options: explain(read_tfrecord(place, **options)),
    "open_dataset": lambda place, options: open_dataset(place, **options),
    "exists": lambda place, options: exists(place, **options),
    "iter_batches": lambda place, options: [*iter_batches(place, 2, **options)],
    "shuffled": lambda place, options: [*iter_batches(place, 2, shuffle=True, seed=1, **options)],
    "RecordTable": lambda place, options: RecordTable(place, **options)[0],
    **{name: _of_dataset(name) for name in PROPERTIES},
    **{name: _of_dataset(name) for name in ("__repr__", "_repr_html_", "history", "count_rows", "to_table")},
    **{name: _of_dataset(name) for name in ("scanner", "get_fragments", "to_dask")},
    "filter": _of_dataset("filter", pc.field("n") == 1),
    "to_batches": lambda place, options: [*open_dataset(place, **options).to_batches()],
    "batches": lambda place, options: [*open_dataset(place, **options).batches(2)],
    "head": _of_dataset("head", 1),
    "take": _of_dataset("take", [0, -1]),
    "export": _of_dataset("export", "tfmd"),
    "export of an index": _of_dataset("export", "idx"),
}

# These can run one after the other.
CHANGES: dict[str, tuple[Callable[[str, Options], Any], Listed]] = {
    "append": (lambda place, options: add(place, options, append=True), Listed()),
    "Writer": (_commit_rows, Listed()),
    "compact": (_of_dataset("compact"), Listed()),
    "delete": (_of_dataset("delete", [("n", "==", 1)]), Listed()),
    "restore": (_of_dataset("restore", 1), Listed()),
    # These look for files that the newest snapshot does not list.
    "kept_bytes": (_of_dataset("kept_bytes"), Listed(kept=1)),
    "check": (_of_dataset("check"), Listed(data=1)),
    "verify": (_of_dataset("verify"), Listed(data=1)),
    "repair": (_of_dataset("repair"), Listed(data=1)),
    "add_snapshot": (_of_dataset("add_snapshot", columnar=["n"]), Listed(data=1)),
    "cleanup": (_of_dataset("cleanup"), Listed(data=1)),
    "expire": (_of_dataset("expire", versions=1), Listed(kept=1)),
    "partitions": (
        lambda place, options: add(place, options, overwrite="partitions"),
        Listed(kept=1),
    ),
    "delete for good": (_of_dataset("delete", [("n", "==", 1)], keep_versions=False), Listed(kept=1)),
    "compact for good": (_of_dataset("compact", keep_versions=False), Listed(kept=1)),
    "overwrite": (lambda place, options: add(place, options, overwrite=True), Listed(data=1, kept=1)),
}

COMMANDS: dict[str, tuple[Callable[[str, Options], Any], Listed]] = {
    **{name: (_command(name), Listed()) for name in ("head", "cat", "count", "schema")},
    # These print how much room older versions take.
    **{name: (_command(name), Listed(kept=1)) for name in ("describe", "history")},
    "export": (_command("export", "--format=tfmd"), Listed()),
    "convert": (_command("convert", "--dry-run", "memory://copy"), Listed()),
    "check": (_command("check"), Listed(data=1)),
}
