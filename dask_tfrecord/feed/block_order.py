"""Compute the numbers of records in the order of an epoch that shuffles the rows of groups of blocks, and
measure how far an order is from a uniform one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dask_tfrecord.codec.checked import Ints
from dask_tfrecord.feed.epoch_order import Order, Slice, Span


@dataclass(frozen=True)
class OrderedRows:
    """The rows of some spans, in their order.

    Attributes
    ----------
    numbers : numpy.ndarray
        The numbers of the rows.
    windows : list of (Span, list of Span)
        Each window, and the spans that follow the window.
    ends : numpy.ndarray
        The number of rows up to the end of each window.
    """

    numbers: Ints
    windows: list[tuple[Span, list[Span]]]
    ends: Ints

    def after(self, count: int) -> list[Span]:
        """Return the spans of the rows that follow the first ``count`` rows."""
        at = int(np.searchsorted(self.ends, count, "right"))
        if at == len(self.windows):
            return []
        window, following = self.windows[at]
        return [window.after(count - int(self.ends[at]) + window.size), *following]


def rows_of_spans(order: Order, spans: Sequence[Span], firsts: Ints) -> OrderedRows:
    """Return the numbers of the rows of some spans, in their order.

    ``firsts`` has the number of the first row of each piece.
    """
    found = [np.zeros(0, np.int64)]
    windows = []
    for number, span in enumerate(spans, 1):
        for start, window in _windows(order, span):
            rows = np.concatenate([firsts[one.piece] + np.arange(one.start, one.stop) for one in window])
            rows = rows[order.permutation(start, len(rows))]
            stop = start + len(rows)
            following = [Span(stop, span.stop)] * (stop < span.stop) + list(spans[number:])
            first, last = (0, len(rows)) if span.first is None else (span.first, span.last)
            windows.append((Span(start, stop, first, last), following))
            found.append(rows[first:last])
    ends = np.cumsum([len(rows) for rows in found[1:]], dtype=np.int64)
    return OrderedRows(np.concatenate(found), windows, ends)


def _windows(order: Order, span: Span) -> Iterator[tuple[int, list[Slice]]]:
    """Yield the slices of each window of a span, and the position at which the window begins."""
    start, rows = span.start, 0
    window: list[Slice] = []
    for one in order.slices(span):
        window.append(one)
        rows += (one.stop or 0) - one.start
        if span.first is None and order.is_full(window, rows, 0):
            yield start, window
            start, rows, window = start + rows, 0, []
    if window:
        yield start, window


@dataclass(frozen=True)
class ShuffleStatistics:
    """How far the order of an epoch is from a uniform order. `RecordTable.shuffle_statistics` returns this
    object, and ``print`` shows it as a table.

    Attributes
    ----------
    rows, blocks, batch_size : int
        The number of rows of the order, the number of blocks of the table, and the number of rows of a batch.
    displacement : tuple of float
        The distance between the place of a row in the order and its place in the files, as a fraction of all
        rows: the mean, and the quantiles 0.1, 0.5 and 0.9.
    batch_blocks, uniform_batch_blocks : float
        The mean number of different blocks from which a batch has rows, and this number for a uniform order.
    same_block, uniform_same_block : float
        The probability that two rows of a batch come from the same block, and this probability for a uniform
        order.
    """

    rows: int
    blocks: int
    batch_size: int
    displacement: tuple[float, float, float, float]
    batch_blocks: float
    uniform_batch_blocks: float
    same_block: float
    uniform_same_block: float

    @property
    def design_effect(self) -> float:
        """The variance of the mean of a batch, relative to a uniform order, for a value that is the same for
        all rows of a block. This is the worst case, for example of files that are sorted by label.
        """
        pairs = self.batch_size - 1
        return (1 + pairs * self.same_block) / (1 + pairs * self.uniform_same_block)

    def __str__(self) -> str:
        # The distance of two uniform numbers has the mean 1/3 and the quantiles 1 - sqrt(1 - q).
        uniform = (1 / 3, *(1 - (1 - q) ** 0.5 for q in (0.1, 0.5, 0.9)))
        lines = [
            (
                f"{self.rows:,} rows, {self.blocks:,} blocks, batches of {self.batch_size:,}",
                "order",
                "uniform",
            ),
            *(
                (f"displacement, {name}", f"{one:.3f}", f"{expected:.3f}")
                for name, one, expected in zip(
                    ("mean", "quantile 0.1", "median", "quantile 0.9"),
                    self.displacement,
                    uniform,
                    strict=True,
                )
            ),
            ("blocks in a batch", f"{self.batch_blocks:,.1f}", f"{self.uniform_batch_blocks:,.1f}"),
            ("two rows of a batch in one block", f"{self.same_block:.2%}", f"{self.uniform_same_block:.2%}"),
            ("variance of a batch mean, at worst", f"{self.design_effect:.1f} x", "1.0 x"),
        ]
        width = max(len(name) for name, _, _ in lines)
        return "\n".join(f"{name:{width}}  {one:>9}  {other:>9}" for name, one, other in lines)


def measure_order(order: Ints, firsts: Ints, batch_size: int) -> ShuffleStatistics:
    """Measure an order of rows. The last batch is left out if it is smaller than the other batches.

    ``firsts`` has the number of the first row of each block, followed by the number of all rows.
    """
    sizes, total = np.diff(firsts), max(1, int(firsts[-1]))
    batch_size = max(1, min(batch_size, len(order)))
    nbatches = len(order) // batch_size
    blocks = np.searchsorted(firsts, order[: nbatches * batch_size], "right") - 1
    numbers = np.repeat(np.arange(nbatches), batch_size) * len(sizes) + blocks
    together = np.unique(numbers, return_counts=True)[1]
    pairs = nbatches * batch_size * (batch_size - 1)
    distances = np.abs(order / total - np.arange(len(order)) / max(1, len(order)))
    quantiles = np.quantile(distances, [0.1, 0.5, 0.9]).tolist() if len(order) else [0.0] * 3
    return ShuffleStatistics(
        len(order),
        len(sizes),
        batch_size,
        (float(distances.mean()) if len(order) else 0.0, *quantiles),
        len(together) / max(1, nbatches),
        float((1 - (1 - sizes / total) ** batch_size).sum()),
        float((together * (together - 1)).sum() / max(1, pairs)),
        float((sizes * (sizes - 1)).sum() / max(1, total * (total - 1))),
    )
