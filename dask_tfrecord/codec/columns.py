"""Define how the columns of a table are stored as features of records."""

from typing import Literal, NamedTuple, TypeAlias

import pyarrow as pa

Kind = Literal["int64", "float", "bytes", "string"]
RecordType = Literal["example", "sequence_example", "bytes"]

# The key of a feature in a record: the name of the feature, and True if it is a feature list. A
# SequenceExample may have a feature and a feature list of the same name.
FeatureKey: TypeAlias = tuple[str, bool]

# A map from each kind to the Arrow type of the values that the kernel encodes and decodes.
KIND_TYPES: dict[str, pa.DataType] = {
    "int64": pa.int64(),
    "float": pa.float32(),
    "bytes": pa.binary(),
    "string": pa.string(),
}


class Column(NamedTuple):
    """The name, kind and depth of the feature that stores a column.

    Parameters
    ----------
    name : str
        Name of the column and of the feature that stores the column.
    kind : "int64", "float", "bytes" or "string"
        Kind of the feature that stores the column. The kind "string" is a bytes feature whose values must be
        valid UTF-8.
    depth : int
        Depth of the lists: 0 for a scalar, 1 for a list, 2 for a list of lists, which is a feature list of a
        SequenceExample.
    """

    name: str
    kind: Kind
    depth: int

    @property
    def feature(self) -> FeatureKey:
        """The key of the feature that stores the column."""
        return self.name, self.depth == 2


def nested(type_: pa.DataType, depth: int) -> pa.DataType:
    """Return the type of lists that are nested ``depth`` levels deep and hold values of the type
    ``type_``.
    """
    return nested(pa.list_(type_), depth - 1) if depth else type_
