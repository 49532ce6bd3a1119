"""Row counts of splits."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dask_tfrecord.dataset.plan import Dataset
from dask_tfrecord.files.reading import count_records
from dask_tfrecord.files.splits import Split
from dask_tfrecord.parallel import compute_each


def count_rows(dataset: Dataset, splits: Sequence[Split]) -> list[Split]:
    """The splits with their numbers of records. Splits that nothing has counted are scanned, in parallel."""
    unknown = [split for split in splits if split.records is None]
    counted = compute_each(partial(count_records, dataset.store, options=dataset.options), unknown)
    counts = iter(counted)
    return [split if split.records is not None else replace(split, records=next(counts)) for split in splits]
