"""Whether files are still the ones that a snapshot or a listing describes, judged without opening them."""

from collections.abc import Sequence
from dataclasses import replace

from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.storage.listing import FileInfo, list_directory
from dask_tfrecord.files.storage.open_file import stamp_of
from dask_tfrecord.files.storage.store import Store


def is_proven(file: FileInfo, entry: FileEntry) -> bool:
    """True if the listed file is the one that the snapshot's entry describes, as far as stamps can tell.

    Entries of earlier versions of the library have no stamp; their size is all there is to compare.
    """
    return not entry.stamp or file.stamp == entry.stamp


def with_stamps(store: Store, files: Sequence[FileEntry]) -> list[FileEntry]:
    """The files that were just written, with their stamps; without them if the store fails to tell."""
    try:
        store.fs.invalidate_cache()
        if store.renames:
            stamps = {file.path: stamp_of(store.look(store.join(file.path))) for file in files}
        else:
            stamps = {store.relative(info.path): info.stamp for info in list_directory(store)}
    except Exception:  # the write succeeds without stamps, too
        return list(files)
    return [replace(file, stamp=stamps.get(file.path, "")) for file in files]
