"""Which columns files have, and of which types: what the caller says, what the directories are called, and
what the records hold.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeAlias

import pyarrow as pa

from dask_tfrecord.codec import RecordType
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.errors import SchemaError, TFRecordError
from dask_tfrecord.schema.model import Field, Schema, check_names
from dask_tfrecord.schema.storage_types import innermost
from dask_tfrecord.schema.type_names import arrow_type

GivenSchema: TypeAlias = Mapping[str, Any] | pa.Schema | Schema | Snapshot
GivenHive: TypeAlias = bool | Mapping[str, Any]


@dataclass(frozen=True)
class Wanted:
    """What the caller says about columns.

    Attributes
    ----------
    types : dict of str to pyarrow.DataType
        The types of some columns, or of all.
    whole : bool
        Whether there are to be these columns only, in this order.
    keys : dict of str to pyarrow.DataType
        Of keys of directories, which are then not taken from the records.
    hive : bool
        Whether keys of directories are columns.
    categories : dict of str to pyarrow.Array
        The known categories of some of these types.
    record_type : RecordType, optional
        What the records are, if a whole schema says so.
    left_out : frozenset of str
        The columns that are not wanted, whatever the records hold.
    asked : frozenset of str, optional
        The only columns that are wanted. By default all are.
    mentioned : str
        A text in which the names of other columns that are wanted stand, such as an expression of pyarrow.
    """

    types: dict[str, pa.DataType] = field(default_factory=dict)
    whole: bool = False
    keys: dict[str, pa.DataType] = field(default_factory=dict)
    hive: bool = True
    categories: dict[str, pa.Array] = field(default_factory=dict, hash=False)
    record_type: RecordType | None = None
    left_out: frozenset[str] = frozenset()
    asked: frozenset[str] | None = None
    mentioned: str = ""

    @classmethod
    def of(cls, schema: GivenSchema | None, hive: GivenHive, asked: Iterable[str] | None = None) -> "Wanted":
        """What ``schema=``, ``hive=`` and ``columns=`` say.

        Raises
        ------
        SchemaError
            If they contradict each other.
        TFRecordError
            If they are nothing of the kind.
        """
        if isinstance(schema, Snapshot):
            schema = schema.columns
        record_type, categories = None, {}
        if isinstance(schema, Schema):
            record_type = schema.record_type
            categories = {one.name: one.categories for one in schema.fields if one.categories is not None}
            schema = schema.arrow
        whole = isinstance(schema, pa.Schema) and bool(schema.names)
        if isinstance(schema, pa.Schema):
            if whole:
                check_names(schema.names)
            schema = {item.name: item.type for item in schema}
        left_out = frozenset(_left_out(schema))
        if left_out and isinstance(schema, Mapping):
            schema = {name: type_ for name, type_ in schema.items() if name not in left_out}
        types = _types("schema", schema or {})
        keys = {} if isinstance(hive, bool) else _types("hive", hive)
        for name in keys.keys() & types.keys():
            if keys[name] != types[name]:
                raise SchemaError(f"is {types[name]} by schema= and {keys[name]} by hive=", feature=name)
        wanted = None if asked is None else frozenset(asked)
        return cls(types, whole, keys, hive is not False, categories, record_type, left_out, wanted)

    def keeps(self, name: str) -> bool:
        """Whether a column may be wanted later, if it is not now."""
        return name not in self.left_out

    def wants(self, name: str) -> bool:
        """Whether a column is wanted."""
        if name in self.left_out:
            return False
        if self.asked is None or name in self.asked:
            return True
        return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", self.mentioned) is not None

    def fields(self, types: Mapping[str, pa.DataType], record_type: RecordType) -> tuple[Field, ...]:
        """The columns of some of the types."""
        if not types:
            return ()
        known = {name: self.categories[name] for name in self.categories.keys() & types.keys()}
        schema = pa.schema(list(types.items()))
        return Schema.from_arrow(schema, record_type, categories=known).fields

    def type_of(self, name: str) -> pa.DataType | None:
        """The type of a key, if it is given."""
        return self.keys.get(name) or self.types.get(name)


def origin_clash(name: str) -> SchemaError:
    """The error for a column of paths or offsets that is called as a feature or another column."""
    return SchemaError(
        "the column that tells where records come from is called as another one",
        feature=name,
        advice='pass another name, such as include_path_column="file" or include_offset_column="at"',
    )


def check_given(names: Sequence[str], known: Sequence[str], *, certain: bool) -> str | None:
    """Refuse a given name that nothing has, where that is certain; else tell of one that looks misspelled."""
    unknown = [name for name in names if name not in known]
    if certain and unknown:
        raise _unknown("schema=", unknown[0], known, "no record and no directory has the column")
    for name in unknown:
        if near := get_close_matches(name, [one for one in known if one not in names], 1):
            return f"schema= names {name!r}, which no record of the sample has; did you mean {near[0]!r}?"
    return None


def override(snapshot: Snapshot, wanted: Wanted) -> Schema:
    """A snapshot's columns with the types that are given; with those only, if it is a whole schema."""
    keys = snapshot.partition_on
    schema = snapshot.columns
    if not wanted.hive:
        schema = schema.select(name for name in schema.names if name not in keys)
    for name in wanted.keys:
        if name not in keys:
            raise _unknown("hive=", name, keys, "no directory has the key")
    check_given([*wanted.types, *sorted(wanted.left_out)], schema.names, certain=True)
    found = {item.name: item for item in schema.fields}
    stored = {name: type_ for name, type_ in wanted.types.items() if name not in keys}
    for name, type_ in stored.items():
        _check_units(name, found[name].type, type_)
    found |= {item.name: item for item in wanted.fields(stored, schema.record_type)}
    found |= {item.name: item for item in wanted.fields(_keys_of(wanted, keys), "example")}
    names = [*wanted.types] if wanted.whole else [name for name in schema.names if wanted.keeps(name)]
    return Schema(tuple(found[name] for name in names), schema.record_type)


def _check_units(name: str, stored: pa.DataType, wanted: pa.DataType) -> None:
    """Refuse another unit than that of the integers in the records, which would make other times of them."""
    units = _unit(innermost(stored)), _unit(innermost(wanted))
    if None not in units and units[0] != units[1]:
        raise SchemaError(
            f"the records hold {stored}, and schema= would take their integers for {wanted}",
            feature=name,
            advice="leave the column out of schema= and cast it after reading, with .astype; "
            "use_snapshot=False takes the integers for what schema= says",
        )


def _unit(type_: pa.DataType) -> tuple[object, ...] | None:
    """What an integer means as a value of the type; None if it is a number."""
    if pa.types.is_timestamp(type_):
        return "timestamp", type_.unit, type_.tz is None
    if pa.types.is_date(type_):
        return (str(type_),)
    if pa.types.is_time(type_) or pa.types.is_duration(type_):
        return pa.types.is_time(type_), type_.unit
    return None


def _left_out(given: object) -> list[str]:
    """The columns that a mapping leaves out."""
    return [name for name, type_ in given.items() if type_ is None] if isinstance(given, Mapping) else []


def _types(keyword: str, given: object) -> dict[str, pa.DataType]:
    if not isinstance(given, Mapping):
        raise _no_types(f"{keyword}={given!r} gives no Arrow types", keyword)
    try:
        return {_name(name): arrow_type(type_) for name, type_ in given.items()}
    except ValueError as error:
        raise _no_types(f"{keyword}={given!r} gives no Arrow types: {error}", keyword) from None


def _name(given: object) -> str:
    if not isinstance(given, str):
        raise ValueError(f"{given!r} is no name of a column")
    return given


def _no_types(problem: str, keyword: str) -> TFRecordError:
    return TFRecordError(problem, advice=f'pass such as {keyword}={{"age": pa.int64()}}')


def _unknown(keyword: str, name: str, known: Sequence[str], problem: str) -> SchemaError:
    near = get_close_matches(name, known, 3)
    there = ", ".join(map(repr, near or known)) or "none"
    hint = f"did you mean {there}?" if near else f"there are {there}"
    return SchemaError(f"{problem} that {keyword} names; {hint}", feature=name)


def _keys_of(wanted: Wanted, keys: Sequence[str]) -> dict[str, pa.DataType]:
    types = {name: wanted.type_of(name) for name in keys}
    return {name: type_ for name, type_ in types.items() if type_ is not None}
