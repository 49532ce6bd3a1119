"""Define how the columns of a table are stored as features of records."""

from typing import Literal, NamedTuple, TypeAlias

import pyarrow as pa

Kind = Literal["int64", "float", "bytes", "string"]
RecordType = Literal["example", "sequence_example", "bytes"]

# A feature of a record: its name, and True if it is a feature list. A SequenceExample may have both.
FeatureKey: TypeAlias = tuple[str, bool]

# The Arrow type of the values of each kind that the kernel encodes and decodes.
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
        Name of the column and of the feature.
    kind : "int64", "float", "bytes" or "string"
        Kind of the feature. A "string" is a bytes feature that must be valid UTF-8.
    depth : int
        0 for a scalar, 1 for a list, 2 for a list of lists, which is a feature list of a SequenceExample.
    """

    name: str
    kind: Kind
    depth: int

    @property
    def feature(self) -> FeatureKey:
        """The key of the feature that stores the column."""
        return self.name, self.depth == 2


def nested(type_: pa.DataType, depth: int) -> pa.DataType:
    """Return the type of lists that are nested ``depth`` levels deep and hold values of ``type_``."""
    return nested(pa.list_(type_), depth - 1) if depth else type_
