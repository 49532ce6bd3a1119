"""Detect text that Dask's option dataframe.convert-string created from other objects.

The module `text_guard` knows pandas, and the text that Python prints for arrays, lists and bytes. The module
`text_guard` knows neither files nor task graphs.
"""

import re
from typing import Any

import pandas as pd
import pyarrow as pa

from dask_tfrecord.cluster import warn_client
from dask_tfrecord.errors import Remedy, SchemaError, literal
from dask_tfrecord.frames.object_columns import to_arrow
from dask_tfrecord.schema.storage_types import TEXT, is_any

# The number of rows of a partition that are sampled, and the largest number of strings taken from these rows.
_SAMPLE_ROWS, _SAMPLE_STRINGS = 256, 32

_NUMBER = r"[-+]?(\d+(\.\d*)?(e[-+]?\d+)?|nan|inf)"
_ITEM = rf"({_NUMBER}|True|False|None|'[^']*'|\.\.\.)"
# The text of a printed NumPy array: items between blanks, without commas. A printed list of one item has the
# same form.
_ARRAY = re.compile(rf"\[[\[\s]*(({_ITEM})([\s\[\]]+{_ITEM})*)?[\s\]]*\]")
# Text that only a printed array can have: items separated by blanks, or a float such as "1.".
_ARRAY_ONLY = re.compile(r"\[.*[^\s\[\]][\s\[\]]+[^\s\[\]].*\]|\[.*\d\.[\s\]].*", re.DOTALL)
# Text that people do not write: printed bytes, arrays and tensors, and objects with their addresses.
_LITERAL = re.compile(
    r"""(bytearray\()?b('([^'\\]|\\.)*'|"([^"\\]|\\.)*")\)?"""
    r"""|[\[(]*(array|tensor|tf\.Tensor)\(.*\).*|<.+ at 0x[0-9a-fA-F]+>""",
    re.DOTALL,
)
# The text of a printed list, tuple, dict or set. Text that starts like JSON does not match, because such text
# may be intended.
_COLLECTION = re.compile(r"\[([^\"].*)?\]|\(.*\)|\{([^\"].*)?\}|set\(\)", re.DOTALL)


def holds_text(dtype: Any) -> bool:
    """Return True if values of a dtype may be text that Dask created from objects."""
    if isinstance(dtype, pd.CategoricalDtype):
        dtype = pd.StringDtype() if dtype.categories is None else dtype.categories.dtype
        return holds_text(dtype) or bool(pd.api.types.is_object_dtype(dtype))
    if isinstance(dtype, pd.ArrowDtype):
        return is_any(dtype.pyarrow_dtype, TEXT)
    return isinstance(dtype, pd.StringDtype)


def check_objects(values: "pd.Series[Any] | pd.Index[Any]", name: str) -> None:
    """Raise if an object column has values that are not strings, because Dask would convert them to text.

    Parameters
    ----------
    values : pandas.Series or pandas.Index
        The values of the column before the conversion.
    name : str
        The name of the column.

    Raises
    ------
    SchemaError
        If a value is not a string. The error names the type of the first such value.
    """
    if not pd.api.types.is_object_dtype(values.dtype):
        return
    if pd.api.types.infer_dtype(values, skipna=True) in ("string", "empty"):
        return
    objects = (value for value in values[values.notna()] if not isinstance(value, str))
    kind = next((type(value).__name__ for value in objects), "mixed")
    raise SchemaError(
        f"Dask's option dataframe.convert-string converts the {kind} objects of this column to text",
        feature=name,
        advice=advice(name, _arrow_type(values)),
        remedies=[as_text(name)],
        function="to_tfrecord",
    )


def _arrow_type(values: "pd.Series[Any] | pd.Index[Any]") -> str:
    """Return the Arrow type of objects as Python code; "..." if the objects have no common type."""
    try:
        return literal(to_arrow(pd.Series(values), None, rounded=False).type)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        return "..."


def check_text(column: pa.ChunkedArray, name: str) -> None:
    """Check whether the text of a column looks like printed objects, if the objects are no longer available.

    If all strings look like printed arrays or bytes, and at least one string can be nothing else, raise. If
    all strings look like printed lists, tuples, dicts or sets, warn.

    Parameters
    ----------
    column : pyarrow.ChunkedArray
        The text of the column, or bytes that are decoded as UTF-8. Only the first strings of the column are
        inspected.
    name : str
        The name of the column.

    Raises
    ------
    SchemaError
        If the strings of the column look like printed arrays or bytes. The error shows a string that can only
        be a printed object.
    """
    values = column.slice(0, _SAMPLE_ROWS).drop_null().slice(0, _SAMPLE_STRINGS).to_pylist()
    decoded = (value.decode(errors="replace") if isinstance(value, bytes) else value for value in values)
    strings = [value for value in decoded if isinstance(value, str)]
    printed = next(filter(_is_printed_object, strings), None)
    if printed and all(_LITERAL.fullmatch(text) or _ARRAY.fullmatch(text) for text in strings):
        raise SchemaError(
            f"the text of this column looks like printed objects, such as {_shortened(printed)}",
            feature=name,
            advice=advice(name, "pa.binary()" if printed.startswith("b") else "pa.list_(pa.float32())"),
            remedies=[as_text(name)],
            function="to_tfrecord",
        )
    if strings and all(map(_COLLECTION.fullmatch, strings)):
        warn_client(
            f"the text of {name!r} looks like printed lists or dicts; {advice(name)}, or pass "
            f"{as_text(name)} to write the text itself."
        )


def advice(name: str, type_: str = "pa.binary()") -> str:
    """Return the advice on how to keep the objects of a column that Dask would convert to text."""
    return (
        "give the column an Arrow dtype before Dask loads it, "
        f'.astype({{"{name}": pd.ArrowDtype({type_})}}), or build the collection under '
        'dask.config.set({"dataframe.convert-string": False})'
    )


def as_text(name: str) -> Remedy:
    """Return the remedy that writes the column as text: a value for the argument ``schema=``."""
    return Remedy("schema", {name: pa.string()}, "write the text itself")


def _is_printed_object(string: str) -> bool:
    if _LITERAL.fullmatch(string):
        return True
    return bool(_ARRAY.fullmatch(string) and _ARRAY_ONLY.fullmatch(string))


def _shortened(string: str) -> str:
    return repr(string if len(string) <= 40 else f"{string[:30]} ... {string[-7:]}")
