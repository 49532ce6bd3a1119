"""Only operations that must find files which no snapshot lists list the files of a dataset, each once.

Modules: dataset.snapshot.check, dataset.snapshot.visibility, api.dataset, api.description, api.explain.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import surfaces
from fsspec.implementations.memory import MemoryFileSystem
from listings import CHANGES, COMMANDS, PROPERTIES, READS, Listed, noted_listings, write

import dask_tfrecord
from dask_tfrecord.dataset.snapshot import check

pytestmark = pytest.mark.usefixtures("one_thread")


def listed(monkeypatch: pytest.MonkeyPatch, call: Callable[[str, Any], Any], place: str) -> Listed:
    with noted_listings(monkeypatch) as directories:
        call(place, {})
    return Listed.of(directories, place.removeprefix("memory:/"))


def saved(place: str) -> Callable[[], None]:
    """Return a function that brings the dataset back to its present state."""
    if place.startswith("memory"):
        files, directories = dict(MemoryFileSystem.store), [*MemoryFileSystem.pseudo_dirs]

        def restore() -> None:
            MemoryFileSystem.store.clear()
            MemoryFileSystem.store.update(files)
            MemoryFileSystem.pseudo_dirs[:] = directories

    else:
        copy = shutil.copytree(place, f"{place} saved")

        def restore() -> None:
            shutil.rmtree(place)
            shutil.copytree(copy, place)

    return restore


@pytest.fixture
def written(place: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(check, "_MOST_CHECKED", 0)
    write(place, {})
    return place


def test_reads_and_facts_list_no_files(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: listed(monkeypatch, call, written) for name, call in READS.items()}
    assert found == dict.fromkeys(READS, Listed())


def test_each_change_lists_the_files_at_most_once(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    restore = saved(written)
    found = {}
    for name, (call, _) in CHANGES.items():
        restore()
        found[name] = listed(monkeypatch, call, written)
    assert found == {name: expected for name, (_, expected) in CHANGES.items()}


@pytest.mark.parametrize("surface", surfaces.READERS)
def test_feeds_and_engines_list_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, surface: str
) -> None:
    monkeypatch.setattr(check, "_MOST_CHECKED", 0)
    write(f"{tmp_path}/place", {})
    read = surfaces.READERS[surface].read
    assert listed(monkeypatch, lambda place, _: read(Path(place)), f"{tmp_path}/place") == Listed()


def test_commands_that_read_list_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_MOST_CHECKED", 0)
    write(place := f"{tmp_path}/place", {})
    found = {name: listed(monkeypatch, call, place) for name, (call, _) in COMMANDS.items()}
    assert found == {name: expected for name, (_, expected) in COMMANDS.items()}


def test_a_plan_checks_a_small_dataset_on_a_local_disk_with_one_listing(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(place, {})
    expected = Listed(data=0 if place.startswith("memory") else 1)
    for name in ("read_tfrecord", "len", "open_dataset"):
        assert listed(monkeypatch, READS[name], place) == expected


def test_every_public_name_of_a_dataset_is_counted() -> None:
    names = dir(dask_tfrecord.Dataset.__new__(dask_tfrecord.Dataset))
    assert {*names} <= {*READS, *PROPERTIES, *CHANGES}
