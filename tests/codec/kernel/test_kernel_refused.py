"""A refused record leaves an inference as it was, whatever it has added before its damage is found.

Modules: codec.
"""

from itertools import product

import oracle
import pytest
from guard import exact
from oracle import block, bytes_list, entry, float_list, int64_list, packed
from wire_messages import UNKNOWN, list_entry

from dask_tfrecord.codec import Inference

TEXT = bytes_list(block(1, b"text"))
GOOD = block(
    1, entry("id", int64_list(packed(1))), entry("t", TEXT), entry("f", float_list(block(1, b"1234")))
)
GOOD += block(2, list_entry("steps", int64_list(packed(1))))

# What a record adds to the inference before its damage is found.
FEATURES = {
    "nothing": b"",
    "a new feature": entry("new", int64_list(packed(1))),
    "two new features": entry("b", TEXT) + entry("a", TEXT),
    "a new feature without a kind": entry("new", b""),
    "another kind": entry("id", TEXT),
    "more values": entry("id", int64_list(packed(1, 2))),
    "more values of one float": entry("f", float_list(block(1, b"12345678"))),
    "the other values first": entry("f", float_list(block(1, b"4321")))
    + entry("id", int64_list(packed(1, 2))),
    "bytes that are not text": entry("t", bytes_list(block(1, b"\0"))),
    "bytes that are not UTF-8": entry("t", bytes_list(block(1, b"\xff"))),
    "several changes of one feature": entry("t", int64_list(packed(1, 2)), bytes_list(block(1, b"\xff"))),
}
LISTS = {
    "a new feature list": list_entry("new", int64_list(packed(1))),
    "a feature list without steps": list_entry("new"),
    "another kind of a step": list_entry("steps", TEXT),
    "a longer step": list_entry("steps", int64_list(packed(1, 2))),
}
ADDED = {name: block(1, entries) for name, entries in FEATURES.items()} | {
    name: block(2, entries) for name, entries in LISTS.items()
}
REFUSED = {
    "malformed record": b"\xff",
    "malformed map": block(1, b"\xff"),
    "malformed feature": block(1, entry("id", b"\xff")),
    "malformed list": block(1, entry("id", int64_list(b"\xff"))),
    "malformed step": block(2, list_entry("steps", int64_list(packed(1, 2)), b"\xff")),
    "name that is not UTF-8": block(1, entry(b"\xff", TEXT)),
    "field beside key and value": block(1, block(1, block(1, b"k"), UNKNOWN["varint"])),
}
# A message of another type has no feature with a kind.
OTHER_TYPE = [
    block(1, entry("new", b"")) + UNKNOWN["varint"],
    block(1, entry("id", b""), entry("new", UNKNOWN["varint"])),
    block(2, list_entry("new", b"")) + UNKNOWN["varint"],
    block(1, entry("new", b""), block(1, block(1, b"a\n"))),
]
RECORDS = [added + refused for added, refused in product(ADDED.values(), REFUSED.values())] + OTHER_TYPE
AFTER = block(1, *FEATURES.values())


@pytest.mark.parametrize("before", [[], [GOOD], [GOOD] * 3], ids=["first", "second", "later"])
def test_a_refused_record_leaves_the_inference_as_it_was(before: list[bytes]) -> None:
    for refused in RECORDS:
        intact = Inference("sequence_example")
        fed, checked = Inference("sequence_example"), Inference("sequence_example")
        for payload in before:
            for one in (intact, fed):
                assert one.feed(exact(oracle.frame(payload)), final=True).damage is None
        damage = fed.feed(exact(oracle.frame(refused)), final=True).damage
        assert damage is not None, refused
        assert fed.features() == intact.features(), refused

        # Later records are also understood as if the refused record had not been there.
        for one in (intact, fed):
            assert one.feed(exact(oracle.records_file([AFTER, GOOD])), final=True).damage is None
        found = checked.check(exact(oracle.records_file([*before, refused, AFTER, GOOD])), final=True)
        assert found.records == len(before) + 2
        assert fed.features() == checked.features() == intact.features(), refused
