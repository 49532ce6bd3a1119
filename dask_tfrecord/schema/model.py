"""Define the schema of a dataset: its columns, and the message type of its records.

The module `model` knows Arrow and the kernel's columns, but neither files nor pandas nor Dask. The module
`storage_values` converts the values of columns.
"""

import base64
import html
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, get_args

import pyarrow as pa

from dask_tfrecord.codec.columns import Column, RecordType
from dask_tfrecord.errors import Remedy, SchemaError, check_instance
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.field import Field, Lossy, feature_text
from dask_tfrecord.schema.storage_types import canonical_type
from dask_tfrecord.schema.storage_values import (
    STORAGE_TYPES,
    is_stored,
)
from dask_tfrecord.schema.stored_form import StoredForm


@dataclass(frozen=True, repr=False)
class Schema:
    """The columns of a dataset, and the message type of its records.

    ``Snapshot.schema`` is such a schema, :meth:`from_arrow` creates a schema, and
    ``read_tfrecord(schema=...)`` accepts a schema.

    Parameters
    ----------
    fields : tuple of Field
        The columns of the dataset, in order.
    record_type : "example", "sequence_example" or "bytes", default "example"
        The type of message that each record is. "bytes" means that the payload of a record is the value of
        the dataset's only column.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from dask_tfrecord import Schema
    >>> schema = Schema.from_arrow(pa.schema({"age": pa.int8(), "tags": pa.list_(pa.string())}))
    >>> schema
    Schema of example records:
      column  type                feature
      age     int8                int64_list
      tags    list<item: string>  bytes_list
    >>> schema.names
    ['age', 'tags']
    >>> schema.select(["age"])
    Schema of example records:
      column  type  feature
      age     int8  int64_list
    """

    fields: tuple[Field, ...]
    record_type: RecordType = "example"

    def __post_init__(self) -> None:
        check_instance("fields", self.fields, tuple)
        for item in self.fields:
            check_instance("fields", item, Field)
        _check_record_type(self.record_type)

    # The package sets these functions, because the schema knows no files.
    from_tfds: ClassVar["Callable[..., Schema]"]
    from_tfmd: ClassVar["Callable[..., Schema]"]

    @classmethod
    def from_arrow(
        cls,
        schema: pa.Schema,
        record_type: RecordType = "example",
        *,
        categories: Mapping[str, pa.Array] | None = None,
    ) -> Self:
        """Create a schema from an Arrow schema. Raise if TFRecord cannot store a type of the Arrow schema.

        A view type such as string_view becomes the type without view, which differs only in memory form.
        A column of the null type can only hold nulls.

        Parameters
        ----------
        schema : pyarrow.Schema
            The names and the logical types of the columns.
        record_type : "example", "sequence_example" or "bytes", default "example"
            The type of message that each record is.
        categories : mapping of str to pyarrow.Array, optional
            Map from the name of a dictionary column to the first categories of this column.

        Returns
        -------
        Schema

        Raises
        ------
        SchemaError
            If records of this type cannot hold the name or the type of a column.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dask_tfrecord import Schema
        >>> Schema.from_arrow(pa.schema({"frames": pa.list_(pa.list_(pa.float32()))}), "sequence_example")
        Schema of sequence_example records:
          column  type                           feature
          frames  list<item: list<item: float>>  feature list of float_list
        """
        check_instance("schema", schema, pa.Schema)
        check_instance("categories", categories, Mapping, type(None))
        check_names(schema.names)
        return cls._of_types(schema, record_type, categories or {})

    @classmethod
    def _of_types(cls, schema: pa.Schema, record_type: RecordType, known: Mapping[str, pa.Array]) -> Self:
        _check_record_type(record_type)
        fields = tuple(Field(item.name, canonical_type(item.type), known.get(item.name)) for item in schema)
        for item in fields:
            _check_type(item, record_type)
        check_features(fields)
        if record_type == "bytes":
            _check_payload(fields)
        return cls(fields, record_type)

    @property
    def names(self) -> list[str]:
        """The names of the columns, in order."""
        return [item.name for item in self.fields]

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The name, kind and depth of each feature that stores a column, as the kernel needs them."""
        found = (feature for item in self.fields for feature in item.features)
        return tuple(dict.fromkeys(found) if self._has_forms else found)

    @property
    def leaves(self) -> tuple[Field, ...]:
        """The columns, with the fields at all levels of a struct instead of the struct."""
        return tuple(leaf for item in self.fields for leaf in item.leaves)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema with the names and the logical types of the columns."""
        return pa.schema([(item.name, item.type) for item in self.fields])

    def select(self, names: Iterable[str]) -> Self:
        """Return a schema with only the named columns, in the given order.

        The name "a/b" stands for the field "b" of the struct column "a", as a column.

        Raises
        ------
        SchemaError
            If no column has one of the names.
        """
        check_instance("names", names, Iterable)
        selected = list(names)
        if selected == self.names:  # the same object keeps its cached properties
            return self
        for name in selected:
            check_instance("names", name, str)
        by_name = {item.name: item for item in self.fields}
        if not by_name.keys() >= set(selected):
            by_name = {one.name: one for item in self.fields for one in item.family} | by_name
        unknown = [name for name in selected if name not in by_name]
        if unknown:
            raise SchemaError(f"no column is named {_list(unknown)}; there are {_list(self.names)}")
        return type(self)(tuple(by_name[name] for name in selected), self.record_type)

    def no_rows(self) -> pa.RecordBatch:
        """Return a batch with the columns of the schema and without rows.

        Dictionary columns of the batch have the known categories.
        """
        return pa.RecordBatch.from_arrays([item.no_rows() for item in self.fields], schema=self.arrow)

    def is_stored(self, batch: pa.RecordBatch) -> bool:
        """Return True if the kernel can encode a batch unchanged.

        For such a batch, `to_storage` returns the batch itself.
        """
        return batch.schema.equals(self.arrow) and all(is_stored(batch.column(at)) for at in self._undecided)

    @cached_property
    def _undecided(self) -> tuple[int, ...]:
        """Indices of the columns whose values must be checked.

        Their Arrow type does not guarantee that the kernel can encode the values.
        """
        return tuple(at for at, item in enumerate(self.fields) if item.type not in STORAGE_TYPES)

    def to_storage(self, batch: pa.RecordBatch, *, lossy: Lossy) -> pa.RecordBatch:
        """Convert a batch to types that the kernel encodes, without copying where possible.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            A batch with the columns of this schema, in their logical types.
        lossy : "warn", "allow" or "raise"
            If "raise", a value that would be rounded to a 32-bit float raises an error.

        Raises
        ------
        SchemaError
            If a value of the batch cannot be stored. The error has the column and the row of this value.
        """
        if self.is_stored(batch):  # creating a batch of many columns takes as long as encoding the batch
            return batch
        if batch.schema.names != self.names:
            raise SchemaError(f"the columns are {_list(batch.schema.names)} instead of {_list(self.names)}")
        pairs = zip(self.fields, batch.columns, strict=True)
        stored = [one for item, array in pairs for one in item.to_features(array, lossy=lossy)]
        return pa.RecordBatch.from_arrays(stored, names=[feature.name for feature in self.columns])

    def from_storage(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a decoded batch from storage types to logical types: the inverse of `to_storage`.

        Raises
        ------
        SchemaError
            If the logical type of a column cannot hold a value. The error has the column and the row of this
            value.
        """
        # A new batch of many columns costs as much as decoding it.
        if batch.schema.equals(self.arrow) and not self._has_forms:
            return batch
        columns = [
            item.load(*map(batch.column, ats)) for item, ats in zip(self.fields, self._positions, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    @cached_property
    def _positions(self) -> list[list[int]]:
        """For each column, the positions of its features in `columns`.

        Several columns may share a feature.
        """
        at = {feature: number for number, feature in enumerate(self.columns)}
        return [[at[feature] for feature in item.features] for item in self.fields]

    @cached_property
    def _has_forms(self) -> bool:
        """True if a column is stored in other features than the feature with its name and type."""
        return any(item.form is not None or item.is_struct for item in self.fields)

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON values, in the form in which a snapshot stores the schema.

        The key ``columns`` is for people to read. The key ``arrow`` is exact: it holds an Arrow IPC stream
        without rows, encoded as base64 text.
        """
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.arrow) as writer:
            writer.write_batch(self.no_rows())
        columns = [
            {
                "name": item.name,
                "type": str(item.type),
                "kind": "struct" if item.is_struct else item.kind,
                "depth": item.depth,
            }
            for item in self.fields
        ]
        forms = {item.name: item.form.to_json() for item in self.fields if item.form is not None}
        return {
            "record_type": self.record_type,
            "columns": columns,
            "known_categories": [
                item.name for item in self.fields if item.categories is not None and item.form is None
            ],
            "arrow": base64.b64encode(sink.getvalue()).decode("ascii"),
            **({"forms": forms} if forms else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Create a schema from the value that `to_json` returned.

        Raises
        ------
        SchemaError
            If the value is not in the form that `to_json` returns.
        """
        try:
            stream = base64.b64decode(value["arrow"], validate=True)
            with pa.ipc.open_stream(stream) as reader:
                empty = reader.read_all()
            record_type, forms = value["record_type"], value.get("forms", {})
            categories = {
                name: empty.column(name).combine_chunks().dictionary for name in value["known_categories"]
            }
            known = {name: StoredForm.from_json(form) for name, form in forms.items()}
            plain = [item for item in empty.schema if item.name not in known]
            if not plain and record_type in get_args(RecordType):
                fields = {}  # records without features, or whose features are all in a form of TFDS
            else:
                check_names([item.name for item in plain], may_be_empty=True)  # as in files of other tools
                schema = cls._of_types(pa.schema(plain), record_type, categories)
                fields = {item.name: item for item in schema.fields}
            fields |= {name: Field.in_form(name, form) for name, form in known.items()}
            return cls(tuple(fields[name] for name in empty.schema.names), record_type)
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            raise SchemaError(f"the stored schema is not readable: {error}") from error

    def __repr__(self) -> str:
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n  ".join([f"Schema of {self.record_type} records:", *lines])

    def _repr_html_(self) -> str:
        cells = ("".join(f"<td>{html.escape(text)}</td>" for text in row) for row in self._rows())
        lines = "".join(f"<tr>{line}</tr>" for line in cells)
        return f"<table><caption>Schema of {self.record_type} records</caption>{lines}</table>"

    def _rows(self) -> list[tuple[str, str, str]]:
        """Return the rows of the table of columns that ``print(schema)`` shows.

        The first row has the titles of the table.
        """
        rows = [(item.name, str(item.type), feature_text(item)) for item in self.fields]
        return [("column", "type", "feature"), *rows]


def _list(names: Iterable[object]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _check_record_type(given: object) -> None:
    known = get_args(RecordType)
    if not isinstance(given, str) or given not in known:
        raise SchemaError(f"unknown record_type {given!r}; known are {_list(known)}")


def check_names(names: Sequence[object], *, may_be_empty: bool = False) -> None:
    """Raise SchemaError if the column names cannot be the feature names of a record that is written."""
    if not names:
        raise SchemaError("there are no columns to store", "keep at least one column")
    not_strings = [name for name in names if not isinstance(name, str)]
    if not_strings:
        raise SchemaError(
            f"column names must be strings, not {_list(not_strings)}", "rename with ddf.rename(columns=str)"
        )
    if "" in names and not may_be_empty:
        raise SchemaError("a column has an empty name", "rename it")
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        problem = f"several columns are named {_list(repeated)}, but a record has each name at most once"
        raise SchemaError(problem, "rename them")


def _check_type(item: Field, record_type: RecordType) -> None:
    if not item.is_struct:
        return _check_depth(item, record_type)
    try:
        for leaf in item.leaves:
            _check_depth(leaf, record_type)
    except SchemaError as error:
        raise item.of_struct(error) from None


def _check_depth(item: Field, record_type: RecordType) -> None:
    depth = item.depth
    if depth > (1 if record_type == "example" else 2):
        raise SchemaError(
            f"{item.type} nests lists deeper than record_type={record_type!r} allows",
            None if depth == 2 else "flatten the lists",
            remedies=[Remedy("record_type", "sequence_example", "allow lists of lists")] * (depth == 2),
            feature=item.name,
            function="",
        )


def check_features(fields: Sequence[Field]) -> None:
    """Raise SchemaError if two columns, or two fields of structs, have the name of one feature."""
    if not any(item.is_struct for item in fields):  # then the names of the columns are those of the features
        return
    counts = Counter(one.name for item in fields for one in item.features)
    for name in (name for name, count in counts.items() if count > 1):
        raise SchemaError(
            "two columns or fields have the name of this feature, because the field of a struct is stored as "
            "column/field",
            "rename one of the columns or fields",
            feature=name,
        )


def _check_payload(fields: Sequence[Field]) -> None:
    """Raise SchemaError unless the only column is a scalar of bytes or strings."""
    if len(fields) != 1 or fields[0].kind not in ("bytes", "string") or fields[0].depth:
        names = _list(item.name for item in fields)
        problem = f'record_type="bytes" stores exactly one binary or string column, not {names}'
        remedy = Remedy("record_type", "example", "store several columns")
        raise SchemaError(problem, "select such a column", remedy, function="")
