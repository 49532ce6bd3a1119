"""Serve Arrow IPC streams and write Feather files, for the Arrow datasets of TensorFlow I/O."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Unpack

import pyarrow as pa

from dask_tfrecord import arguments
from dask_tfrecord.dataset.write.neighbours import refuse_other_files
from dask_tfrecord.errors import TFRecordError
from dask_tfrecord.feed.batches import Batches
from dask_tfrecord.feed.epoch_order import BatchMode, plan_batches
from dask_tfrecord.feed.numpy_columns import checked_fill_nulls
from dask_tfrecord.feed.stream.server import Pass, StreamServer, sent_batches
from dask_tfrecord.feed.stream.tensorflow_io import Client
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.keywords import BatchKeywords, DetectedBatchKeywords
from dask_tfrecord.public_functions import public_function

__all__ = ["FeatherFile", "Pass", "StreamServer", "serve", "write_feather"]

# Number of rows in each batch that is sent if the elements of the client's dataset are single rows.
_ROWS = 1024


@public_function
def serve(
    source: Any,
    endpoints: str | Sequence[str] = "tcp://127.0.0.1:0",
    *,
    batch_size: int | None = 1024,
    columns: str | Sequence[str] | None = None,
    batch_mode: BatchMode = "keep",
    fill_nulls: Mapping[str, Any] | None = None,
    **keywords: Unpack[BatchKeywords],
) -> "StreamServer":
    """Serve a dataset or a Dask collection to the `ArrowStreamDataset` of TensorFlow I/O.

    The streams are plain Arrow IPC streams, so other clients can read them, too. Dates, times, timestamps and
    durations are sent as integers. The values of categorical columns are sent, without the codes. Tensors are
    sent as flat lists, and the code that `StreamServer.client_code` returns reshapes these lists.

    Parameters
    ----------
    source : str, path-like, list of these, dask.dataframe.DataFrame or Series
        A path or a collection that `iter_batches` accepts.
    endpoints : str or list of str, default "tcp://127.0.0.1:0"
        The addresses at which clients connect: ``"tcp://host:port"`` or ``"host:port"`` (port 0 means any
        free port), ``"unix://path"``, or ``"fd://number"`` to write one pass to an open file descriptor,
        which is closed at the end of the pass. An omitted host means 127.0.0.1. The connection is not
        encrypted, and anyone who can connect can read the rows. Use other hosts only in a network that you
        trust. With several endpoints, the rows are divided among the endpoints, so a client must read all
        endpoints to get all rows.
    batch_size : int or None, default 1024
        Number of rows in each element of the client's dataset. If None, each row is an element, so lists may
        have different lengths.
    columns : str or list of str, optional
        The columns to serve, in this order. By default, all columns are served.
    batch_mode : "keep", "drop" or "auto", default "keep"
        What happens if the last batch of an endpoint has fewer rows than ``batch_size``, as in
        `iter_batches`. If the second or a later endpoint has no rows, reading that endpoint fails, because
        the client would crash.
    fill_nulls : mapping of str to value, optional
        The value that replaces the nulls of each column. In a list column, the value replaces nulls inside
        the lists, and fills null lists of a fixed size; other null lists become empty. By default, a null
        raises, because TensorFlow I/O has no nulls.
    shuffle : int, optional
        The seed of a random row order. With one endpoint, each pass has a different row order. With several
        endpoints, the row order is the same in every pass, because an endpoint cannot know which pass of
        another endpoint its client reads.
    shuffle_buffer, prefetch, **read
        These parameters have the same meaning as in `iter_batches`.

    Returns
    -------
    StreamServer
        The running server. The server is a context manager. Each connection to the server gets all rows of
        its endpoint.

    Raises
    ------
    TFRecordError
        If an endpoint cannot be opened, or if `iter_batches` would refuse an argument.
    SchemaError
        If TensorFlow I/O cannot read the type of a column, such as a list of lists or a decimal.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import dask_tfrecord
    >>> from dask_tfrecord.feed import stream
    >>> ddf = dd.from_dict({"x": list(range(5)), "y": [0.5] * 5}, npartitions=2)
    >>> _ = dask_tfrecord.to_tfrecord(ddf.astype({"y": "float32"}), "numbers")
    >>> with stream.serve("numbers", "unix://numbers.sock", batch_size=2) as server:
    ...     print(server.client_code(["unix://numbers.sock"]))
    import tensorflow as tf
    import tensorflow_io.arrow as arrow_io
    <BLANKLINE>
    dataset = arrow_io.ArrowStreamDataset(
        endpoints=['unix://numbers.sock'],
        columns=(0, 1),
        output_types=(tf.int64, tf.float32),
        output_shapes=([], []),
        batch_mode='keep_remainder',
        batch_size=2,
    )
    names = ('x', 'y')
    dataset = dataset.map(lambda *columns: dict(zip(names, columns)))
    """
    places: list[Any] = list(endpoints) if isinstance(endpoints, list | tuple) else [endpoints]
    if not places:
        raise TFRecordError("the list of endpoints is empty")
    size, mode = _batching(batch_size, batch_mode)
    plan = plan_batches(source, size, surface=serve, columns=columns, batch_mode=mode, **keywords)
    Batches(plan, 0, (0, len(places)))  # this call raises if there are more endpoints than rows
    schema = plan.source.schema.arrow
    client = Client(schema, batch_size, mode, checked_fill_nulls(fill_nulls, schema.names))
    return StreamServer(plan, places, client)


@public_function
def write_feather(
    source: Any,
    path: str | os.PathLike[str],
    *,
    batch_size: int | None = 1024,
    columns: str | Sequence[str] | None = None,
    batch_mode: BatchMode = "keep",
    fill_nulls: Mapping[str, Any] | None = None,
    compression: Literal["lz4", "zstd"] | None = None,
    epoch: int = 0,
    shard: tuple[int, int] = (0, 1),
    **keywords: Unpack[DetectedBatchKeywords],
) -> "FeatherFile":
    """Write a dataset or a Dask collection to a Feather file for the `ArrowFeatherDataset` of TensorFlow I/O.

    The result is an Arrow IPC file (Feather version 2), which pyarrow, pandas and Polars can read. Values are
    converted in the same way as in `serve`. The file becomes visible only when it is complete.

    Parameters
    ----------
    source : str, path-like, list of these, dask.dataframe.DataFrame or Series
        A path or a collection that `iter_batches` accepts.
    path : str or path-like
        The file to write, usually with the suffix ``.feather``. An existing file is replaced.
    batch_size, columns, batch_mode, fill_nulls
        These parameters have the same meaning as in `serve`.
    compression : "lz4", "zstd" or None, default None
        The codec with which the columns are compressed. If None, the columns are not compressed.
    shuffle, shuffle_buffer, epoch, shard, prefetch, **read
        These parameters have the same meaning as in `iter_batches`, except that the codec of the source is
        always detected. ``storage_options`` and ``filesystem`` apply to both the source and ``path``.

    Returns
    -------
    FeatherFile
        The path and the number of rows of the written file, and the code for a client.

    Raises
    ------
    SchemaError
        If TensorFlow I/O cannot read the type of a column, or if a column has nulls and no value in
        ``fill_nulls``.
    TFRecordError
        If `iter_batches` would refuse an argument, or if there are no rows, because TensorFlow I/O crashes on
        a file without rows.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import pyarrow.feather
    >>> from dask_tfrecord.feed import stream
    >>> ddf = dd.from_dict({"x": list(range(5))}, npartitions=2)
    >>> stream.write_feather(ddf, "numbers.feather").rows
    5
    >>> pyarrow.feather.read_table("numbers.feather")["x"].to_pylist()
    [0, 1, 2, 3, 4]
    """
    arguments.choice("compression", compression, ("lz4", "zstd", None))
    size, mode = _batching(batch_size, batch_mode)
    plan = plan_batches(source, size, surface=write_feather, columns=columns, batch_mode=mode, **keywords)
    batches = Batches(plan, epoch, shard)
    client = Client(batches.schema, batch_size, mode, checked_fill_nulls(fill_nulls, batches.schema.names))
    store = Store.at(path, keywords.get("storage_options"), keywords.get("filesystem"))
    refuse_other_files(store)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    rows = 0
    with (
        batches,
        store.create(store.root) as file,
        pa.ipc.new_file(file, client.schema, options=options) as writer,
    ):
        for batch in sent_batches(batches, client, may_be_empty=False):
            writer.write_batch(batch)
            rows += batch.num_rows
    return FeatherFile(store.public(), rows, client)


@dataclass(frozen=True)
class FeatherFile:
    """A Feather file that `write_feather` wrote.

    Attributes
    ----------
    path : str
        The path of the Feather file.
    rows : int
        Number of rows in the Feather file.
    client : Client
        The columns that the client receives, and how the client batches the rows.
    """

    path: str
    rows: int
    client: Client = field(repr=False)

    def client_code(self) -> str:
        """Return Python code that constructs the client's dataset.

        The elements of the client's dataset are dicts of tensors.
        """
        return self.client.code("ArrowFeatherDataset", "filenames", [self.path])


def _batching(batch_size: int | None, batch_mode: BatchMode) -> tuple[int, BatchMode]:
    """Return the number of rows in the batches that are sent, and the batch mode for the last rows."""
    if batch_size is None:
        return _ROWS, "keep" if batch_mode == "drop" else batch_mode
    return batch_size, batch_mode
