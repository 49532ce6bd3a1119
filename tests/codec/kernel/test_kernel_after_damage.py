"""A batch goes on after a record that the decoder refused.

Modules: codec.
"""

import oracle
import pytest
from guard import exact
from oracle import Feature, Record, block, bytes_list, entry, example_of, float_list, int64_list, packed

from dask_tfrecord.codec import Column, Decoder

COLUMNS = [
    Column("id", "int64", 0),
    Column("price", "float", 0),
    Column("name", "string", 0),
    Column("ids", "int64", 1),
    Column("tags", "string", 1),
]
VALUES = [
    entry("id", int64_list(packed(7))),
    entry("price", float_list(block(1, bytes(4)))),
    entry("name", bytes_list(block(1, b"refused"))),
    entry("ids", int64_list(packed(7, 7))),
    entry("tags", bytes_list(block(1, b"refused"))),
]
# Records that are refused after, before or between values of the columns.
REFUSED = {
    "malformed": example_of(*VALUES)[:-1],
    "malformed at once": example_of(b"\x0f", *VALUES),
    "wrong kind": example_of(entry("id", bytes_list(block(1, b"x"))), *VALUES[1:]),
    "not a scalar": example_of(*VALUES, entry("price", float_list(block(1, bytes(8))))),
    "not UTF-8": example_of(*VALUES[:2], entry("name", bytes_list(block(1, b"\xff"))), *VALUES[3:]),
    "unknown feature": example_of(*VALUES, entry("other", int64_list(packed(1)))),
    "another message": example_of(*VALUES, block(1, b"\x12\0", block(3))),
}


def accepted(number: int) -> Record:
    """A record that lacks some of the features."""
    values = {
        "id": Feature("int64", [number]),
        "price": Feature("float", [number]),
        "name": Feature("bytes", [b"n%d" % number]),
        "ids": Feature("int64", [number] * (number % 4)),
        "tags": Feature("bytes", [b"t"] * (number % 3)),
    }
    return Record({name: value for at, (name, value) in enumerate(values.items()) if number >> at & 1})


@pytest.mark.parametrize("every", [1, 2, 11, 40])
@pytest.mark.parametrize("payload", REFUSED.values(), ids=REFUSED.keys())
def test_a_batch_goes_on_after_a_refused_record(payload: bytes, every: int) -> None:
    records = [accepted(number % 64) for number in range(1, 201) if number % 64]
    payloads = []
    for number, record in enumerate(records):
        payloads += [payload] * (number % every == 0)
        payloads.append(oracle.serialize(record))
    data = oracle.records_file(payloads)
    decoder = Decoder(COLUMNS, "example", known=[])
    at = rows = refused = 0
    while at < len(data):
        fed = decoder.feed(exact(data[at:]), final=True)
        rows += fed.records
        at += fed.consumed
        if fed.damage:
            assert data[at : at + fed.damage.size] == oracle.frame(payload)
            at += fed.damage.size
            refused += 1
    assert (rows, refused) == (len(records), len(payloads) - len(records))
    batch = decoder.take()
    batch.validate(full=True)
    for column in COLUMNS:
        found = [oracle.canonical(value) for value in batch[column.name].to_pylist()]
        assert found == oracle.column_values(records, column.name, column.depth), column.name
