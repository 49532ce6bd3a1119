"""Define how features store a column of tensors or of nested lists.

TensorFlow Datasets (TFDS) stores a tensor as a flat list of values, and an encoded tensor as bytes. TFDS
stores a sequence of sequences as one flat list of values and the length of each inner sequence. The classes
of ``tensorflow_datasets.core.features`` define the rules of TFDS. The feature specs of TensorFlow, and the
schemas of TensorFlow Metadata, name the features that store the values and the lengths of a column.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dask_tfrecord.codec import Column, Kind
from dask_tfrecord.schema.conversion import same_layout, widened
from dask_tfrecord.schema.logical_types import arrow_type, is_list, kind_and_depth
from dask_tfrecord.schema.storage_values import MisfitError, list_offsets, load

Encoding = Literal["none", "bytes", "zlib"]

# How the integers of one feature divide the values of another feature into sequences (see `RowPartition`).
Integers = Literal["row_lengths", "row_splits", "row_starts", "row_limits", "value_rowids"]

# The size of a dimension, or None if it differs between rows.
Size: TypeAlias = int | None

# The maximum total size, in bytes, of the values in a `pa.binary()` array.
_MOST_BYTES = 2**31 - 1

# With "value_rowids", the maximum by which the number of sequences in a row may exceed the number of values.
# The limit prevents malicious row numbers from exhausting the memory.
_MOST_EMPTY = 2**20

_Ints: TypeAlias = npt.NDArray[np.int64]


class RowPartition(NamedTuple):
    """A feature whose integers divide values into sequences.

    Attributes
    ----------
    integers : str
        What the integers are: the lengths of the sequences ("row_lengths"), their start positions
        ("row_starts"), their end positions ("row_limits"), zero followed by the end positions ("row_splits"),
        or the sequence index of each value ("value_rowids").
    feature : str
        The name of the feature that stores the integers of the row partition.
    """

    integers: Integers
    feature: str


@dataclass(frozen=True)
class StoredForm:
    """Describe the dimensions of a column, and the features that store it.

    A snapshot stores the attributes as JSON, the type as Arrow's string representation (see ``forms`` in
    docs/format.md).

    Attributes
    ----------
    value_type : pyarrow.DataType
        The type of the values in a tensor. For class labels with names, ``value_type`` is the type of the
        class numbers.
    shape : tuple of (int or None)
        The shape of a tensor. A scalar has an empty shape.
    lengths : tuple of (int or None)
        The lengths of the nested sequences that contain the tensors, from the outermost to the innermost.
    encoding : {"none", "bytes", "zlib"}
        How a feature stores a tensor: as a list of values ("none"), as the bytes of the values in C order
        ("bytes"), or as these bytes compressed with zlib ("zlib").
    is_optional : bool
        If ``is_optional`` is True, a record may lack the features of the column, and the column's value is
        then null.
    categories : pyarrow.Array, optional
        The class names, if the stored values are class numbers. The class number -1 means null. If
        `value_type` is a string type, ``categories`` contains the first categories of the column.
    spellings : tuple of (str, str), optional
        The strings that represent False and True in a bytes feature.
    value_feature : str, optional
        The name of the feature that stores the values. If ``value_feature`` is None, the feature's name is
        derived from the name of the column.
    partitions : tuple of (RowPartition or None)
        One element for each of `lengths` except the first: the feature that divides the values into
        sequences, or None if all sequences have the same length. If ``partitions`` is empty, the features
        have the names that TFDS uses.
    description : str, optional
        The nodes of ``features.json`` from the root to the column, as JSON text (see `tfds.tree_of`). Forms
        that differ only in ``description`` are equal.
    """

    value_type: pa.DataType
    shape: tuple[Size, ...] = ()
    lengths: tuple[Size, ...] = ()
    encoding: Encoding = "none"
    is_optional: bool = False
    categories: pa.Array | None = field(default=None, hash=False)
    spellings: tuple[str, str] | None = None
    value_feature: str | None = None
    partitions: tuple[RowPartition | None, ...] = ()
    description: str | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        classes = None if self.categories is None else self.categories.to_pylist()
        return values | {"value_type": str(self.value_type), "categories": classes}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        classes = value["categories"]
        return cls(
            arrow_type(value["value_type"] if value["value_type"] != "float" else "float32"),
            tuple(value["shape"]),
            tuple(value["lengths"]),
            value["encoding"],
            value["is_optional"],
            None if classes is None else pa.array(classes, pa.string()),
            tuple(value["spellings"]) if value.get("spellings") else None,
            value.get("value_feature"),
            tuple(one and RowPartition(*one) for one in value.get("partitions", ())),
            value.get("description"),
        )

    @property
    def is_plain(self) -> bool:
        """True if the column's values are stored unchanged, as scalars, in a feature of the same name."""
        is_scalar = self.depth == 0 and self.encoding == "none"
        is_other = pa.types.is_uint64(self.value_type) or self.has_codes or self.spellings is not None
        return is_scalar and not is_other and self.value_feature is None

    @property
    def is_like_none(self) -> bool:
        """True if a column without a `StoredForm` is stored and described in the same way."""
        return self.is_plain and self.description is None

    @property
    def of_new_column(self) -> "StoredForm | None":
        """The form in which a new dataset stores a column that was read in this form.

        A new dataset has no reader that relies on a value in each record, so nulls are allowed.
        """
        return None if self.is_like_none else replace(self, is_optional=True)

    def fits(self, type_: pa.DataType) -> bool:
        """Return True if a column of type ``type_`` can have this form. A conversion checks the sizes of
        lists.
        """
        return _fits(self.type, type_)

    @property
    def is_flat(self) -> bool:
        """True if one feature with the column's name stores its values unchanged, in C order."""
        is_own = self.value_feature is None and not any(self.partitions)
        is_other = pa.types.is_uint64(self.value_type) or self.has_codes or self.spellings is not None
        return is_own and self.encoding == "none" and not is_other

    @property
    def has_codes(self) -> bool:
        """True if the stored values are class numbers, and the class names are known."""
        return self.categories is not None and pa.types.is_integer(self.value_type)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the column."""
        if self.stores_shapes:
            shapes = pa.list_(pa.int32(), len(self.shape))
            tensor = pa.struct({"data": pa.list_(self.value_type), "shape": shapes})
        elif self.categories is None:
            tensor = _nested_type(self.value_type, self.shape)
        else:
            tensor = _nested_type(pa.dictionary(pa.int32(), self.categories.type), self.shape)
        return _nested_type(tensor, self.lengths)

    @property
    def stores_shapes(self) -> bool:
        """True if a second feature stores the shapes of the tensors, because the sizes of several dimensions
        are unknown.
        """
        return self.shape.count(None) > 1

    @property
    def depth(self) -> int:
        """The number of nested list levels in the column."""
        return len(self.lengths) + len(self.shape)

    @property
    def step_size(self) -> int:
        """The number of stored values of one tensor: of one step, if a feature list stores the column."""
        return 1 if self.encoding != "none" else math.prod(size or 0 for size in self.shape)

    def columns(self, name: str) -> tuple[Column, ...]:
        """Return the features that store the column ``name``, as `Column` objects for the kernel."""
        name = self.value_feature or name
        if self.stores_shapes:
            return (*self._features(f"{name}/value", "bytes"), *self._features(f"{name}/shape", "int64", 1))
        if self.encoding != "none" or self.spellings is not None:
            return self._features(name, "bytes", int(bool(self.shape) and self.encoding == "none"))
        return self._features(name, kind_and_depth(self.value_type)[0], int(bool(self.shape)))

    def _features(self, name: str, kind: Kind, depth: int = 0) -> tuple[Column, ...]:
        if len(self.lengths) < 2:
            return (Column(name, kind, max(depth, len(self.lengths))),)
        if self.partitions:
            names = (one.feature for one in self.partitions if one is not None)
            return (Column(name, kind, 1), *(Column(one, "int64", 1) for one in names))
        levels = range(len(self.lengths) - 1)
        lengths = (Column(f"{name}/ragged_row_lengths_{level}", "int64", 1) for level in levels)
        return (Column(f"{name}/ragged_flat_values", kind, 1), *lengths)

    def load(self, arrays: Sequence[pa.Array]) -> pa.Array:
        """Convert the decoded values of the features in `columns` to those of the column.

        Raise MisfitError, with the row, for a value that contradicts this `StoredForm`.
        """
        # As in TFDS, an absent list of a required column becomes an empty list.
        has_empty = bool(self.lengths) or (None in self.shape and self.encoding == "none")
        if not arrays[0].null_count or (has_empty and not self.is_optional):
            return self._load(arrays)
        is_valid = arrays[0].is_valid()
        present = is_valid.to_numpy(zero_copy_only=False)
        if not self.is_optional:
            _check(present, lambda _: "the record lacks the feature, which is not optional")
        try:
            found = self._load([array.filter(is_valid) for array in arrays])
        except MisfitError as error:
            row = int(np.flatnonzero(present)[error.row])  # the row's index before filtering
            raise MisfitError(row, error.problem, error.advice) from None
        return found.take(pa.array(np.cumsum(present) - 1, mask=~present))

    def _load(self, arrays: Sequence[pa.Array]) -> pa.Array:
        stored, per_row = _flattened(arrays[0])
        shapes = None
        if self.stores_shapes:
            shapes, sizes = _flattened(arrays[len(arrays) // 2])
            rank = len(self.shape)
            _check(sizes == per_row * rank, lambda row: f"{per_row[row]} tensors have {sizes[row]} sizes")
        try:
            found = self._values(stored) if self.encoding == "none" else self._decoded(stored, shapes)
        except MisfitError as error:
            raise error.in_list(_edges(per_row)) from None
        if self.encoding == "none" and not self.lengths:
            return _nested(found, per_row, self.shape)
        if self.encoding == "none" and self.shape:
            size = max(1, math.prod(one or 0 for one in self.shape))
            _check(per_row % size == 0, lambda row: _mismatch(per_row[row], self.shape))
            per_row = per_row // size
            found = _nested(found, np.full(per_row.sum(), size), self.shape)
        return self._in_sequences(found, per_row, arrays[1:]) if self.lengths else found

    def _values(self, stored: pa.Array) -> pa.Array:
        if pa.types.is_uint64(self.value_type):  # the feature stores the bits of each value as an int64
            return stored.view(pa.uint64())
        if self.spellings is not None:
            found = pc.index_in(stored, pa.array([one.encode() for one in self.spellings], stored.type))
            _check(
                found.is_valid().to_numpy(zero_copy_only=False),
                lambda row: (
                    f"the value is {stored[row].as_py()!r}, but the values that stand for False and "
                    f"True are {self.spellings}"
                ),
            )
            return pc.equal(found, 1)
        if self.categories is None:
            return load(stored, self.value_type)
        if not self.has_codes:
            return load(stored, pa.dictionary(pa.int32(), self.categories.type), self.categories)
        codes, count = stored.to_numpy(), len(self.categories)
        _check(
            (codes >= -1) & (codes < count),
            lambda row: f"the number of the class is {codes[row]}, but {count} classes have names",
        )
        indices = pa.array(codes.astype(np.int32), mask=codes == -1)
        return pa.DictionaryArray.from_arrays(indices, self.categories)

    def _decoded(self, stored: pa.Array, shapes: pa.Array | None) -> pa.Array:
        """Convert encoded tensors to an array with one element for each tensor. ``shapes`` are the stored
        shapes, or None if no feature stores shapes.
        """
        width = 1 if pa.types.is_boolean(self.value_type) else self.value_type.bit_width // 8
        if self.encoding == "zlib":
            is_known = None not in self.shape
            size = math.prod(one or 0 for one in self.shape) * width if is_known else None
            stored = _decompressed(stored, size)
        sizes = pc.binary_length(stored).to_numpy()
        _check(sizes % width == 0, lambda row: f"{sizes[row]} bytes are no array of {self.value_type}")
        values, counts = _from_bytes(stored, self.value_type), sizes.astype(np.int64) // width
        if shapes is None:
            return _nested(values, counts, self.shape)
        rank = len(self.shape)
        matrix = shapes.to_numpy().reshape(-1, rank)
        fits = (matrix.prod(axis=1) == counts) & (matrix >= 0).all(axis=1)
        for at, size in enumerate(self.shape):
            fits &= (matrix[:, at] == size) | (size is None)
        _check(fits, lambda row: _mismatch(counts[row], matrix[row].tolist()))
        columns = [
            _lists(values, counts),
            _nested(shapes.cast(pa.int32()), np.full(len(stored), rank), [rank]),
        ]
        return pa.StructArray.from_arrays(columns, names=["data", "shape"])

    def _in_sequences(self, items: pa.Array, per_row: _Ints, features: Sequence[pa.Array]) -> pa.Array:
        """Group the tensors of all rows into nested sequences. Build the innermost sequences first."""
        left = [*features]
        for level in reversed(range(len(self.lengths) - 1)):
            partition = self.partitions[level] if self.partitions else RowPartition("row_lengths", "")
            if partition is None:
                sizes, counts = _equal_lengths(per_row, self.lengths[level + 1] or 1)
            else:
                sizes, counts = _row_lengths(left.pop(), partition.integers, per_row)
            edges = _edges(counts)
            totals = _edges(sizes)[edges]
            negative = _edges((sizes < 0).astype(np.int64))[edges]
            _check(
                (np.diff(totals) == per_row) & (np.diff(negative) == 0),
                lambda row: "the lengths of the inner sequences contradict the number of values",
            )
            try:
                items = _nested(items, sizes, self.lengths[level + 1 : level + 2])
            except MisfitError as error:
                raise error.in_list(edges) from None
            per_row = counts
        return _nested(items, per_row, self.lengths[:1])


def _fits(form: pa.DataType, type_: pa.DataType) -> bool:
    while is_list(form) and is_list(type_):
        form, type_ = form.value_type, type_.value_type
    if pa.types.is_dictionary(form) or pa.types.is_dictionary(type_):
        return same_layout(form, type_)
    if pa.types.is_struct(form) and pa.types.is_struct(type_) and form.names == type_.names:
        return all(_fits(one.type, other.type) for one, other in zip(form, type_, strict=True))
    return bool(widened(form, type_, numbers=False) == form)


def _check(are_valid: npt.NDArray[np.bool_], problem: Callable[[int], str]) -> None:
    if not are_valid.all():
        row = int(np.argmin(are_valid))
        raise MisfitError(row, problem(row))


def _mismatch(count: int, shape: Sequence[Size]) -> str:
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    return f"the number of values is {count}, which contradicts the shape ({sizes})"


def _flattened(array: pa.Array) -> tuple[pa.Array, _Ints]:
    """Return the values of all rows, and the number of values in each row. A null list has no values."""
    if not is_list(array.type):
        return array, np.ones(len(array), np.int64)
    return array.flatten(), np.diff(list_offsets(array))


def _equal_lengths(per_row: _Ints, size: int) -> tuple[_Ints, _Ints]:
    """Return sequence lengths that all equal ``size``, and the number of sequences in each row."""
    _check(per_row % size == 0, lambda row: _mismatch(per_row[row], [None, size]))
    counts = per_row // size
    return np.full(counts.sum(), size), counts


def _row_lengths(array: pa.Array, integers: Integers, per_row: _Ints) -> tuple[_Ints, _Ints]:
    """Return the lengths of all sequences, and the number of sequences in each row.

    ``per_row`` is the number of values in each row.
    """
    values, counts = _flattened(array)
    numbers = values.to_numpy()
    if integers == "row_lengths":
        return numbers, counts
    edges = _edges(counts)
    # Skip rows without integers, which have no first or last integer.
    first, last = edges[:-1][counts > 0], edges[1:][counts > 0] - 1
    if integers == "value_rowids":
        _check(counts == per_row, lambda row: f"{per_row[row]} values have {counts[row]} row numbers")
        steps = np.diff(numbers, prepend=0)
        steps[first] = numbers[first]
        sequences = np.zeros(len(counts), np.int64)
        sequences[counts > 0] = numbers[last] + 1
        are_sorted = np.add.reduceat(steps < 0, first) == 0 if len(first) else np.zeros(0, bool)
        fits = np.ones(len(counts), bool)
        fits[counts > 0] = are_sorted
        _check(fits, lambda row: "the row numbers are negative or not in ascending order")
        _check(sequences <= per_row + _MOST_EMPTY, lambda row: f"there are {sequences[row]:,} sequences")
        ids = numbers + np.repeat(_edges(sequences)[:-1], counts)
        return np.bincount(ids, minlength=sequences.sum()), sequences
    if integers != "row_limits":  # the first integer of a row is the start of the row's first sequence
        begins = np.zeros(len(counts), np.int64)
        begins[counts > 0] = numbers[first]
        _check(begins == 0, lambda row: f"the first sequence begins at {begins[row]} instead of 0")
    if integers == "row_splits":
        numbers, counts = np.delete(numbers, first), np.maximum(counts - 1, 0)
    elif integers == "row_starts":
        numbers = np.append(numbers[1:], 0) if len(numbers) else numbers
        numbers[last] = per_row[counts > 0]
    starts = _edges(counts)[:-1][counts > 0]
    sizes = np.diff(numbers, prepend=0)
    sizes[starts] = numbers[starts]
    return sizes, counts


def _edges(counts: _Ints) -> _Ints:
    """Return the index of each row's first value among all values, followed by the total number of values."""
    return np.concatenate([[0], np.cumsum(counts)])


def _nested_type(type_: pa.DataType, sizes: Sequence[Size]) -> pa.DataType:
    for size in reversed(sizes):
        type_ = pa.list_(type_) if size is None else pa.list_(type_, size)
    return type_


def _nested(values: pa.Array, counts: _Ints, sizes: Sequence[Size]) -> pa.Array:
    """Convert values in C order to nested lists.

    ``counts`` is the number of values in each row. ``sizes`` are the sizes of the lists, from the outermost
    list to the innermost. At most one of ``sizes`` may be None.
    """
    known = math.prod(size for size in sizes if size is not None)
    free = counts // max(1, known) if None in sizes else np.ones(len(counts), np.int64)
    _check(counts == free * known, lambda row: _mismatch(counts[row], sizes))
    for at in reversed(range(len(sizes))):
        size, outer = sizes[at], sizes[:at]
        lists = math.prod(one for one in outer if one is not None)
        if size is None:
            values = _lists(values, np.repeat(free, lists))
        else:
            lists *= int(free.sum()) if None in outer else len(counts)
            # `FixedSizeListArray.from_arrays` cannot create lists of size 0.
            values = pa.Array.from_buffers(pa.list_(values.type, size), lists, [None], children=[values])
    return values


def _lists(values: pa.Array, counts: _Ints) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(_edges(counts)).cast(pa.int32()), values)


def _decompressed(stored: pa.Array, size: int | None) -> pa.Array:
    """Decompress each value with zlib. If ``size`` is not None, a decompressed value of more than ``size``
    bytes raises MisfitError.

    All decompressed values together may have at most 2 GiB, so that hostile records cannot use up the memory.
    The values are decompressed in a loop, because no library decompresses an array of zlib streams in one
    call.
    """
    contents: list[bytes] = []
    left = _MOST_BYTES
    for row, value in enumerate(stored.to_pylist()):
        stream = zlib.decompressobj()
        most = left if size is None else min(size, left)
        try:
            content = stream.decompress(value, most + 1)
        except zlib.error as error:
            raise MisfitError(row, f"the value is not compressed with zlib ({error})") from None
        if len(content) > most:
            raise MisfitError(row, f"the value decompresses to more than {most:,} bytes")
        if not stream.eof:
            raise MisfitError(row, "the compressed value is truncated")
        contents.append(content)
        left -= len(content)
    return pa.array(contents, pa.binary())


def _from_bytes(stored: pa.Array, type_: pa.DataType) -> pa.Array:
    """Interpret the bytes of all values as one array of little-endian values."""
    _, offsets, data = stored.buffers()
    edges = np.frombuffer(offsets, np.int32)[stored.offset : stored.offset + len(stored) + 1]
    joined = pa.py_buffer(b"") if data is None else data.slice(edges[0], edges[-1] - edges[0])
    if pa.types.is_boolean(type_):
        return pa.array(np.frombuffer(joined, np.uint8) != 0)
    return pa.Array.from_buffers(type_, joined.size * 8 // type_.bit_width, [None, joined])
