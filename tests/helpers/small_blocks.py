"""Make small datasets consist of many blocks, and of several shuffle windows."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dask_tfrecord.feed.rows import epoch_order
from dask_tfrecord.files import file_writer


@contextmanager
def small_blocks(
    nbytes: int = 1 << 10, window_bytes: int | None = None, group_blocks: int | None = None
) -> Iterator[None]:
    """Write blocks of ``nbytes`` bytes, and read pieces of half of this size for a shuffle.

    A shuffle window has at most ``window_bytes`` bytes, or ``group_blocks`` blocks.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_writer, "BLOCK_BYTES", nbytes)
        patch.setattr(epoch_order, "_SEQUENTIAL_BYTES", nbytes)
        patch.setattr(epoch_order, "_SHUFFLED_BYTES", nbytes // 2)
        patch.setattr(epoch_order, "BLOCK_BYTES", nbytes // 2)
        if window_bytes is not None:
            patch.setattr(epoch_order, "WINDOW_BYTES", window_bytes)
        if group_blocks is not None:
            patch.setattr(epoch_order, "_GROUP_BLOCKS", group_blocks)
        yield
