"""Define the schema of a dataset: its fields, the features that store each field, and the type of its
records.

This module depends on Arrow and on `codec.Column`, but not on files, pandas or Dask. The module
`storage_values` converts the values of columns.
"""

import base64
import html
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, ClassVar, Literal, Self, get_args

import pyarrow as pa

from dask_tfrecord.codec import KIND_TYPES, Column, Kind, RecordType, nested
from dask_tfrecord.errors import Remedy, SchemaError, check_instance, did_you_mean
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.form_encoding import encode, merged_values
from dask_tfrecord.schema.form_transport import as_metadata, carried
from dask_tfrecord.schema.logical_types import canonical_type, is_lossy, kind_and_depth, of_column
from dask_tfrecord.schema.names import check_names, name_list
from dask_tfrecord.schema.storage_values import (
    ROUND,
    STORAGE_TYPES,
    MisfitError,
    RoundedError,
    from_marker,
    in_steps,
    is_stored,
    load,
    store,
    with_marker,
    without_steps,
)
from dask_tfrecord.schema.stored_form import StoredForm
from dask_tfrecord.schema.struct_types import of_structs

Lossy = Literal["warn", "allow", "raise"]

# The exceptions that a conversion raises if a value does not fit the type. `_error` converts each of these
# exceptions to a SchemaError that names the column.
_CAST_ERRORS = (
    MisfitError,
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,  # Arrow has no cast between the two types
)


@dataclass(frozen=True, repr=False)
class Field:
    """One column of a :class:`Schema`: its name, its logical type and its categories.

    Parameters
    ----------
    name : str
        Name of the column, and of the feature that stores the column. A struct column named "a" with the
        field "b" is stored in the features "a/b" and "a". The feature "a" marks structs that are not null,
        but whose fields are all null.
    type : pyarrow.DataType
        The logical type, which is the type of the column in a DataFrame.
    categories : pyarrow.Array, optional
        The first categories of a dictionary type, in order. If the dictionary type is ordered, ``categories``
        contains all categories.
    form : StoredForm, optional
        How features store the column, if ``type`` does not determine the storage. Columns of TFDS datasets
        and of TensorFlow's feature specs have a `StoredForm`.
    dtype : str, optional
        The dtype of the written pandas column, such as ``"int64"``, ``"Int64"`` or ``"str"``. ``dtype`` is ""
        if the dtype is unknown, and for an Arrow-backed or categorical column. Fields that differ only in
        ``dtype`` are equal.
    is_closed : bool, default False
        True if a dictionary column contains no values outside ``categories``. Fields that differ only in
        ``is_closed`` are equal.
    is_feature_list : bool, default False
        True if a feature list of a SequenceExample stores a list column, with one element of the list in each
        step. Without ``is_feature_list``, only lists of lists are stored in feature lists.
    spec : {None, "scalars", "lists"}, default None
        What another library's schema says about the steps of a list column whose feature may be a feature
        list: each step has one value ("scalars"), or any number of values ("lists"). `in_map` uses ``spec``.
        Fields that differ only in ``spec`` are equal.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from dask_tfrecord import Field
    >>> Field("tags", pa.list_(pa.string()))
    Field('tags', list<item: string>)
    >>> Field("tags", pa.list_(pa.string())).kind
    'string'
    """

    name: str
    type: pa.DataType
    categories: pa.Array | None = field(default=None, hash=False)
    form: StoredForm | None = None
    dtype: str = field(default="", compare=False)
    is_closed: bool = field(default=False, compare=False)
    is_feature_list: bool = False
    spec: Literal["scalars", "lists"] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_instance("name", self.name, str)
        check_instance("type", self.type, pa.DataType)
        check_instance("categories", self.categories, pa.Array, type(None))

    @classmethod
    def in_form(cls, name: str, form: StoredForm) -> Self:
        """Create a column with the type and the storage that a `StoredForm` describes."""
        return cls(name, form.type, None if form.depth else form.categories, form)

    def without_class_names(self) -> Self:
        """If the column is a TFDS class label, return it with class numbers instead of names."""
        if self.form is None or not self.form.has_codes:
            return self
        return type(self).in_form(self.name, replace(self.form, categories=None))

    @property
    def kind(self) -> Kind:
        """The kind of the feature that stores the column.

        The kind is "int64", "float", "bytes", or "string" for text in a bytes feature.
        """
        return self.column.kind

    @property
    def depth(self) -> int:
        """The nesting depth of lists: 0 for a scalar, 1 for a list, 2 for a list of lists.

        The depth of a struct is the greatest depth of its fields, but at least 1.
        """
        if self.is_struct:
            depths: list[int] = [child.depth for child in self.children]
            return max([1, *depths])
        if self.form is not None:
            return self.form.depth
        return 1 if self.is_feature_list else self.column.depth

    @property
    def is_struct(self) -> bool:
        """True if the column is a struct whose fields are stored in separate features."""
        return isinstance(self.type, pa.StructType) and self.form is None

    @cached_property
    def children(self) -> tuple[Self, ...]:
        """The fields of a struct as columns, such as "a/b" for the field "b" of the column "a"."""
        fields = self.type if self.is_struct else ()
        return tuple(type(self)(f"{self.name}/{item.name}", item.type) for item in fields)

    @property
    def family(self) -> tuple[Self, ...]:
        """The column itself and, for a struct, its fields at all levels."""
        if not self.is_struct:  # skip `children`, whose cache would take memory and time for many columns
            return (self,)
        return (self, *(one for child in self.children for one in child.family))

    @property
    def leaves(self) -> tuple[Self, ...]:
        """The column itself or, for a struct, its innermost fields."""
        return tuple(one for one in self.family if not one.is_struct)

    @cached_property
    def features(self) -> tuple[Column, ...]:
        """The features that store this column, each as a `Column` for the kernel.

        The first feature of a struct tells a null struct from a struct whose fields are all null.
        """
        if self.is_feature_list:
            return tuple(one._replace(depth=2) for one in replace(self, is_feature_list=False).features)
        if self.form is not None:
            return self.form.columns(self.name)
        if self.is_struct:
            of_fields = (feature for child in self.children for feature in child.features)
            return (Column(self.name, "int64", 0), *of_fields)
        if pa.types.is_null(self.type):  # a column of the null type is stored as a feature without values
            return (Column(self.name, "bytes", 1),)
        try:
            return (Column(self.name, *kind_and_depth(self.type)),)
        except SchemaError as error:
            raise of_column(error, self.name) from None

    @property
    def column(self) -> Column:
        """The first feature that stores the column."""
        return self.features[0]

    def of_struct(self, error: SchemaError) -> SchemaError:
        """Copy the error of a struct field, and suggest the type of the whole struct in its remedies."""
        return error.replaced(
            remedies=of_structs(error.remedies, {self.name: self.type} if self.is_struct else {})
        )

    @property
    def carried(self) -> dict[str, Any] | None:
        """Metadata of rows in memory with which a write stores the column as it was read."""
        return carried(self.form, is_feature_list=self.is_feature_list)

    @property
    def is_required(self) -> bool:
        """True if the column cannot contain nulls, because a record without a value raises an error."""
        return self.form is not None and self.form.is_plain and not self.form.is_optional

    @property
    def lossy(self) -> bool:
        """True if storing values of the column rounds them to 32-bit floats."""
        return is_lossy(self.type) and (self.form is None or self.form.encoding == "none")

    def to_features(self, array: pa.Array, *, lossy: Lossy) -> list[pa.Array]:
        """Convert values of the column to one array of stored values for each of its features."""
        if not self.is_struct and self.form is None:
            return [self.store(array, lossy=lossy)]
        self._check_type(array)
        if self.form is not None:
            try:
                stored = encode(self.form, array, exact=lossy == "raise")
                return [in_steps(stored[0], self.form.step_size)] if self.is_feature_list else stored
            except _CAST_ERRORS as error:
                raise self._error(error, "to_tfrecord") from None
        of_fields = zip(self.children, array.flatten(), strict=True)
        try:
            stored = [one for item, values in of_fields for one in item.to_features(values, lossy=lossy)]
        except SchemaError as error:
            raise self.of_struct(error) from None
        return with_marker(array, stored)

    def store(self, array: pa.Array, *, lossy: Lossy) -> pa.Array:
        """Convert the values of a column, which must not be a struct, to a type that the kernel encodes.

        Raise SchemaError for a value that cannot be stored, or that would be rounded if ``lossy`` is "raise".
        """
        self._check_type(array)
        try:
            self._check_categories(array)
            stored = store(array, exact=lossy == "raise")
            return in_steps(stored, 1) if self.is_feature_list else stored
        except _CAST_ERRORS as error:
            raise self._error(error, "to_tfrecord") from None

    @property
    def has_all_categories(self) -> bool:
        """True if every value of a dictionary column must be one of the known categories."""
        return self.is_closed or self.type.ordered if self.form is None else self.form.has_codes

    def check_categories(self, column: pa.ChunkedArray | pa.Array) -> None:
        """Raise SchemaError if a value of an ordered dictionary column is not one of the categories."""
        first = 0
        for array in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            try:
                self._check_categories(array)
            except MisfitError as error:
                error.row += first
                raise self._error(error, "to_tfrecord") from None
            first += len(array)

    def _check_categories(self, array: pa.Array) -> None:
        if self.categories is None or not self.type.ordered or array.dictionary.equals(self.categories):
            return
        load(array.dictionary_decode(), self.type, self.categories)

    def _check_type(self, array: pa.Array) -> None:
        if array.type != self.type and canonical_type(array.type) != self.type:
            raise SchemaError(f"the values are {array.type}, the column is {self.type}", feature=self.name)

    def load(self, *arrays: pa.Array) -> pa.Array:
        """Convert the decoded values of the column's features to the column's type.

        Raise SchemaError if a value does not fit the column's type.
        """
        try:
            if self.is_struct:
                marker, *others = arrays
                features = iter(others)
                children = [item.load(*islice(features, len(item.features))) for item in self.children]
                return from_marker(self.type, marker, children)
            if self.is_feature_list:
                size = 1 if self.form is None else self.form.step_size
                arrays = (without_steps(arrays[0], size),)
            if self.form is not None:
                return self.form.load(arrays)
            return load(arrays[0], self.type, self.categories)
        except SchemaError as error:
            raise self.of_struct(error) from None
        except _CAST_ERRORS as error:
            raise self._error(error, "read_tfrecord") from None

    def no_rows(self) -> pa.Array:
        """Return an empty array of the column's type. A dictionary array contains the known categories."""
        empty = pa.nulls(0, self.type)
        if self.categories is None:
            return empty
        return pa.DictionaryArray.from_arrays(empty.indices, self.categories, ordered=self.type.ordered)

    def __repr__(self) -> str:
        categories = "" if self.categories is None else f", categories={self.categories.to_pylist()}"
        return f"Field({self.name!r}, {self.type}{categories})"

    def _error(self, error: Exception, function: str) -> SchemaError:
        if not isinstance(error, MisfitError):
            problem = f"pyarrow {pa.__version__} cannot convert {self.type}: {error}"
            return SchemaError(problem, feature=self.name)
        remedies = [ROUND] if isinstance(error, RoundedError) else []
        if self.form is not None and function == "read_tfrecord":
            types = {one.name: nested(KIND_TYPES[one.kind], one.depth) for one in self.features}
            remedies = [Remedy("schema", types, "read the stored values")]
        elif error.wider is not None:
            remedies = [Remedy("schema", {self.name: error.wider}, "hold all values")]
        found = SchemaError(error.problem, error.advice, *remedies, feature=self.name, function=function)
        return found.replaced(record=error.row)


def feature_text(item: Field) -> str:
    """Describe the type of the feature that stores a column, such as "int64_list"."""
    if item.is_struct:
        return "one for each field"
    kind = "bytes" if item.kind == "string" else item.kind
    return f"feature list of {kind}_list" if item.column.depth == 2 else f"{kind}_list"


@dataclass(frozen=True, repr=False)
class Schema:
    """The columns of a dataset, and the message type of its records.

    A snapshot contains one, :meth:`from_arrow` creates one, and ``read_tfrecord(schema=...)`` accepts one.

    Parameters
    ----------
    fields : tuple of Field
        The columns of the dataset, in order.
    record_type : "example", "sequence_example" or "bytes", default "example"
        The message type of each record. With ``record_type="bytes"``, the only column contains the payload of
        each record.

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

    # `dask_tfrecord/__init__.py` assigns `from_tfds` and `from_tfmd` at import, because they open files,
    # which this module must not do.
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

        A view type such as string_view becomes the plain type, such as string. A column of the null type can
        only contain nulls.

        Parameters
        ----------
        schema : pyarrow.Schema
            The names and the logical types of the columns.
        record_type : "example", "sequence_example" or "bytes", default "example"
            The message type of each record.
        categories : mapping of str to pyarrow.Array, optional
            Maps the name of each dictionary column to the ``categories`` of its `Field`.

        Returns
        -------
        Schema

        Raises
        ------
        SchemaError
            If records of type ``record_type`` cannot hold the name or the type of a column.

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
        """The name, kind and depth of each feature that stores a column, for the kernel."""
        features = (feature for item in self.fields for feature in item.features)
        return tuple(dict.fromkeys(features) if self._has_forms else features)

    @property
    def leaves(self) -> tuple[Field, ...]:
        """The columns, with each struct replaced by its innermost fields."""
        return tuple(leaf for item in self.fields for leaf in item.leaves)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema with the names and the logical types of the columns.

        The metadata of a column with a `StoredForm` contains the form, so that a write can restore it. The
        metadata of a list column in feature lists says so.
        """
        fields = [pa.field(one.name, one.type, metadata=as_metadata(one.carried)) for one in self.fields]
        return pa.schema(fields)

    def select(self, names: Iterable[str]) -> Self:
        """Return a schema with only the named columns, in the given order.

        The name "a/b" selects the field "b" of the struct column "a" as a column.

        Raises
        ------
        SchemaError
            If a name belongs to no column.
        """
        check_instance("names", names, Iterable)
        selected = list(names)
        if selected == self.names:  # returning the same object keeps the cached properties
            return self
        for name in selected:
            check_instance("names", name, str)
        by_name = {item.name: item for item in self.fields}
        if not by_name.keys() >= set(selected):
            by_name = {one.name: one for item in self.fields for one in item.family} | by_name
        unknown = [name for name in selected if name not in by_name]
        if unknown:
            problem = f"no column is named {name_list(unknown)}; there are {name_list(self.names)}"
            raise SchemaError(problem, did_you_mean(unknown[0], by_name))
        return type(self)(tuple(by_name[name] for name in selected), self.record_type)

    def opened(self, names: Collection[str]) -> Self:
        """Return a schema in which the columns ``names`` may contain values outside the known categories."""
        fields = (replace(item, is_closed=item.is_closed and item.name not in names) for item in self.fields)
        return replace(self, fields=tuple(fields))

    def as_in(self, existing: "Schema") -> Self:
        """Return a schema whose list columns are stored in feature lists if they are in ``existing``.

        Lists of lists need no change, because feature lists always store them.
        """
        lists = {item.name for item in existing.fields if item.is_feature_list}
        fields = (
            replace(one, is_feature_list=True) if one.name in lists and one.column.depth == 1 else one
            for one in self.fields
        )
        return replace(self, fields=tuple(fields))

    def no_rows(self) -> pa.RecordBatch:
        """Return a batch with the columns and no rows. Dictionary columns contain the known categories."""
        return pa.RecordBatch.from_arrays([item.no_rows() for item in self.fields], schema=self.arrow)

    def is_stored(self, batch: pa.RecordBatch) -> bool:
        """Return True if the kernel can encode a batch unchanged, so that `to_storage` returns the
        batch itself.
        """
        if self._has_forms or not batch.schema.equals(self.arrow):
            return False
        return all(is_stored(batch.column(at)) for at in self._undecided)

    @cached_property
    def _undecided(self) -> tuple[int, ...]:
        """Indices of the columns whose type alone does not show that the kernel can encode their values."""
        return tuple(at for at, item in enumerate(self.fields) if item.type not in STORAGE_TYPES)

    def to_storage(self, batch: pa.RecordBatch, *, lossy: Lossy) -> pa.RecordBatch:
        """Convert a batch with the columns of this schema to types that the kernel encodes.

        Values are copied only if necessary. Raise SchemaError, with the column and the row, if a value cannot
        be stored or, with ``lossy="raise"``, would be rounded.
        """
        if self.is_stored(batch):  # with many columns, making a new batch takes as long as encoding one
            return batch
        if batch.schema.names != self.names:
            raise SchemaError(
                f"the columns are {name_list(batch.schema.names)} instead of {name_list(self.names)}"
            )
        stored: dict[Column, pa.Array] = {}
        for item, array in zip(self.fields, batch.columns, strict=True):
            for feature, values in zip(item.features, item.to_features(array, lossy=lossy), strict=True):
                merged = merged_values(stored.get(feature, values), values)
                if merged is None:
                    problem = f"another column stores other values in the same feature {feature.name!r}"
                    raise SchemaError(problem, "drop one of the columns", feature=item.name)
                stored[feature] = merged
        return pa.RecordBatch.from_arrays([*stored.values()], names=[feature.name for feature in stored])

    def from_storage(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a decoded batch from storage types to logical types. This method is the inverse of
        `to_storage`.

        Raise SchemaError, with the column and the row, for a value that does not fit its column.
        """
        # Return the batch itself: with many columns, creating a new batch would take as long as decoding one.
        if batch.schema.equals(self.arrow) and not self._has_forms:
            return batch
        columns = [
            item.load(*map(batch.column, ats)) for item, ats in zip(self.fields, self._positions, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    @cached_property
    def _positions(self) -> list[list[int]]:
        """For each field, the positions in `columns` of the features that store it. Several fields may share
        a feature.
        """
        at = {feature: number for number, feature in enumerate(self.columns)}
        return [[at[feature] for feature in item.features] for item in self.fields]

    @cached_property
    def _has_forms(self) -> bool:
        """True if one or more columns are structs, have a `StoredForm`, or are lists in feature lists."""
        return any(item.form is not None or item.is_struct or item.is_feature_list for item in self.fields)

    def to_json(self) -> dict[str, Any]:
        """Return the schema as the JSON value that a snapshot stores.

        The key ``columns`` is for human readers. The key ``arrow`` contains the exact schema: an Arrow IPC
        stream without rows, encoded as base64 text.
        """
        sink = pa.BufferOutputStream()
        types = pa.schema([(item.name, item.type) for item in self.fields])
        with pa.ipc.new_stream(sink, types) as writer:
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
        lists = [item.name for item in self.fields if item.is_feature_list]
        return {
            "record_type": self.record_type,
            "columns": columns,
            "known_categories": [
                item.name for item in self.fields if item.categories is not None and item.form is None
            ],
            "arrow": base64.b64encode(sink.getvalue()).decode("ascii"),
            "dtypes": {item.name: item.dtype for item in self.fields if item.dtype},
            **({"closed": closed} if (closed := [one.name for one in self.fields if one.is_closed]) else {}),
            **({"feature_lists": lists} if lists else {}),
            **({"forms": forms} if forms else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Create a schema from the value that `to_json` returned. Raise SchemaError for an invalid value."""
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
                fields = {}  # every column has a stored form, so no field is derived from an Arrow type
            else:
                # Other tools may write a feature with the name "".
                check_names([item.name for item in plain], may_be_empty=True)
                schema = cls._of_types(pa.schema(plain), record_type, categories)
                fields = {item.name: item for item in schema.fields}
            fields |= {name: Field.in_form(name, form) for name, form in known.items()}
            dtypes = value.get("dtypes", {})
            fields |= {
                name: replace(fields[name], dtype=str(dtypes[name])) for name in dtypes.keys() & fields
            }
            closed = set(value.get("closed", ())) & categories.keys()
            fields |= {name: replace(fields[name], is_closed=True) for name in closed}
            lists = value.get("feature_lists", ())
            fields |= {name: replace(fields[name], is_feature_list=True) for name in lists}
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
        rows = [(item.name, str(item.type), feature_text(item)) for item in self.fields]
        return [("column", "type", "feature"), *rows]


def _check_record_type(given: object) -> None:
    known = get_args(RecordType)
    if not isinstance(given, str) or given not in known:
        raise SchemaError(f"unknown record_type {given!r}; known are {name_list(known)}")


def _check_type(item: Field, record_type: RecordType) -> None:
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
    """Raise SchemaError if two columns, or two fields of structs, would be stored in the same feature.

    A column with a `StoredForm` may share a feature with other columns.
    """
    # Without structs and forms, each feature has the name of its column.
    if not any(item.is_struct or item.form is not None for item in fields):
        return
    shared = {feature for item in fields if item.form is not None for feature in item.features}
    features = [feature for item in fields if item.form is None for feature in item.features]
    counts = Counter(one.name for one in (*features, *shared.difference(features)))
    for name in (name for name, count in counts.items() if count > 1):
        raise SchemaError(
            "two columns or fields have the name of this feature, because the field of a struct is stored as "
            "column/field, and a column that another library described in several features",
            "rename one of the columns or fields",
            feature=name,
        )


def _check_payload(fields: Sequence[Field]) -> None:
    if len(fields) != 1 or fields[0].kind not in ("bytes", "string") or fields[0].depth:
        names = name_list(item.name for item in fields)
        problem = f'record_type="bytes" stores exactly one binary or string column, not {names}'
        remedy = Remedy("record_type", "example", "store several columns")
        raise SchemaError(problem, "select such a column", remedy, function="")
