"""A cache of blocks returns exactly the stored bytes or nothing, keeps its limit, and touches no other file.

Modules: storage.block_cache.
"""

import multiprocessing
import os
import pickle
import random
import resource
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from s3fs import S3FileSystem

from dask_tfrecord.keywords.arguments import block_cache
from dask_tfrecord.storage.block_cache import BLOCK_BYTES, BlockCache

_DAY = 86_400


def _content(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def _key(cache: BlockCache, name: str = "data.tfrecord") -> str:
    key = cache.key(MemoryFileSystem(), f"/train/{name}", 1, "etag")
    assert key is not None
    return key


def _found(cache: BlockCache, key: str, start: int, stop: int) -> list[tuple[int, int, bytes | None]]:
    parts = cache.find(key, start, stop)
    return [(part.start, part.stop, None if part.data is None else bytes(part.data)) for part in parts]


def _blocks(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("dask_tfrecord_cache/??/*"))


def _used(directory: Path) -> int:
    return sum(path.stat().st_size for path in _blocks(directory))


@pytest.mark.parametrize("size", [1, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 5])
def test_stored_bytes_come_back_in_whole_blocks(size: int, tmp_path: Path) -> None:
    cache, data = BlockCache(str(tmp_path), 1 << 30), _content(0, size)
    key = _key(cache)
    cache.store(key, 0, data, size)
    for start, stop in ((0, size), (0, size + BLOCK_BYTES), (size - 1, size), (size // 2, size // 2 + 1)):
        parts = _found(BlockCache(str(tmp_path), 1 << 30), key, start, stop)
        first = start // BLOCK_BYTES * BLOCK_BYTES
        stored = [(one, data) for one, _, data in parts if data is not None]
        assert [one for one, _ in stored] == [*range(first, min(stop, size), BLOCK_BYTES)]
        assert (
            b"".join(data for _, data in stored) == data[first : first + sum(len(one) for _, one in stored)]
        )


def test_missing_blocks_that_adjoin_are_one_part(tmp_path: Path) -> None:
    cache, data = BlockCache(str(tmp_path), 1 << 30), _content(0, 7 * BLOCK_BYTES)
    key = _key(cache)
    cache.store(key, 3 * BLOCK_BYTES, data[3 * BLOCK_BYTES : 4 * BLOCK_BYTES], len(data))
    parts = _found(cache, key, BLOCK_BYTES + 1, 6 * BLOCK_BYTES + 1)
    assert [(start // BLOCK_BYTES, stop // BLOCK_BYTES, found is None) for start, stop, found in parts] == [
        (1, 3, True),
        (3, 4, False),
        (4, 7, True),
    ]


def test_bytes_after_the_last_whole_block_are_kept_only_at_the_end_of_the_file(tmp_path: Path) -> None:
    cache, data = BlockCache(str(tmp_path), 1 << 30), _content(0, BLOCK_BYTES + 10)
    for size in (None, len(data) + 1):
        cache.store(_key(cache), 0, data, size)
        assert [found is None for *_, found in _found(cache, _key(cache), 0, len(data))] == [False, True]


def test_a_changed_path_stamp_size_or_endpoint_is_another_file_but_new_credentials_are_not() -> None:
    cache = BlockCache("unused", 1 << 30)

    def key(
        path: str = "b/a", size: int = 1, stamp: str = "e", url: str = "http://a", secret: str = "s"
    ) -> str:
        fs = S3FileSystem(
            endpoint_url=url, key="k", secret=secret, client_kwargs={"aws_session_token": secret}, anon=False
        )
        found = cache.key(fs, path, size, stamp)
        assert found is not None
        return found

    different = [key(), key("b/c"), key(size=2), key(stamp="f"), key(url="http://b")]
    assert len({*different}) == len(different)
    assert key(secret="renewed") == key()


@pytest.mark.parametrize(
    ("name", "is_cached"),
    [
        (f"part-{'0f' * 16}-00000-of-00001.tfrecord", True),
        (f"part-{'0f' * 16}-00000-of-00001-00002-label.tfrecord.gz", True),
        (f"_tfrecord/columns/{'0f' * 16}-00000.parquet", True),
        ("part-00000-of-00001.tfrecord", False),
        (f"{'0f' * 16}.tfrecord", False),
    ],
)
def test_without_a_stamp_only_the_files_that_never_change_are_cached(name: str, is_cached: bool) -> None:
    cache, fs = block_cache("unused", None), MemoryFileSystem()
    assert cache is not None
    assert (cache.key(fs, f"/train/{name}", 1, "") is not None) == is_cached
    assert cache.key(fs, f"/train/{name}", 1, "stamp") is not None


def test_no_credentials_are_stored_and_no_other_user_may_read_the_blocks(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 1 << 30)
    path = "https://user:password@example.org/a.tfrecord?token=topsecret"
    before = os.umask(0)
    try:
        key = cache.key(MemoryFileSystem(), path, 5, "etag")
        assert key is not None
        cache.store(key, 0, b"hello", 5)
    finally:
        os.umask(before)
    for found in tmp_path.glob("dask_tfrecord_cache/**/*"):
        assert not found.stat().st_mode & 0o077 or found.name == "CACHEDIR.TAG"
        assert not any(word in str(found) for word in ("user", "password", "topsecret"))
    assert not (tmp_path / "dask_tfrecord_cache").stat().st_mode & 0o077


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


_DAMAGES = {
    "flipped": _flip,
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "swapped": lambda path: shutil.copy(next(one for one in path.parent.parent.glob("??/*-1")), path),
}


@pytest.mark.parametrize("damage", _DAMAGES)
@pytest.mark.parametrize("size", [2 * BLOCK_BYTES, BLOCK_BYTES + 9])
def test_damaged_block_is_missing_and_stored_again(damage: str, size: int, tmp_path: Path) -> None:
    cache, data = BlockCache(str(tmp_path), 1 << 30), _content(0, size)
    key = _key(cache)
    cache.store(key, 0, data, size)
    [path] = tmp_path.glob("dask_tfrecord_cache/??/*-0")
    _DAMAGES[damage](path)
    assert _found(cache, key, 0, size) == [(0, BLOCK_BYTES, None), (BLOCK_BYTES, size, data[BLOCK_BYTES:])]
    cache.store(key, 0, data, size)
    assert _found(cache, key, 0, 1) == [(0, BLOCK_BYTES, data[:BLOCK_BYTES])]


def test_the_blocks_that_were_not_used_for_the_longest_time_are_removed(tmp_path: Path) -> None:
    limit = 10 * (BLOCK_BYTES + 4)
    cache, data = BlockCache(str(tmp_path), limit), _content(0, 10 * BLOCK_BYTES)
    key = _key(cache)
    cache.store(key, 0, data, len(data))
    for path in _blocks(tmp_path):
        number = int(path.name.rpartition("-")[2])
        os.utime(path, (0, path.stat().st_mtime - _DAY * (number + 1)))
    assert cache.find(key, 9 * BLOCK_BYTES, 10 * BLOCK_BYTES)[0].data is not None  # the oldest block is used
    cache.store(_key(cache, "other"), 0, data[:BLOCK_BYTES], None)
    assert _used(tmp_path) <= limit
    missing = [one for one, (*_, found) in enumerate(_found(cache, key, 0, len(data))) if found is None]
    assert missing == [7]
    assert _found(cache, key, 7 * BLOCK_BYTES, len(data))[0] == (7 * BLOCK_BYTES, 9 * BLOCK_BYTES, None)
    assert _found(cache, _key(cache, "other"), 0, 1)[0][2] == data[:BLOCK_BYTES]


def test_no_file_of_the_user_is_removed(tmp_path: Path) -> None:
    cache, data = BlockCache(str(tmp_path), 2 * (BLOCK_BYTES + 4)), _content(0, 4 * BLOCK_BYTES)
    cache.store(_key(cache), 0, data[:BLOCK_BYTES], None)
    made = tmp_path / "dask_tfrecord_cache"
    group = next(made.glob("??"))
    other = tmp_path / "elsewhere"
    other.mkdir()
    kept = [
        tmp_path / f"{'0' * 32}-0",
        made / f"{'0' * 32}-0",
        group / "notes.txt",
        group / f"{'0' * 31}-0",
        other / f"{'0' * 32}-0",
    ]
    for path in kept:
        path.write_bytes(b"mine")
        os.utime(path, (0, 0))
    link = made / next(name for name in ("f0", "f1") if not (made / name).exists())
    link.symlink_to(other, target_is_directory=True)
    os.symlink(other / f"{'0' * 32}-0", group / f"{'1' * 32}-0")
    for start in range(4):
        cache.store(_key(cache, f"{start}"), 0, data[:BLOCK_BYTES], None)
    assert [path.read_bytes() for path in kept] == [b"mine"] * len(kept)
    assert (group / f"{'1' * 32}-0").is_symlink()


@contextmanager
def _one_warning(text: str) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        yield
    assert len(found) == 1
    assert text in str(found[0].message)
    assert "cache=" in str(found[0].message)


def _try(cache: BlockCache) -> None:
    """Use a cache that cannot store anything."""
    for _ in range(3):
        cache.store(_key(cache), 0, bytes(2 * BLOCK_BYTES), None)
        assert [found for *_, found in _found(cache, _key(cache), 0, 2 * BLOCK_BYTES)] == [None]


def test_directory_that_cannot_be_made_causes_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with _one_warning("Not a directory"):
        _try(BlockCache(str(tmp_path / "file" / "cache"), 1 << 30))


def test_directory_with_files_of_another_program_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "dask_tfrecord_cache").mkdir(0o700)
    (tmp_path / "dask_tfrecord_cache" / "notes.txt").write_text("")
    with _one_warning("files of another program"):
        _try(BlockCache(str(tmp_path), 1 << 30))


def test_directory_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "dask_tfrecord_cache").mkdir()
    os.chmod(tmp_path / "dask_tfrecord_cache", 0o777)
    with _one_warning("other users may write"):
        _try(BlockCache(str(tmp_path), 1 << 30))


def test_full_disk_causes_one_warning_and_leaves_no_incomplete_block(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 1 << 30)
    assert cache.prepare()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (BLOCK_BYTES // 2, limits[1])
    )  # a larger file cannot be written
    try:
        with _one_warning("File too large"):
            _try(cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert _blocks(tmp_path) == []


@pytest.mark.parametrize("removed", ["dask_tfrecord_cache", "dask_tfrecord_cache/*"])
def test_cache_that_was_removed_is_made_again(removed: str, tmp_path: Path) -> None:
    cache, data = BlockCache(str(tmp_path), 1 << 30), _content(0, BLOCK_BYTES)
    cache.store(_key(cache), 0, data, None)
    for path in tmp_path.glob(removed):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert _found(cache, _key(cache), 0, 1) == [(0, BLOCK_BYTES, None)]
    for one in (cache, cache, BlockCache(str(tmp_path), 1 << 30)):
        one.store(_key(cache), 0, data, None)
    assert _found(cache, _key(cache), 0, 1) == [(0, BLOCK_BYTES, data)]


@pytest.mark.parametrize("damage", ["flipped", "emptied", "zeroed"])
def test_used_bytes_are_measured_again_if_their_count_is_damaged(damage: str, tmp_path: Path) -> None:
    limit = 3 * (BLOCK_BYTES + 4)
    cache, data = BlockCache(str(tmp_path), limit), _content(0, BLOCK_BYTES)
    for number in range(9):
        cache.store(_key(cache, f"{number}"), 0, data, None)
        _DAMAGES[damage](tmp_path / "dask_tfrecord_cache" / "total")
        assert _used(tmp_path) <= limit
    assert len(_blocks(tmp_path)) >= 2


def test_a_cache_without_a_limit_leaves_a_quarter_of_the_free_disk(tmp_path: Path) -> None:
    caches = [BlockCache(str(tmp_path), None) for _ in range(2)]
    assert caches[0].prepare()
    caches[0].store(_key(caches[0]), 0, bytes(BLOCK_BYTES), None)
    assert caches[1].prepare()
    for cache in caches:  # other programs may use the disk meanwhile
        assert 0 < cache.limit < shutil.disk_usage(tmp_path).total * 3 // 4


def test_block_of_a_killed_process_is_removed_but_not_one_that_is_being_written(tmp_path: Path) -> None:
    cache, data = BlockCache(str(tmp_path), 2 * (BLOCK_BYTES + 4)), _content(0, BLOCK_BYTES)
    cache.store(_key(cache), 0, data, None)
    [block] = _blocks(tmp_path)
    killed, written = (block.with_name(f"{block.name}.writing-{one * 16}") for one in "01")
    killed.write_bytes(b"half")
    written.write_bytes(b"half")
    os.utime(killed, (0, 0))
    for number in range(4):
        cache.store(_key(cache, f"{number}"), 0, data, None)
    assert not killed.exists()
    assert written.exists()


def _use(directory: str, limit: int, seed: int) -> None:
    """Read and store random ranges of three files. Exit with an error after a wrong byte."""
    chosen = random.Random(seed)
    cache = pickle.loads(pickle.dumps(BlockCache(directory, limit)))
    files = [_content(number, (5 + number) * BLOCK_BYTES + 7 * number) for number in range(3)]
    for _ in range(120):
        number = chosen.randrange(3)
        data, key = files[number], _key(cache, f"{number}")
        start = chosen.randrange(len(data))
        stop = min(len(data), start + chosen.randrange(1, 3 * BLOCK_BYTES))
        for part in cache.find(key, start, stop):
            wanted = data[part.start : part.stop]
            if part.data is None:
                cache.store(key, part.start, wanted, len(data))
            assert part.data is None or bytes(part.data) == wanted


def test_processes_and_threads_share_a_cache_without_wrong_bytes(tmp_path: Path) -> None:
    limit = 6 * (BLOCK_BYTES + 4)
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_use, args=(str(tmp_path), limit, seed)) for seed in range(3)]
    for process in processes:
        process.start()
    threads = [Thread(target=_use, args=(str(tmp_path), limit, seed)) for seed in (3, 4)]
    for thread in threads:
        thread.start()
    for one in (*threads, *processes):
        one.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert 0 < _used(tmp_path) <= limit + 5 * (BLOCK_BYTES + 4)
    assert not any("writing" in path.name for path in _blocks(tmp_path))


def test_an_unpickled_cache_knows_nothing_of_the_machine_where_it_was_pickled(tmp_path: Path) -> None:
    """Another machine has another size of the disk, another clock, and no directory of the cache yet."""
    path = tmp_path / "cache"
    path.write_text("not a directory")
    cache = BlockCache(str(path), None)
    with pytest.warns(UserWarning, match="cannot be used"):
        assert not cache.prepare()
    path.unlink()
    assert not cache.prepare()
    other = pickle.loads(pickle.dumps(cache))
    assert other.prepare()
    assert other.limit > 0
    assert pickle.loads(pickle.dumps(other)).limit == 0
