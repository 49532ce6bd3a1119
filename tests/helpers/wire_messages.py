"""Serialized messages of odd encodings: tables of what protobuf accepts, and of what protobuf refuses."""

from oracle import block, bytes_list, entry, example_of, float_list, int64_list, packed, tag, varint

ONE = int64_list(packed(1))

# Fields that no message of TFRecord has.
UNKNOWN = {
    "varint": tag(9, 0) + varint(300),
    "fixed64": tag(9, 1) + bytes(8),
    "length": block(9, b"\x0a\xff\xff"),
    "fixed32": tag(9, 5) + bytes(4),
    "group": tag(9, 3) + tag(1, 0) + b"\1" + tag(2, 3) + block(7, b"x") + tag(2, 4) + tag(9, 4),
    "empty group": tag(9, 3) + tag(9, 4),
    "large number": tag(2**29 - 1, 0) + b"\1",
}


def ints(*parts: bytes) -> bytes:
    """An Example whose one feature is the Int64List "a"."""
    return example_of(entry("a", int64_list(*parts)))


def floats(*parts: bytes) -> bytes:
    """An Example whose one feature is the FloatList "f"."""
    return example_of(entry("f", float_list(*parts)))


def texts(*parts: bytes) -> bytes:
    """An Example whose one feature is the BytesList "s"."""
    return example_of(entry("s", bytes_list(*parts)))


# Examples that protobuf parses.
ACCEPTED = {
    "features in any order": example_of(entry("s", bytes_list(block(1, b"x"))), entry("f"), entry("a", ONE)),
    "duplicate key, last wins": example_of(entry("a", ONE), entry("a", int64_list(packed(2, 3)))),
    "duplicate key, last without kind": example_of(entry("a", ONE), entry("a", b"")),
    "duplicate key, last of the wanted kind": example_of(
        entry("a", bytes_list(block(1, b"x"))), entry("a", int64_list(packed(2)))
    ),
    "kind unset": example_of(entry("a", b""), entry("f", b"")),
    "no value in the entry": example_of(block(1, block(1, b"a"))),
    "no key in the entry": example_of(block(1, block(2, ONE))),
    "empty entry": example_of(block(1)),
    "empty key": example_of(entry("", ONE)),
    "value before key": example_of(block(1, block(2, ONE), block(1, b"a"))),
    "value, key, value": example_of(block(1, block(2, ONE), block(1, b"a"), block(2, int64_list(packed(2))))),
    "key twice, last wins": example_of(block(1, block(1, b"f"), block(1, b"a"), block(2, ONE))),
    "value twice merges": example_of(entry("a", ONE, int64_list(packed(2)))),
    "value three times merges": example_of(entry("a", ONE, int64_list(packed(2)), int64_list(packed(3)))),
    "value twice, other kind wins": example_of(entry("a", float_list(block(1, bytes(4))), ONE)),
    "value twice, second empty": example_of(entry("a", ONE, b"")),
    "kind twice merges": example_of(entry("a", ONE + int64_list(packed(2, 3)))),
    "kind back and forth": example_of(entry("a", ONE + bytes_list() + int64_list(packed(5)))),
    "oneof, last wins": example_of(entry("a", bytes_list(block(1, b"x")) + ONE)),
    "oneof, empty last wins": example_of(entry("a", bytes_list(block(1, b"x")) + int64_list())),
    "features twice merge": example_of(entry("a", ONE)) + floats(block(1, bytes(4))),
    "features twice, same key": example_of(entry("a", ONE)) + ints(packed(9)),
    "field 2 is unknown": example_of(entry("a", ONE)) + block(2, b"\x0a\xff"),
    "no features": b"",
    "empty features": example_of(),
    "int64 packed": ints(packed(1, 2**63 - 1, -1, -(2**63))),
    "int64 unpacked": ints(tag(1, 0), varint(1), tag(1, 0), varint(-7)),
    "int64 mixed": ints(tag(1, 0), b"\1", packed(2, 3), tag(1, 0), b"\4", packed(5)),
    "int64 two chunks": ints(packed(1, 2), packed(3)),
    "int64 empty chunk": ints(packed(), packed(), packed(3), packed()),
    "int64 empty list": ints(),
    "int64 as fixed32 is unknown": ints(tag(1, 5), bytes(4), packed(2)),
    "int64 as fixed64 is unknown": ints(tag(1, 1), bytes(8)),
    "float packed": floats(block(1, bytes.fromhex("0000803f000000c0"))),
    "float unpacked": floats(tag(1, 5), bytes.fromhex("0000c07f"), tag(1, 5), bytes(4)),
    "float mixed": floats(tag(1, 5), bytes(4), block(1, bytes.fromhex("0000803f"))),
    "float two chunks": floats(block(1, bytes(8)), block(1, bytes(4))),
    "float as varint is unknown": floats(tag(1, 0), b"\5"),
    "float as double is unknown": floats(tag(1, 1), bytes(8), block(1, bytes(4))),
    "bytes": texts(block(1, b""), block(1, b"\0\xff"), block(1, b"z" * 300)),
    "bytes as varint is unknown": texts(tag(1, 0), b"\5", block(1, b"x")),
    "varint longer than needed": ints(block(1, b"\x81\x00\xff\x80\x80\x00")),
    "varint of ten bytes, high bits lost": ints(block(1, b"\xff" * 9 + b"\x7f")),
    "varint of ten bytes unpacked": ints(tag(1, 0), b"\x80" * 9 + b"\x02"),
    "tag longer than needed": b"\x8a\x00" + varint(len(entry("a", ONE))) + entry("a", ONE),
    "tag of five bytes": b"\x8a\x80\x80\x80\x00" + varint(len(entry("a", ONE))) + entry("a", ONE),
    "length longer than needed": b"\x0a" + bytes([len(entry("a", ONE)) | 0x80, 0x80, 0]) + entry("a", ONE),
    "features as varint is unknown": tag(1, 0) + b"\1" + example_of(entry("a", ONE)),
    "entry as varint is unknown": block(1, tag(1, 0), b"\1", entry("a", ONE)),
    "kind as varint is unknown": example_of(entry("a", tag(3, 0) + b"\1" + ONE)),
    "groups 99 deep": tag(9, 3) * 99 + tag(9, 4) * 99 + example_of(entry("a", ONE)),
    **{f"unknown {k} before features": u + example_of(entry("a", ONE)) for k, u in UNKNOWN.items()},
    **{f"unknown {k} after features": example_of(entry("a", ONE)) + u for k, u in UNKNOWN.items()},
    **{f"unknown {k} in Features": example_of(u, entry("a", ONE), u) for k, u in UNKNOWN.items()},
    **{f"unknown {k} before the kind": example_of(entry("a", u + ONE)) for k, u in UNKNOWN.items()},
    **{f"unknown {k} after the kind": example_of(entry("a", ONE + u)) for k, u in UNKNOWN.items()},
    **{f"unknown {k} in Int64List": ints(u, packed(1), u) for k, u in UNKNOWN.items()},
    **{f"unknown {k} in FloatList": floats(u, block(1, bytes(4)), u) for k, u in UNKNOWN.items()},
    **{f"unknown {k} in BytesList": texts(u, block(1, b"x"), u) for k, u in UNKNOWN.items()},
}


# Examples that protobuf refuses to parse. Those with a wrong unknown field also have a feature, because the
# kernel refuses a record that has unknown fields and no feature.
REFUSED = {
    "11-byte varint": ints(block(1, b"\x80" * 10 + b"\x01")),
    "11-byte varint unpacked": ints(tag(1, 0), b"\x80" * 10 + b"\x01"),
    "varint without end": ints(block(1, b"\x01\x80")),
    "unpacked varint without end": ints(tag(1, 0), b"\x80"),
    "float chunk of 3 bytes": floats(block(1, bytes(3))),
    "float cut": floats(tag(1, 5), bytes(3)),
    "Example cut": example_of(entry("a", ONE))[:-1],
    "Features longer than Example": b"\x0a\x7f" + entry("a", ONE),
    "entry longer than Features": block(1, b"\x0a\x20" + block(1, b"a")),
    "key longer than entry": example_of(block(1, b"\x0a\x09a")),
    "Feature longer than entry": example_of(block(1, block(1, b"a"), b"\x12\x30" + ONE)),
    "list longer than Feature": example_of(entry("a", b"\x1a\x09" + packed(1))),
    "chunk longer than list": ints(b"\x0a\x05\x01"),
    "bytes longer than list": texts(b"\x0a\x05x"),
    "length 2^31": b"\x0a" + varint(2**31),
    "length 2^63": b"\x0a" + varint(2**63),
    "length 2^64 - 1": b"\x0a" + varint(2**64 - 1),
    "length of 11 bytes": b"\x0a" + b"\x80" * 10 + b"\x01",
    "tag of 6 bytes": b"\x8a\x80\x80\x80\x80\x00\x00",
    "field number 0": b"\x02\x00" + example_of(entry("a", ONE)),
    "field number 0 in Feature": example_of(entry("a", b"\x02\x00" + ONE)),
    "wire type 6": example_of(entry("a", ONE)) + b"\x0e",
    "wire type 7": example_of(entry("a", ONE)) + b"\x0f",
    "trailing zero byte": example_of(entry("a", ONE)) + b"\0",
    "trailing ff byte": example_of(entry("a", ONE)) + b"\xff",
    "end group without start": tag(9, 4) + example_of(entry("a", ONE)),
    "group without end": tag(9, 3) + example_of(entry("a", ONE)),
    "group ended by another number": tag(9, 3) + tag(8, 4) + example_of(entry("a", ONE)),
    "groups 101 deep": tag(9, 3) * 101 + tag(9, 4) * 101 + example_of(entry("a", ONE)),
    "groups 100,000 deep": tag(9, 3) * 100_000 + tag(9, 4) * 100_000,
    "unknown field cut": example_of(entry("a", ONE)) + tag(9, 1) + bytes(7),
    "key that is not UTF-8": example_of(entry(b"\xff\xfe", ONE)),
    "key with a surrogate": example_of(entry(b"\xed\xa0\x80", ONE)),
    "key with an overlong slash": example_of(entry(b"\xc0\xaf", ONE)),
    "key beyond U+10FFFF": example_of(entry(b"\xf4\x90\x80\x80", ONE)),
    "key cut inside a character": example_of(entry("é".encode()[:1], ONE)),
}


def sequence(context: bytes, *lists: bytes) -> bytes:
    return block(1, context) + block(2, *lists)


def list_entry(key: str, *steps: bytes) -> bytes:
    return block(1, block(1, key.encode()), block(2, *(block(1, step) for step in steps)))


# The steps of a feature list: two values, no value, no kind, and values in two encodings.
STEPS = [int64_list(packed(1, 2)), int64_list(), b"", int64_list(tag(1, 0), b"\3", packed(4))]

# SequenceExamples that protobuf parses.
SEQUENCES = {
    "all kinds of steps": sequence(entry("id", ONE), list_entry("steps", *STEPS)),
    "no steps": sequence(entry("id", ONE), list_entry("steps")),
    "no list": sequence(entry("id", ONE)),
    "nothing": b"",
    "lists before context": block(2, list_entry("steps", ONE)) + block(1, entry("id", ONE)),
    "lists twice merge": block(2, list_entry("other", ONE)) + block(2, list_entry("steps", ONE)),
    "list given twice, last wins": sequence(b"", list_entry("steps", ONE), list_entry("steps", ONE, ONE)),
    "list value twice merges": block(
        2, block(1, block(1, b"steps"), block(2, block(1, ONE)), block(2, block(1, ONE)))
    ),
    "value before key": block(2, block(1, block(2, block(1, ONE)), block(1, b"steps"))),
    "unknown fields everywhere": b"".join(UNKNOWN.values())
    + block(2, *UNKNOWN.values(), list_entry("steps", *(u + ONE for u in UNKNOWN.values()))),
    "step with the kind twice": block(2, list_entry("steps", ONE + int64_list(packed(7)))),
    "same name in context": sequence(entry("steps", ONE), list_entry("steps", ONE)),
}
