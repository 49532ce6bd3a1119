"""Plan and build the write of a Dask collection, whose rows are computed by tasks."""

from collections.abc import Iterator, Sequence
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa

from dask_tfrecord.codec.columns import RecordType
from dask_tfrecord.dataset.shuffle.route import Shuffle
from dask_tfrecord.dataset.snapshot.metadata import Levels
from dask_tfrecord.dataset.write.run import WriteRun
from dask_tfrecord.expr import lineage, writing
from dask_tfrecord.frames.pandas_to_arrow import index_levels
from dask_tfrecord.frames.planning import Types, plan_schema, rounded_in_frame, text_columns
from dask_tfrecord.schema.model import Schema
from dask_tfrecord.splitting import Splits, assign_splits


class CollectionRows:
    """The rows of a Dask DataFrame, for a write.

    The methods have the same meaning as those of `dask_tfrecord.frames.sources.Source`.
    """

    def __init__(self, ddf: dd.DataFrame) -> None:
        self.columns = list(ddf.columns)
        self.npartitions: int = ddf.npartitions
        self._ddf = ddf

    def levels(self, write_index: bool | None) -> Levels:
        return index_levels(self._ddf._meta, write_index)

    def plan(
        self,
        schema: Types | pa.Schema | None,
        record_type: RecordType | None,
        partition_on: Sequence[str],
        levels: Levels,
    ) -> Schema:
        names = text_columns(self._ddf._meta, schema, levels)
        self._ddf = lineage.check_string_conversions(self._ddf, names)
        planned = plan_schema(
            self._ddf._meta,
            schema=schema,
            record_type=record_type or lineage.nested_record_type(self._ddf),
            write_index=bool(levels),
            sample=self._computed,
            partition_on=partition_on,
            known={**lineage.large_strings(self._ddf), **lineage.parquet_types(self._ddf)},
        )
        return planned if record_type else lineage.with_bytes_records(self._ddf, planned, partition_on)

    def _computed(self, names: list[str]) -> Iterator[pd.DataFrame]:
        """Compute the partitions one by one, with only the named columns."""
        selected = self._ddf[names]
        for index in range(selected.npartitions):
            yield selected.partitions[index].compute()

    def rounded(self, records: Schema, levels: Levels) -> list[str]:
        names = rounded_in_frame(self._ddf._meta, records, write_index=bool(levels))
        # Values that were read from the same type are not rounded again.
        read_types = lineage.read_types(self._ddf, names)
        return [name for name in names if read_types.get(name) != records.arrow.field(name).type]

    def write(
        self,
        run: WriteRun,
        *,
        write_index: bool | None,
        splits: Splits | None,
        shuffle: Shuffle | None,
        npartitions: int,
    ) -> Any:
        """Return a lazy scalar of Dask. Computing the scalar writes the dataset and returns the snapshot."""
        ddf = self._ddf if splits is None else assign_splits(self._ddf, splits)
        if shuffle is None and npartitions != ddf.npartitions:
            # The divisions would restrict the possible numbers of partitions.
            ddf = ddf.clear_divisions().repartition(npartitions=npartitions)
        return writing.write(ddf, run, write_index=write_index, shuffle=shuffle)
