"""Keep what one listing of a store has found, while an operation adds, moves and removes files."""

from collections.abc import Iterable, Sequence
from copy import copy

from dask_tfrecord.storage.filesystem import Info
from dask_tfrecord.storage.location import Location


class FoundFiles:
    """The files that one listing has found below a directory of a store, also those in hidden directories.

    On an object store, a listing sends one request for each thousand files. On a local disk, links to
    directories are not followed.

    Parameters
    ----------
    store : Store
        The store to list.
    directory : str, default ""
        The directory to list, relative to the root of the store.

    Attributes
    ----------
    root : str
        The full path of the listed directory.
    infos : dict of str to dict
        Maps the full path of each file to the file's info from the filesystem.
    links : sequence of str
        The links to directories that were followed.
    """

    links: Sequence[str] = ()

    def __init__(self, store: Location, directory: str = "") -> None:
        store.fs.invalidate_cache()
        self._store, self.directory = store, directory
        self.root = store.join(directory) if directory else store.root
        self.infos = store.find_everything(directory)

    def below(self, directory: str) -> list[str]:
        """Return the sorted full paths of the files below a directory, which is relative to the root."""
        start = self._store.join(f"{directory}/")
        return sorted(path for path in self.infos if path.startswith(start))

    def inside(self, directory: str) -> "FoundFiles":
        """Return the files below a directory, which is relative to the root, as if it had been listed."""
        inner = copy(self)
        inner.directory, inner.root = directory, self._store.join(directory)
        inner.infos = {path: self.infos[path] for path in self.below(directory)}
        return inner

    def move(self, path: str, target: str) -> None:
        """Change the path of a file. Both paths are relative to the root of the store."""
        target = self._store.join(target)
        self.infos[target] = {**self.infos.pop(self._store.join(path)), "name": target}

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.infos.pop(path, None)

    def names(self, directory: str) -> list[str]:
        """List the names in a directory below the listed directory, as `Store.names` does."""
        start = self._store.join(f"{directory}/" if directory else "")
        below = (path[len(start) :] for path in self.infos if path.startswith(start))
        return [*dict.fromkeys(name.partition("/")[0] for name in below)]


class VisibleFiles(FoundFiles):
    """The files of a listing of a store with directories. The names in a directory come from the store."""

    def __init__(self, store: Location, infos: dict[str, Info], links: Sequence[str] = ()) -> None:
        self._store, self.directory, self.root = store, "", store.root
        self.infos, self.links = infos, links

    def names(self, directory: str) -> list[str]:
        return self._store.names(directory)
