"""Define a column of a dataset: its name, its Arrow type, and the features that store the column."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal, Self

import pyarrow as pa

from dask_tfrecord.codec.columns import KIND_TYPES, Column, Kind, nested
from dask_tfrecord.errors import Remedy, SchemaError, check_instance
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.storage_types import canonical_type, is_lossy, kind_and_depth, of_column
from dask_tfrecord.schema.storage_values import ROUND, MisfitError, RoundedError, load, store
from dask_tfrecord.schema.stored_form import StoredForm
from dask_tfrecord.schema.structs import from_marker, with_marker

Lossy = Literal["warn", "allow", "raise"]

# The exceptions of a conversion if a value does not fit a type. `_error` converts these exceptions to a
# SchemaError that names the column.
_CAST_ERRORS = (
    MisfitError,
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,  # how Arrow reports that it has no cast between two types
)


@dataclass(frozen=True, repr=False)
class Field:
    """One column of a :class:`Schema`: its name, its logical type and its categories.

    Parameters
    ----------
    name : str
        Name of the column, and of the feature that stores the column. A struct column named "a" with the
        field "b" is stored in the features "a/b" and "a".
    type : pyarrow.DataType
        The logical type, which is the type of the column in a DataFrame.
    categories : pyarrow.Array, optional
        The first categories of a dictionary type, in this order. An ordered dictionary type has no other
        categories.
    form : StoredForm, optional
        The features that store the column, if these are not given by the type, as in datasets of TFDS and in
        feature specs of TensorFlow.

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

    def __post_init__(self) -> None:
        check_instance("name", self.name, str)
        check_instance("type", self.type, pa.DataType)
        check_instance("categories", self.categories, pa.Array, type(None))

    @classmethod
    def in_form(cls, name: str, form: StoredForm) -> Self:
        """Create a column that features store in a form of TFDS."""
        return cls(name, form.type, None if form.depth else form.categories, form)

    def without_class_names(self) -> Self:
        """Return the column with the numbers of the classes, if it is a class label of TFDS."""
        if self.form is None or not self.form.has_codes:
            return self
        return type(self).in_form(self.name, replace(self.form, categories=None))

    @property
    def kind(self) -> Kind:
        """Kind of the feature that stores the column:

        "int64", "float", "bytes", or "string" for text in a bytes feature.
        """
        return self.column.kind

    @property
    def depth(self) -> int:
        """Depth of the lists: 0 for a scalar, 1 for a list, 2 for a list of lists.

        A struct has the greatest depth of its fields, and at least 1.
        """
        if self.is_struct:
            depths: list[int] = [child.depth for child in self.children]
            return max([1, *depths])
        return self.column.depth if self.form is None else self.form.depth

    @property
    def is_struct(self) -> bool:
        """True if each field of the column is stored in features of its own."""
        return isinstance(self.type, pa.StructType) and self.form is None

    @cached_property
    def children(self) -> tuple[Self, ...]:
        """The fields of a struct as columns, such as "a/b" for the field "b" of the column "a"."""
        fields = self.type if self.is_struct else ()
        return tuple(type(self)(f"{self.name}/{item.name}", item.type) for item in fields)

    @property
    def family(self) -> tuple[Self, ...]:
        """The column itself and, for a struct, its fields at all levels."""
        if not self.is_struct:  # the cached children of many columns would take memory and time
            return (self,)
        return (self, *(one for child in self.children for one in child.family))

    @property
    def leaves(self) -> tuple[Self, ...]:
        """The column itself or, for a struct, its fields at all levels that are not structs."""
        return tuple(one for one in self.family if not one.is_struct)

    @cached_property
    def features(self) -> tuple[Column, ...]:
        """The features that store the column, in the form that the kernel needs."""
        if self.form is not None:
            return self.form.columns(self.name)
        return tuple(one.column for one in self.family) if self.is_struct else (self.column,)

    @cached_property
    def column(self) -> Column:
        """The name, kind and depth of the column, in the form that the kernel needs.

        For a struct, this is the feature that tells a struct whose fields are all null from a null.
        """
        if self.form is not None:
            return self.features[0]
        if self.is_struct:
            return Column(self.name, "int64", 0)
        if pa.types.is_null(self.type):  # a column of the null type is stored as a feature without values
            return Column(self.name, "bytes", 1)
        try:
            return Column(self.name, *kind_and_depth(self.type))
        except SchemaError as error:
            raise of_column(error, self.name) from None

    def with_field_types(self, types: Mapping[str, pa.DataType]) -> Self:
        """Return the column with other types of some fields of the struct, which ``types`` maps by names such
        as "a/b".
        """
        if self.name in types:
            return replace(self, type=types[self.name])
        if not self.is_struct:
            return self
        found = (child.with_field_types(types).type for child in self.children)
        fields = (item.with_type(type_) for item, type_ in zip(self.type, found, strict=True))
        return replace(self, type=pa.struct(list(fields)))

    def of_struct(self, error: SchemaError) -> SchemaError:
        """Return a copy of the error of a field of the struct whose remedies give the type of the struct."""
        remedies = [
            remedy._replace(value={self.name: self.with_field_types(remedy.value).type})
            if self.is_struct and remedy.keyword == "schema"
            else remedy
            for remedy in error.remedies
        ]
        return error.replaced(remedies=remedies)

    @property
    def is_required(self) -> bool:
        """True if no value is null, because a record without a value of the column raises an error."""
        return self.form is not None and self.form.is_plain and not self.form.is_optional

    @property
    def lossy(self) -> bool:
        """True if storing values of the column rounds them to 32-bit floats."""
        return is_lossy(self.type)

    def to_features(self, array: pa.Array, *, lossy: Lossy) -> list[pa.Array]:
        """Convert values of the column to the values of each feature, as `store` does."""
        if not self.is_struct:
            return [self.store(array, lossy=lossy)]
        self._check_type(array)
        of_fields = zip(self.children, array.flatten(), strict=True)
        try:
            stored = [one for item, values in of_fields for one in item.to_features(values, lossy=lossy)]
        except SchemaError as error:
            raise self.of_struct(error) from None
        return with_marker(array, stored)

    def store(self, array: pa.Array, *, lossy: Lossy) -> pa.Array:
        """Convert values of a column that is no struct from its logical type to a type that the kernel
        encodes.

        Raises
        ------
        SchemaError
            If a value of the column cannot be stored, or if a value would be rounded and ``lossy`` is
            "raise".
        """
        self._check_type(array)
        try:
            self._check_categories(array)
            return store(array, exact=lossy == "raise")
        except _CAST_ERRORS as error:
            raise self._error(error, "to_tfrecord") from None

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
        """Convert values that the kernel decoded from each feature of the column to the column's type.

        Raises
        ------
        SchemaError
            If the logical type of the column cannot hold a value.
        """
        try:
            if self.is_struct:
                marker, *others = arrays
                features = iter(others)
                found = [item.load(*islice(features, len(item.features))) for item in self.children]
                return from_marker(self.type, marker, found)
            if self.form is not None:
                return self.form.load(arrays)
            return load(arrays[0], self.type, self.categories)
        except SchemaError as error:
            raise self.of_struct(error) from None
        except _CAST_ERRORS as error:
            raise self._error(error, "read_tfrecord") from None

    def no_rows(self) -> pa.Array:
        """Return an empty array of the logical type of the column.

        For a dictionary type, the array has the known categories.
        """
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
        if self.form is not None:
            types = {one.name: nested(KIND_TYPES[one.kind], one.depth) for one in self.features}
            remedies = [Remedy("schema", types, "read the stored values")]
        elif error.wider is not None:
            remedies = [Remedy("schema", {self.name: error.wider}, "hold all values")]
        found = SchemaError(error.problem, error.advice, *remedies, feature=self.name, function=function)
        return found.replaced(record=error.row)


def stored_fields(item: Field) -> list[Field]:
    """Return a column for each feature of a struct, or of a column in a form of another library, else the
    column itself.
    """
    if item.form is None:
        return [Field(one.name, pa.int64()) if one.is_struct else one for one in item.family]
    return [Field(one.name, nested(KIND_TYPES[one.kind], one.depth)) for one in item.features]


def feature_text(item: Field) -> str:
    """Return the name of the feature that stores a column, as TensorFlow's proto files spell it."""
    if item.is_struct:
        return "one for each field"
    kind = "bytes" if item.kind == "string" else item.kind
    return f"feature list of {kind}_list" if item.column.depth == 2 else f"{kind}_list"
