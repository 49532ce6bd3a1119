"""Convert the values of a column to the features in which a `StoredForm` stores it.

`encode` is the inverse of `StoredForm.load`. For a value that would not come back, `encode` raises
`MisfitError` with its row.
"""

import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.schema.storage_values import MisfitError, list_offsets, store
from dask_tfrecord.schema.stored_form import Integers, StoredForm

_Ints = npt.NDArray[np.int64]

_FILL = "fill or drop the nulls"


def encode(form: StoredForm, array: pa.Array, *, exact: bool) -> list[pa.Array]:
    """Return one array for each feature in ``form.columns``. ``array`` has the type ``form.type``.

    If ``exact`` is True, raise RoundedError for a value that would be rounded to a 32-bit float.
    """
    # A class label that is null has the class number -1, so its feature is never absent.
    if not array.null_count or (form.has_codes and not form.depth):
        return _encode(form, array, exact=exact)
    is_valid = array.is_valid()
    present = is_valid.to_numpy(zero_copy_only=False)
    if not form.is_optional:
        problem = "the value is null, but every record must have the feature"
        raise MisfitError(int(np.argmin(present)), problem, "fill the nulls")
    try:
        stored = _encode(form, array.filter(is_valid), exact=exact)
    except MisfitError as error:
        row = int(np.flatnonzero(present)[error.row])  # the row's index before filtering
        raise type(error)(row, error.problem, error.advice, error.wider) from None
    positions = pa.array(np.cumsum(present) - 1, mask=~present)
    return [one.take(positions) for one in stored]


class _Items(NamedTuple):
    """The items of all rows at one level of nesting. ``edges`` contains the index of each row's first item,
    followed by the total number of items.
    """

    values: pa.Array
    edges: _Ints

    def check(self) -> None:
        """Raise MisfitError if an item is null."""
        row = pc.index(self.values.is_null(), True).as_py()
        if row >= 0:
            problem = "the list holds a null, which TFRecord cannot store"
            raise MisfitError(row, problem, _FILL).in_list(self.edges)

    def flattened(self) -> tuple["_Items", _Ints]:
        """Return the items of the lists, and their lengths."""
        self.check()
        offsets = list_offsets(self.values)
        return _Items(self.values.flatten(), offsets[self.edges]), np.diff(offsets)


def _encode(form: StoredForm, array: pa.Array, *, exact: bool) -> list[pa.Array]:
    items = _Items(array, np.arange(len(array) + 1))
    partitions: list[tuple[_Ints, _Ints]] = []  # the lengths of the inner lists, and the edges of the rows
    for level in range(len(form.lengths)):
        edges = items.edges
        items, lengths = items.flattened()
        if level:
            partitions.append((lengths, edges))
    partition_features = _partition_features(form, partitions)
    tensors, shapes = items, None
    if form.stores_shapes:
        tensors.check()
        data, shape = tensors.values.flatten()
        shapes, _ = _Items(shape, tensors.edges).flattened()
        shapes.check()
        scalars, sizes = _Items(data, tensors.edges).flattened()
        _check_shapes(form, shapes.values, sizes, tensors.edges)
    else:
        scalars, sizes = _tensor_values(form, tensors)
    if not (form.has_codes or scalars is tensors):
        scalars.check()
    try:
        if form.encoding == "none":
            stored, of_rows = _stored(form, scalars.values, exact=exact), scalars.edges
        else:
            stored, of_rows = _bytes(form, scalars.values, sizes), tensors.edges
    except MisfitError as error:
        if not form.depth:
            raise
        found = error.in_list(scalars.edges)
        found.wider = found.wider if form.depth == 1 else None
        raise found from None
    is_scalar = not form.lengths and (form.encoding != "none" or not form.shape)
    first = stored if is_scalar else _lists(stored, of_rows)
    if shapes is None:
        return [first, *partition_features]
    return [
        first,
        *partition_features,
        _lists(shapes.values.cast(pa.int64()), shapes.edges),
        *partition_features,
    ]


def _tensor_values(form: StoredForm, tensors: _Items) -> tuple[_Items, _Ints]:
    """Return the values of all tensors in C order, and the number of values in each tensor."""
    items, count = tensors, len(tensors.values)
    sizes = np.ones(count, np.int64)
    for level, size in enumerate(form.shape):
        edges = items.edges
        items, lengths = items.flattened()
        if size is not None:
            sizes = sizes * size
            continue
        outer = math.prod(one or 0 for one in form.shape[:level])
        of_tensors = lengths.reshape(count, outer) if outer else np.zeros((count, 1), np.int64)
        _check(
            (of_tensors == of_tensors[:, :1]).all(axis=1),
            "the inner lists of a tensor have different lengths",
            tensors.edges,
        )
        sizes = sizes * of_tensors[:, 0]
        if 0 in form.shape[level + 1 :]:
            _check(lengths == 0, "the stored values do not show the number of empty lists", edges)
    if form.lengths and form.encoding == "none" and 0 in form.shape:
        _check(
            np.zeros(count, bool), "the stored values do not show the number of empty tensors", tensors.edges
        )
    return items, sizes


def _check_shapes(form: StoredForm, shapes: pa.Array, sizes: _Ints, edges: _Ints) -> None:
    matrix = shapes.to_numpy().reshape(-1, len(form.shape)).astype(np.int64)
    fits = (matrix.prod(axis=1) == sizes) & (matrix >= 0).all(axis=1)
    for at, size in enumerate(form.shape):
        fits &= (matrix[:, at] == size) | (size is None)
    _check(fits, "the shape contradicts the declared shape or the number of values", edges)


def _check(are_valid: npt.NDArray[np.bool_], problem: str, edges: _Ints) -> None:
    if not are_valid.all():
        raise MisfitError(int(np.argmin(are_valid)), problem).in_list(edges)


def _stored(form: StoredForm, values: pa.Array, *, exact: bool) -> pa.Array:
    """Convert scalar values to the values of a feature."""
    if pa.types.is_uint64(form.value_type):  # the feature stores the bits of each value as an int64
        return values.view(pa.int64())
    if form.spellings is not None:
        false, true = (pa.scalar(one.encode(), pa.binary()) for one in form.spellings)
        return pc.if_else(values, true, false)
    if not form.has_codes:
        return store(values, exact=exact)
    texts = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    codes = pc.index_in(texts.cast(pa.string()), value_set=form.categories)
    row = pc.index(pc.and_(codes.is_null(), texts.is_valid()), True).as_py()
    if row >= 0:
        problem = f"{texts[row].as_py()!r} is not one of the class names of the column"
        raise MisfitError(row, problem, wider=pa.string())
    return codes.fill_null(-1).cast(pa.int64())


def _bytes(form: StoredForm, values: pa.Array, sizes: _Ints) -> pa.Array:
    """Return the bytes of each tensor. ``sizes`` are the numbers of values in the tensors."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    width = values.type.bit_width // 8
    content = values.buffers()[1]
    data = pa.py_buffer(b"") if content is None else content.slice(values.offset * width, len(values) * width)
    offsets = np.concatenate([[0], np.cumsum(sizes)]) * width
    tensors = pa.Array.from_buffers(
        pa.large_binary(), len(sizes), [None, pa.py_buffer(offsets.astype(np.int64)), data]
    )
    if form.encoding == "zlib":
        return pa.array([zlib.compress(one) for one in tensors.to_pylist()], pa.large_binary())
    return tensors


def _partition_features(form: StoredForm, partitions: Sequence[tuple[_Ints, _Ints]]) -> list[pa.Array]:
    features = []
    for level, (lengths, edges) in enumerate(partitions):
        partition = form.partitions[level] if form.partitions else None
        if partition is not None or not form.partitions:
            integers: Integers = "row_lengths" if partition is None else partition.integers
            numbers, of_rows = _integers(integers, lengths, edges)
            features.append(_lists(pa.array(numbers), of_rows))
    return features


def _integers(integers: Integers, lengths: _Ints, edges: _Ints) -> tuple[_Ints, _Ints]:
    """Return the integers that divide the values of each row into lists, and the edges of the rows."""
    if integers == "row_lengths":
        return lengths, edges
    counts, ends = np.diff(edges), np.concatenate([[0], np.cumsum(lengths)])
    before = np.repeat(ends[edges[:-1]], counts)  # the number of values in earlier rows
    if integers == "row_starts":
        return ends[:-1] - before, edges
    if integers == "row_limits":
        return ends[1:] - before, edges
    if integers == "row_splits":
        return np.insert(ends[1:] - before, edges[:-1], 0), edges + np.arange(len(edges))
    last = edges[1:][counts > 0] - 1
    if not lengths[last].all():
        row = int(np.flatnonzero(counts > 0)[np.argmin(lengths[last])])
        raise MisfitError(row, "the last inner list is empty, which the row numbers of values do not show")
    numbers = np.arange(len(lengths)) - np.repeat(edges[:-1], counts)
    return np.repeat(numbers, lengths), ends[edges]


def _lists(values: pa.Array, edges: _Ints) -> pa.Array:
    if edges[-1] > np.iinfo(np.int32).max:
        return pa.LargeListArray.from_arrays(pa.array(edges), values)
    return pa.ListArray.from_arrays(pa.array(edges.astype(np.int32)), values)


def merged_values(one: pa.Array, other: pa.Array) -> pa.Array | None:
    """Return the values of a feature that stores two columns, or None if the columns store different values.

    An absent feature counts as an empty list, as for TensorFlow. NaN is equal to itself.
    """
    if one is other or one.equals(other):
        return one
    lengths, others = (pc.fill_null(pc.list_value_length(array), 0) for array in (one, other))
    flat, more = one.flatten(), other.flatten()
    if pa.types.is_float32(flat.type) and pa.types.is_float32(more.type):
        flat, more = flat.view(pa.int32()), more.view(pa.int32())
    if not (lengths.cast(pa.int64()).equals(others.cast(pa.int64())) and flat.equals(more)):
        return None
    return pc.if_else(one.is_valid(), one, other) if one.type == other.type else one
