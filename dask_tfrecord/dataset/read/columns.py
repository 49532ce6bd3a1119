"""Define what the caller of a read requests: keywords, columns, types of columns, and partition columns.

The keywords ``schema=``, ``hive=`` and ``columns=`` request columns. The values of partition columns come
from directory names or from a snapshot.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from dask_tfrecord.codec import RecordType
from dask_tfrecord.dataset import partitioning as hive
from dask_tfrecord.dataset.listing import Listing
from dask_tfrecord.dataset.query.filters import names_in
from dask_tfrecord.dataset.read.layouts import WantedSplits
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.errors import IGNORE_DIRECTORIES, Remedy, SchemaError, TFRecordError, did_you_mean
from dask_tfrecord.files.file_list import FileList
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.inference import AskedType
from dask_tfrecord.lazy import cached_property
from dask_tfrecord.schema.conversion import convert, family
from dask_tfrecord.schema.feature_maps import in_map, maps_of, misplaced
from dask_tfrecord.schema.fields import Field, Schema
from dask_tfrecord.schema.logical_types import arrow_type, innermost, is_temporal, value_type
from dask_tfrecord.schema.names import check_names
from dask_tfrecord.schema.storage_values import MisfitError
from dask_tfrecord.schema.tfds import Labels
from dask_tfrecord.storage.filesystem import Filesystem
from dask_tfrecord.storage.paths import parent_of, unquoted_path

GivenSchema: TypeAlias = Mapping[str, Any] | pa.Schema | Schema | Snapshot
GivenHive: TypeAlias = bool | Mapping[str, Any]


@dataclass(frozen=True)
class RequestedColumns:
    """The columns that the caller requests, with their types."""

    types: dict[str, pa.DataType] = field(default_factory=dict)  # The types in ``schema=``.
    is_whole_schema: bool = False  # If True, read only the columns of `types`, in this order.
    hive: bool = True  # If True, read directory names as partition columns.
    # The types of partition columns in ``hive=``. The values of these columns come from the directory names,
    # even if the records have features of the same names.
    hive_types: dict[str, pa.DataType] = field(default_factory=dict)
    # Maps column names to the fields of a complete schema. Unlike `types`, the fields describe the categories
    # of a column and the features that store it.
    given: dict[str, Field] = field(default_factory=dict, hash=False)
    record_type: RecordType | None = None  # The record type of a complete schema.
    left_out: frozenset[str] = frozenset()  # The columns that ``schema=`` maps to None.

    def fields(self, types: Mapping[str, pa.DataType], record_type: RecordType) -> tuple[Field, ...]:
        """Return a `Field` for each column in ``types``, with the known categories of the column."""
        given = {name: self.given[name] for name in types if name in self.given}
        fields = {name: item for name, item in given.items() if item.form is not None}
        others = [(name, type_) for name, type_ in types.items() if name not in fields]
        if others:
            known = {name: item.categories for name, item in given.items() if item.categories is not None}
            made = Schema.from_arrow(pa.schema(others), record_type, categories=known)
            for item in made.fields:
                says = given.get(item.name, item)
                fields[item.name] = replace(item, is_feature_list=says.is_feature_list, spec=says.spec)
        return tuple(fields[name] for name in types)

    @cached_property
    def floats(self) -> frozenset[str]:
        """The columns to which ``schema=`` gives a float type. They read integers, too.

        A schema of another library says which kind a feature has, so its columns read only this kind.
        """
        types = {} if self.record_type is not None else self.types
        leaves = (leaf for item in types.items() for leaf in Field(*item).leaves)
        return frozenset(leaf.name for leaf in leaves if pa.types.is_floating(innermost(leaf.type)))

    def partition_type(self, name: str) -> pa.DataType | None:
        return self.hive_types.get(name) or self.types.get(name)


def parse_columns(schema: GivenSchema | None, hive: GivenHive) -> RequestedColumns:
    """Interpret the values of ``schema=`` and ``hive=``.

    Raise TFRecordError if a type is not valid, and SchemaError if ``schema=`` and ``hive=`` disagree.
    """
    if isinstance(schema, Snapshot):
        schema = schema.columns
    record_type, given = None, dict[str, Field]()
    if isinstance(schema, Schema):
        record_type = schema.record_type
        given = {item.name: item for item in schema.fields}
        schema = schema.arrow
    is_whole_schema = isinstance(schema, pa.Schema) and bool(schema.names)
    if isinstance(schema, pa.Schema):
        if is_whole_schema:
            check_names(schema.names)
        schema = {item.name: item.type for item in schema}
    left_out: frozenset[str] = frozenset()
    if isinstance(schema, Mapping):
        left_out = frozenset(name for name, type_ in schema.items() if type_ is None)
        schema = {name: type_ for name, type_ in schema.items() if name not in left_out}
    types = _parse_types("schema", schema or {})
    hive_types = {} if isinstance(hive, bool) else _parse_types("hive", hive)
    for name in hive_types.keys() & types.keys():
        if hive_types[name] != types[name]:
            problem = f"schema= gives the type {types[name]}, but hive= gives the type {hive_types[name]}"
            raise SchemaError(problem, "pass the type of the column in only one of them", feature=name)
    is_hive = hive is not False
    return RequestedColumns(types, is_whole_schema, is_hive, hive_types, given, record_type, left_out)


def origin_clash(name: str, path_column: str | None) -> SchemaError:
    """Return the exception for a path or offset column that has the name of another column."""
    if name == path_column:
        rename = Remedy("include_path_column", "file", "rename the path column")
    else:
        rename = Remedy("read_options", {"include_offset_column": "at"}, "rename the offset column")
    problem = "the path column or the offset column has the name of another column"
    return SchemaError(problem, rename, feature=name)


def check_given_names(names: Sequence[str], known: Sequence[str], *, certain: bool) -> str | None:
    """Return a warning text if a name in ``schema=`` is unknown but similar to a known name.

    If ``certain`` is True, ``known`` contains all names, so any unknown name raises SchemaError.
    """
    unknown = [name for name in names if name not in known]
    if certain and unknown:
        raise unknown_column("schema", unknown[0], known, "no record and no directory has the column")
    for name in unknown:
        if question := did_you_mean(name, [other for other in known if other not in names]):
            return f"schema= names {name!r}, which no record of the sample has; {question}"
    return None


def snapshot_columns(snapshot: Snapshot, requested: RequestedColumns) -> Schema:
    """Return the columns of a snapshot, or of a requested complete schema, with the requested types."""
    partition_names = snapshot.partition_on
    schema = snapshot.columns
    if not requested.hive:
        schema = schema.select(name for name in schema.names if name not in partition_names)
    for name in requested.hive_types:
        if name not in partition_names:
            raise unknown_column("hive", name, partition_names, "no directory has the partition column")
    # In a schema of another library, the name of a column may differ from those of its features.
    features = {feature.name for item in schema.fields for feature in item.features}
    forms = {name: item for name, item in requested.given.items() if item.form is not None}
    stored = {name for name, item in forms.items() if features.issuperset(one.name for one in item.features)}
    names = [name for name in requested.types if name not in stored]
    check_given_names([*names, *sorted(requested.left_out)], schema.names, certain=True)
    fields = {item.name: item for item in schema.fields}
    stored_types = {name: type_ for name, type_ in requested.types.items() if name not in partition_names}
    for name, type_ in stored_types.items():
        given = {leaf.name: leaf.type for leaf in Field(name, type_).leaves}
        for leaf in fields[name].leaves if name in fields else ():
            if leaf.name in given:
                _check_units(leaf.name, leaf.type, given[leaf.name])
    partition_types = {
        name: type_ for name in partition_names if (type_ := requested.partition_type(name)) is not None
    }
    fields |= {
        item.name: _placed(item, snapshot) for item in requested.fields(stored_types, schema.record_type)
    }
    fields |= {item.name: item for item in requested.fields(partition_types, "example")}
    names = [name for name in schema.names if name not in requested.left_out]
    if requested.is_whole_schema:
        names = [*requested.types]
    return Schema(tuple(fields[name] for name in names), schema.record_type)


def _placed(item: Field, snapshot: Snapshot) -> Field:
    """Return a requested column, changed so that it reads the map of the records that has its features.

    Raise SchemaError if the type of the column cannot read this map.
    """
    stored = [one for one in snapshot.schema.fields if not pa.types.is_null(one.type)]
    maps = maps_of(feature.feature for one in stored for feature in one.features)
    found = in_map(item, maps)
    name = misplaced(found, maps)
    if name is None:
        return found
    column = next(one for one in stored if any(name == feature.name for feature in one.features))
    what = "a feature list" if True in maps[name] else "a feature of the context"
    remedy = Remedy("schema", {column.name: column.type}, "read the column as it was written")
    raise SchemaError(f"is {what}, not {item.type}", remedy, feature=name)


def _check_units(name: str, stored: pa.DataType, given: pa.DataType) -> None:
    """Raise SchemaError if the unit of a given time type would change the meaning of stored integers."""
    units = _unit(innermost(stored)), _unit(innermost(given))
    if None not in units and units[0] != units[1]:
        problem = f"the records store {stored}, but schema= would interpret the same integers as {given}"
        advice = "give no type, and convert the column after reading with .astype"
        raise SchemaError(problem, advice, feature=name)


def _unit(type_: pa.DataType) -> tuple[str, object] | None:
    """Return the properties of a time type that determine what integers mean, or None for other types."""
    return (family(type_), getattr(type_, "unit", str(type_))) if is_temporal(type_) else None


def _parse_types(keyword: str, given: object) -> dict[str, pa.DataType]:
    if not isinstance(given, Mapping):
        raise _not_types(f"{keyword}={given!r} does not map names to types")
    try:
        for name in given:
            if not isinstance(name, str):
                raise ValueError(f"{name!r} is not a column name")
        return {name: arrow_type(type_) for name, type_ in given.items()}
    except ValueError as error:
        raise _not_types(f"{keyword}={given!r} does not map names to types: {error}") from None


def _not_types(problem: str) -> TFRecordError:
    return TFRecordError(problem, 'give a mapping, such as {"age": pa.int64()}')


def unknown_column(keyword: str, name: str, known: Sequence[str], problem: str) -> SchemaError:
    """Return the exception for a keyword that names an unknown column. The exception suggests similar
    columns.
    """
    hint = did_you_mean(name, known) or f"there are {', '.join(map(repr, known)) or 'none'}"
    return SchemaError(f"{problem} that {keyword}= names; {hint}", feature=name, keyword=keyword)


Infer = Literal["sample", "all"]


@dataclass(frozen=True)
class ReadRequest:
    """The data that the caller requests with the keywords of `read_tfrecord`."""

    # None means all columns. The read needs the columns that `filters` names in addition to `columns`. Errors
    # that concern only unneeded columns are not raised.
    columns: Iterable[str] | None = None
    schema: GivenSchema | None = None
    hive: GivenHive = True
    use_snapshot: bool = True
    version: int | None = None
    record_type: AskedType = "infer"
    infer: Infer = "sample"
    filters: Any = None
    split: WantedSplits = None  # see `choose_files`
    labels: Labels = "names"
    options: ReadOptions = field(default_factory=ReadOptions)
    # A partition contains at most this many stored bytes. None makes each file a partition.
    blocksize: int | None = None
    whole_files: bool = False  # If True, do not split files that a snapshot lists.
    # The partition columns whose values together form the key of a file. If `partition_by` is not empty, each
    # file becomes one partition, and `ReadPlan.keys` lists the partitions of each key.
    partition_by: tuple[str, ...] = ()
    storage_options: dict[str, Any] | None = field(default=None, repr=False)
    filesystem: Filesystem = field(default=None, repr=False)

    @cached_property
    def requested(self) -> RequestedColumns:
        """The columns requested through `schema` and `hive`. Raise the errors of `parse_columns`."""
        return parse_columns(self.schema, self.hive)

    def is_requested(self, name: str) -> bool:
        if name in self.requested.left_out:
            return False
        if self.columns is None or self._names_in_filters is None:
            return True
        wanted = {*self.columns, *self.partition_by, *self._names_in_filters}
        return any(name == one or name.startswith(f"{one}/") for one in wanted)

    @cached_property
    def _names_in_filters(self) -> set[str] | None:
        return names_in(self.filters)

    @property
    def known_record_type(self) -> AskedType:
        """The record type from ``record_type=``, "bytes" if a complete schema says so, or otherwise "infer".

        The records decide whether they are read as Examples or as SequenceExamples, whatever a schema says.
        """
        if self.record_type == "infer" and self.requested.record_type == "bytes":
            return "bytes"
        return self.record_type


def values_from_directories(listing: Listing, requested: RequestedColumns) -> dict[str, pa.Array]:
    """Map each partition column to its value in each listed file, parsed from the directory names.

    If the user passed one directory, only the names of directories below this directory are parsed. For
    files, lists and globs, the names of all directories in each path are parsed. Raise SchemaError if a value
    does not fit the type that the user gave for its column, or if ``hive=`` gives a type for a column that no
    path has.
    """
    if not requested.hive:
        return {}
    start = len(unquoted_path(listing.base))
    directories = [parent_of(unquoted_path(path)[start:]) for path in listing.files.paths]
    try:
        texts = hive.value_texts(directories)
        for name in requested.hive_types:
            if name not in texts:
                raise unknown_column("hive", name, list(texts), "no directory has the partition column")
        types = {
            name: requested.partition_type(name) or hive.infer_type(column)
            for name, column in texts.items()
            if not requested.is_whole_schema or name in requested.types or name in requested.hive_types
        }
        values = {name: hive.to_values(name, texts[name], one, directories) for name, one in types.items()}
    except SchemaError as error:
        remedies = [IGNORE_DIRECTORIES]
        if error.feature in requested.types or error.feature in requested.hive_types:
            remedies.insert(0, Remedy("hive", {error.feature: pa.string()}, "read the names as text"))
        raise error.replaced(path=listing.store.public(), remedies=remedies) from None
    return {name: column for name, column in values.items() if name not in requested.left_out}


def values_from_snapshot(files: FileList, schema: Schema) -> dict[str, pa.Array]:
    """For each partition column that is in both a snapshot's file list and the schema, map the column's name
    to its value in each file.

    Raise SchemaError if the values do not fit the column's type in the schema.
    """
    types = {item.name: value_type(item.type) for item in schema.fields}
    columns = {}
    stored = files.partition_columns
    for name in stored.column_names:
        if name not in types:
            continue
        values = stored[name].combine_chunks()
        try:
            columns[name] = convert(values, types[name])
        except (MisfitError, pa.ArrowException) as error:
            problem = f"the partition values are {values.type} and cannot be read as {types[name]}: {error}"
            raise SchemaError(problem, "give no type for the column", feature=name) from None
    return columns


def partition_fields(values: Mapping[str, pa.Array], requested: RequestedColumns) -> tuple[Field, ...]:
    """Return a `Field` for each partition column, with the requested type or, by default, the type of the
    values.
    """
    types = [(name, requested.partition_type(name) or column.type) for name, column in values.items()]
    return Schema.from_arrow(pa.schema(types)).fields if types else ()


def with_partition_columns(
    schema: Schema, partitioning: Sequence[Field], requested: RequestedColumns
) -> Schema:
    """Append the partition columns to a schema. If a complete schema is requested, the requested schema sets
    the order of the columns.
    """
    columns = Schema((*schema.fields, *partitioning), schema.record_type)
    if not requested.is_whole_schema:
        return columns
    others = [item.name for item in partitioning if item.name not in requested.types]
    return columns.select([*requested.types, *others])


def feature_clash(name: str) -> SchemaError:
    """Return the exception for a feature that has the same name as a partition column, if no argument says
    which of the two to read.
    """
    one_split = Remedy("split", "train", "read this split, or another one, without a column for it")
    return SchemaError(
        f"both a feature of the records and a partition column ({name}=...) have this name",
        Remedy("hive", False, "read the feature of the records"),
        Remedy("hive", {name: pa.string()}, "read the values in the directory names"),
        *[one_split] * (name == "split"),
        feature=name,
    )


def payload_clash(name: str) -> SchemaError:
    problem = f"both the payload column and a partition column ({name}=...) have this name"
    remedy = Remedy("schema", {"payload": pa.binary()}, "give the payloads another name")
    return SchemaError(problem, remedy, IGNORE_DIRECTORIES, feature=name)
