"""Check the names of columns, and list names in messages."""

from collections import Counter
from collections.abc import Iterable, Sequence

from dask_tfrecord.errors import SchemaError


def name_list(names: Iterable[object]) -> str:
    return ", ".join(map(repr, names)) or "none"


def check_names(names: Sequence[object], *, may_be_empty: bool = False) -> None:
    """Raise SchemaError if the column names cannot be the feature names of written records."""
    if not names:
        raise SchemaError("there are no columns to store", "keep at least one column")
    not_strings = [name for name in names if not isinstance(name, str)]
    if not_strings:
        raise SchemaError(
            f"column names must be strings, not {name_list(not_strings)}",
            "rename the columns, for example with .rename(columns=str)",
        )
    if "" in names and not may_be_empty:
        raise SchemaError("a column has an empty name", "rename it")
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        problem = f"several columns are named {name_list(repeated)}, but a record has each name at most once"
        raise SchemaError(problem, "rename them")
