"""Extend adlfs, the Azure filesystem, to list what other processes changed, and to raise for failed requests.

The methods `_details`, `_find` and `_rm` were checked with adlfs 2026.8.
"""

import asyncio
from typing import Any

from adlfs.spec import AzureBlobFileSystem
from fsspec.asyn import sync_wrapper


class Azure(AzureBlobFileSystem):
    """The adlfs filesystem, with listings, removals and failures that match those of other object stores."""

    def invalidate_cache(self, path: str | None = None) -> None:
        """Drop the cached listings of a path and of all its parents.

        adlfs alone would keep the cached listing of the parent directory.
        """
        super().invalidate_cache(path)
        path = path and path.rstrip("/")
        while path:
            self.dircache.pop(path, None)
            path = self._parent(path)

    async def _details(self, contents: Any, *args: Any, **options: Any) -> Any:
        for blob in contents:
            # Some tools create an empty blob for a directory. Without metadata such as "is_directory", adlfs
            # would list this blob as a file, without the slash at the end of its name.
            if blob.name.endswith("/") and blob.get("size") == 0:
                blob.metadata = {**(blob.get("metadata") or {}), "is_directory": "true"}
        return await super()._details(contents, *args, **options)

    async def _find(self, path: str, *args: Any, **options: Any) -> Any:
        found = await super()._find(path, *args, **options)
        if options.get("detail") and isinstance(found, list):  # adlfs ignores `detail` if the path is a file
            return {name: await self._info(name) for name in found}
        return found

    async def _rm(self, path: str | list[str], recursive: bool = False, **options: Any) -> None:
        """Remove files. adlfs would hide all failures if one of several files does not exist."""
        if recursive:
            await super()._rm(path, recursive=True, **options)
            return
        paths = [path] if isinstance(path, str) else path
        for error in await asyncio.gather(*map(self._rm_file, paths), return_exceptions=True):
            if isinstance(error, BaseException) and not isinstance(error, FileNotFoundError):
                raise error

    rm = sync_wrapper(_rm)
