"""Integers at the bounds of each varint size, and the rows that the kernel decodes from a file."""

from typing import Any

from guard import exact

from dask_tfrecord.codec import Column, Decoder

# For each number of bytes, the least and the greatest integer whose varint has so many bytes.
INTEGER_BOUNDS = {n: (1 << 7 * (n - 1) if n > 1 else 0, (1 << 7 * n) - 1) for n in range(1, 10)} | {
    10: (-(2**63), -1)
}
BOUNDARY_INTEGERS = [number for pair in INTEGER_BOUNDS.values() for number in pair]


def decoded_rows(columns: list[Column], file: bytes, *, final: bool = True) -> tuple[list[Any], int]:
    """Decode an undamaged file of Examples.

    Return the values of the first column, or a None for each record if there are no columns, and the number
    of bytes that were consumed.
    """
    decoded = Decoder(columns, "example").decode(exact(file), final=final)
    assert decoded.damage is None
    decoded.batch.validate(full=True)
    return decoded.batch.columns[0].to_pylist() if columns else [None] * decoded.records, decoded.consumed
