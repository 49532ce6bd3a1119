"""Text that was something else before: objects of which Dask made text when a collection was built.

Knows pandas and what Python prints of arrays, lists and bytes; no files, no graphs.
"""

import re
from typing import Any

import pandas as pd
import pyarrow as pa

from dask_tfrecord.errors import SchemaError

# So many rows of a partition are looked at, and so many values of them.
_ROWS, _VALUES = 256, 32

_NUMBER = r"[-+]?(\d+(\.\d*)?(e[-+]?\d+)?|nan|inf)"
_ITEM = rf"({_NUMBER}|True|False|None|'[^']*'|\.\.\.)"
# What NumPy prints: items between blanks, without commas. Other lists of one item look alike.
_ARRAY = re.compile(rf"\[[\[\s]*(({_ITEM})([\s\[\]]+{_ITEM})*)?[\s\]]*\]")
_SEVERAL = re.compile(r"\[.*[^\s\[\]][\s\[\]]+[^\s\[\]].*\]|\[.*\d\.[\s\]].*", re.DOTALL)
# What no one writes: literals of bytes, calls that make arrays or tensors, objects by their address.
_LITERAL = re.compile(
    r"""(bytearray\()?b('([^'\\]|\\.)*'|"([^"\\]|\\.)*")\)?"""
    r"""|[\[(]*(array|tensor|tf\.Tensor)\(.*\).*|<.+ at 0x[0-9a-fA-F]+>""",
    re.DOTALL,
)
# What Python prints of lists, tuples, dicts and sets; JSON begins otherwise, or may be meant.
_COLLECTION = re.compile(r"\[([^\"].*)?\]|\(.*\)|\{([^\"].*)?\}|set\(\)", re.DOTALL)

_ARROW = {"bytes": "pa.binary()", "bool": "pa.bool_()", "date": "pa.date32()"}
_ARROW |= dict.fromkeys(("list", "tuple", "ndarray"), "pa.list_(pa.float32())")


def holds_text(dtype: Any) -> bool:
    """Whether values may be text, in any dtype that Dask's text can be converted to."""
    if isinstance(dtype, pd.CategoricalDtype):
        dtype = pd.StringDtype() if dtype.categories is None else dtype.categories.dtype
        return holds_text(dtype) or bool(pd.api.types.is_object_dtype(dtype))
    if isinstance(dtype, pd.ArrowDtype):
        kinds = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
        return any(test(dtype.pyarrow_dtype) for test in kinds)
    return isinstance(dtype, pd.StringDtype)


def check_objects(values: "pd.Series[Any] | pd.Index[Any]", name: str) -> None:
    """Refuse objects other than text that are about to become text, or that did; ``name`` is their column.

    Raises
    ------
    SchemaError
        Naming the type of the first such object.
    """
    if not pd.api.types.is_object_dtype(values.dtype):
        return
    if pd.api.types.infer_dtype(values, skipna=True) in ("string", "empty"):
        return
    objects = (value for value in values[values.notna()] if not isinstance(value, str))
    kind = next((type(value).__name__ for value in objects), "mixed")
    raise SchemaError(
        f"Dask's option dataframe.convert-string has made text of this column's {kind} objects",
        feature=name,
        advice=advice(name, _ARROW.get(kind, "pa.binary()")),
    )


def first(column: pa.ChunkedArray) -> list[str]:
    """The first texts of a column."""
    found = column.slice(0, _ROWS).drop_null().slice(0, _VALUES).to_pylist()
    texts = (value.decode(errors="replace") if isinstance(value, bytes) else value for value in found)
    return [text for text in texts if isinstance(text, str)]


def check_text(texts: list[str], name: str) -> None:
    """Refuse text that can only be printed arrays, bytes or other objects; ``name`` is its column.

    Raises
    ------
    SchemaError
        Showing such a text.
    """
    shown = next(filter(_is_certain, texts), None)
    if shown is None or not all(_LITERAL.fullmatch(text) or _ARRAY.fullmatch(text) for text in texts):
        return
    raise SchemaError(
        f"the text of this column looks like printed objects, such as {_short(shown)}",
        feature=name,
        advice=advice(name, "pa.binary()" if shown.startswith("b") else "pa.list_(pa.float32())"),
    )


def may_be_collections(texts: list[str]) -> bool:
    """Whether text may be printed lists, tuples, dicts or sets."""
    return bool(texts) and all(map(_COLLECTION.fullmatch, texts))


def advice(name: str, type_: str = "pa.binary()") -> str:
    """How to keep the values of a column that Dask makes text of."""
    return (
        "give the column an Arrow dtype before Dask loads it, "
        f'.astype({{"{name}": pd.ArrowDtype({type_})}}), or build the collection under '
        'dask.config.set({"dataframe.convert-string": False}); if the text is what you want, pass '
        f'schema={{"{name}": pa.string()}}'
    )


def _is_certain(text: str) -> bool:
    return bool(_LITERAL.fullmatch(text) or (_ARRAY.fullmatch(text) and _SEVERAL.fullmatch(text)))


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:30]} ... {text[-7:]}")
