"""A filesystem in memory that does not distinguish names that differ in case or Unicode form."""

import unicodedata
from typing import Any, ClassVar

from fsspec.implementations.memory import MemoryFileSystem


class FoldingNames(MemoryFileSystem):
    """Keep the first form of each name, as the disks of macOS and Windows do."""

    protocol = "folding"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        plain = MemoryFileSystem._strip_protocol(str(path).removeprefix("folding://"))
        stored = {}
        for one in (*cls.pseudo_dirs, *cls.store):
            names = one.split("/")
            for count in range(2, len(names) + 1):
                parent = "/".join(names[:count])
                stored.setdefault(_folded(parent), parent)
        names = plain.split("/")
        for count in range(len(names), 1, -1):
            parent = "/".join(names[:count])
            if _folded(parent) in stored:
                return "/".join([stored[_folded(parent)], *names[count:]])
        return plain


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold()
