"""Turn types of fields into types of whole structs, because ``schema=`` accepts no others."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from dask_tfrecord.errors import Remedy


def with_field_types(name: str, type_: pa.DataType, types: Mapping[str, pa.DataType]) -> pa.DataType:
    """Return the type of a column with new types for some fields of the struct.

    ``types`` maps names of fields, such as "a/b", to types.
    """
    if name in types or not pa.types.is_struct(type_):
        return types.get(name, type_)
    return pa.struct(
        [item.with_type(with_field_types(f"{name}/{item.name}", item.type, types)) for item in type_]
    )


def of_structs(remedies: Iterable[Remedy], structs: Mapping[str, pa.DataType]) -> list[Remedy]:
    """Let remedies suggest types of whole structs. ``structs`` maps names of struct columns to types."""
    columns = {field: name for name, type_ in structs.items() for field in _names(name, type_)}
    return [
        remedy._replace(value=_of_columns(remedy.value, columns, structs))
        if remedy.keyword == "schema"
        else remedy
        for remedy in remedies
    ]


def _names(name: str, type_: pa.DataType) -> Iterator[str]:
    """Yield the name of a column, and the names of its fields at all levels."""
    yield name
    for item in type_ if pa.types.is_struct(type_) else ():
        yield from _names(f"{name}/{item.name}", item.type)


def _of_columns(
    types: Mapping[str, pa.DataType | None], columns: Mapping[str, str], structs: Mapping[str, pa.DataType]
) -> dict[str, Any]:
    of_columns: dict[str, Any] = {}
    for name, type_ in types.items():
        if (column := columns.get(name)) is None:
            of_columns[name] = type_
        else:
            given = {one: types[one] for one in types if columns.get(one) == column}
            is_left_out = None in given.values()
            of_columns[column] = None if is_left_out else with_field_types(column, structs[column], given)
    return of_columns
