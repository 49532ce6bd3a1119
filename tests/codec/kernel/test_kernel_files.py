"""Whole files of changing layouts decode as google.protobuf reads their records, whatever the windows.

A decoder learns the layout of records, so what it makes of a record could depend on the records before, on
the columns, on where a window ends, and on the records that it refused. It must not.

Modules: codec.
"""

import random
from typing import Any, NamedTuple

import oracle
from guard import exact
from hypothesis import given
from hypothesis import strategies as st
from judge import Judged, judge, seen_by
from oracle import block, bytes_list, entry, example_of, float_list, int64_list, packed, tag, varint
from wire_messages import ACCEPTED, REFUSED, UNKNOWN

from dask_tfrecord.codec import Column, Decoder, Inference

# Heads of entries that fit one window of 32 bytes, two windows or none, and names of one and several bytes.
NAMES = [
    "",
    "a",
    "f",
    "s",
    "é",
    "n" * 10,
    *("m" * n for n in (21, 22, 23)),
    *("l" * n for n in (52, 53, 54, 130)),
]
LISTS = {"int64": int64_list, "float": float_list, "bytes": bytes_list, "string": bytes_list}


class Part(NamedTuple):
    """A feature in the records of one layout."""

    column: Column
    style: str
    absent: float  # share of the records without the feature
    odd: float  # share of the records that hold the feature in an unusual form
    form: int | None  # the unusual form; None chooses one for each record

    def entries(self, random_: random.Random) -> list[bytes]:
        """The entries of the feature in a record: usually one."""
        if random_.random() < self.absent:
            return []
        value = self.chunk(random_)
        if random_.random() >= self.odd:
            return [entry(self.column.name, LISTS[self.column.kind](*value))]
        forms = self.forms(value, random_)
        return random_.choice(forms) if self.form is None else forms[self.form % len(forms)]

    def forms(self, value: list[bytes], random_: random.Random) -> list[list[bytes]]:
        """The entries of the feature in each unusual form."""
        name, kind = self.column.name, LISTS[self.column.kind]
        usual = kind(*value)
        key, content = block(1, name.encode()), block(2, usual)
        return [
            [entry(name, kind(packed()))],
            [entry(name, kind())],
            [entry(name, b"")],
            [block(1, key)],
            [entry(name, kind(packed(), *value))],
            [entry(name, kind(*value, *value))],
            [entry(name, usual, usual)],
            [entry(name, kind(*self.chunk(random_))), entry(name, usual)],
            [entry(name, usual), entry(name, b"")],
            [entry(name, UNKNOWN["varint"] + usual)],
            [entry(name, usual + UNKNOWN["length"])],
            [entry(name, UNKNOWN["fixed32"])],
            [entry(name, random_.choice([int64_list(packed(1)), float_list(block(1, bytes(4)))]))],
            [entry(name, bytes_list(block(1, b"\xff")))],
            [entry(name, float_list(block(1, bytes(8))))],
            [entry(name, int64_list(packed(-1, 5)))],
            [entry(name, int64_list(tag(1, 0), varint(random_.getrandbits(64))))],
            [entry(name, int64_list(block(1, b"\x85\x80\x00")))],
            [entry(name, int64_list(block(1, random_.choice([b"\x80" * 9 + b"\x01", b"\x80" * 11]))))],
            [block(1, content, key)],
            [block(1, key, content, random_.choice([b"", UNKNOWN["varint"]]))],
            [block(1, key, key, content)],
            [block(1, block(1, b"other"), key, content)],
            [block(1, b"\x0a", longer(name.encode()), content)],
            [block(1, key, b"\x12", longer(usual))],
            [b"\x0a" + longer(key + content)],
            [block(2, key, content)],  # an unknown field that looks like the entry
            [block(1, b"\x1a", block(1, name.encode())[1:], content)],
        ]

    def size(self, random_: random.Random) -> int:
        """The size of a value of bytes, or of a list in bytes."""
        if self.style == "constant":
            return 12
        if self.style == "empty":
            return 0
        if self.style == "short":
            return random_.choice([0, 1, 3, 15, 16, 17, 31, 32, 33])
        if self.style == "one byte":  # the lengths of the entry are about as long as one byte can hold
            return max(0, 120 - len(self.column.name) + random_.randrange(-6, 5))
        return random_.randrange(300)

    def chunk(self, random_: random.Random) -> list[bytes]:
        """The content of the list."""
        kind, depth = self.column.kind, self.column.depth
        size = self.size(random_)
        if kind in ("bytes", "string"):
            values = [b"x" * size] if not depth else [b"y" * (size % 7)] * (size // 7)
            return [block(1, value) for value in values]
        if kind == "float":
            return [block(1, random_.randbytes(4 * (size // 4) if depth else 4))]
        if depth:
            return [packed(*(random_.getrandbits(random_.choice([6, 14, 30, 64])) for _ in range(size // 4)))]
        bits = {"constant": 8, "empty": 7, "short": 14}.get(self.style, random_.randrange(1, 65))
        return [packed(random_.getrandbits(bits) | 1 << bits - 1)]


def longer(content: bytes) -> bytes:
    """A length in one byte more than it needs, and the content."""
    size = varint(len(content))
    return size[:-1] + bytes([size[-1] | 0x80, 0]) + content


def new_part(column: Column, random_: random.Random) -> Part:
    style = random_.choice(["constant", "constant", "empty", "short", "one byte", "long"])
    absent = random_.choice([0, 0, 0, 0.1, 0.8])
    odd = random_.choice([0, 0, 0, 0.02, 0.5, 1, 1])
    return Part(column, style, absent, odd, random_.choice([None, random_.randrange(100)]))


def changed(parts: list[Part], columns: list[Column], random_: random.Random) -> list[Part]:
    """Another layout, which has something in common with the last one."""
    parts = [part if random_.randrange(4) else new_part(part.column, random_) for part in parts]
    if random_.randrange(2):
        random_.shuffle(parts)
    absent = [column for column in columns if column not in [part.column for part in parts]]
    parts = [part for part in parts if random_.randrange(6)]
    return parts + [new_part(column, random_) for column in absent if random_.randrange(3)]


def spoiled(entries: list[bytes], random_: random.Random) -> bytes:
    """A record that differs from its layout, and is often malformed."""
    content = b"".join(entries)
    payload = example_of(content)
    at = random_.randrange(len(payload) + 1)
    how = random_.randrange(11)
    if how == 0 and at < len(payload):
        return payload[:at] + bytes([payload[at] ^ 1 << random_.randrange(8)]) + payload[at + 1 :]
    if how == 1:
        return payload[:at] + random_.randbytes(random_.randrange(1, 4)) + payload[at:]
    if how == 2:
        return payload[:at] + payload[at + random_.randrange(1, 4) :]
    if how == 3:  # the entries are cut, and the length of all of them says so
        return example_of(content[: max(0, len(content) - random_.randrange(1, 60))])
    if how == 4:
        return random_.choice([*ACCEPTED.values(), *REFUSED.values()])
    if how == 5:
        return example_of(*random_.sample(entries, len(entries)), *entries[: random_.randrange(3)])
    if how == 6:
        return example_of(content, random_.choice(list(UNKNOWN.values())))
    if how == 7:  # the byte 80 is the start of a longer length
        name = random_.choice(NAMES[:-1])
        body = block(1, name.encode()) + b"\x12"
        value = bytes_list(block(1, b"z" * (128 - len(body) - 5)))
        return example_of(*entries[:1], b"\x0a\x80" + body + varint(len(value)) + value, *entries[1:])
    if how == 8:  # the entries lie in several messages, one of which may have an entry again
        again = random_.choice([[], entries[:1]])
        cut = random_.randrange(len(entries) + 1)
        return example_of(*entries[:cut]) + example_of(*again) + example_of(*entries[cut:])
    if how == 9:
        return random_.choice([*UNKNOWN.values()]) + payload
    return payload + random_.choice([b"\0", *UNKNOWN.values(), payload])


def payloads_of(columns: list[Column], random_: random.Random) -> list[bytes]:
    """The records of a file."""
    payloads = []
    parts: list[Part] = []
    for _ in range(random_.randrange(1, 5)):
        parts = changed(parts, columns, random_)
        spoils = random_.choice([0, 0.02, 0.3])
        for _ in range(random_.choice([3, 12, 40, 40, 150])):
            entries = [one for part in parts for one in part.entries(random_)]
            bad = random_.random() < spoils
            payloads.append(spoiled(entries, random_) if bad else example_of(*entries))
    return payloads


def check(
    reader: Decoder | Inference, payloads: list[bytes], judged: list[Judged], random_: random.Random
) -> Any:
    """Feed a file in windows, and go on after refused records. Return the accepted records and batches."""
    frames = [oracle.frame(payload) for payload in payloads]
    data = b"".join(frames)
    sizes = random_.choice([[1, 60, 200], [500, 2_000], [10**6]])
    records, batches = [], []
    at = end = number = 0
    while at < len(data):
        end = max(end, at) + 1 + random_.randrange(random_.choice(sizes))
        window = data[at:end]
        final = end >= len(data)
        if isinstance(reader, Decoder):
            fed = reader.feed(exact(window), final=final, more=random_.choice([0, 0, 10_000]))
        else:
            fed = reader.feed(exact(window), final=final)
        for one in judged[number : number + fed.records]:
            assert one.record is not None
            records.append(one.record)
        number += fed.records
        assert fed.consumed == sum(map(len, frames[number - fed.records : number]))
        at += fed.consumed
        if fed.damage:
            assert judged[number].record is None or judged[number].disputed, fed.damage
            assert (fed.damage.record, fed.damage.offset) == (fed.records, fed.consumed)
            assert fed.damage.size == len(frames[number])
            at += fed.damage.size
            number += 1
        if isinstance(reader, Decoder) and not random_.randrange(30):
            batches.append(reader.take())
    assert number == len(frames)
    return records, batches


@given(st.integers(0, 2**64))
def test_a_file_decodes_as_protobuf_reads_its_records(seed: int) -> None:
    random_ = random.Random(seed)
    columns = [
        Column(name, random_.choice(["int64", "float", "bytes", "string"]), random_.randrange(2))
        for name in random_.sample(NAMES, random_.randrange(1, 7))
    ]
    payloads = payloads_of(columns, random_)
    for known in (None, random_.choice([None, [], [column.name for column in columns]])):
        wanted = random_.sample(columns, random_.randrange(len(columns) + 1))
        judged = [judge(payload, wanted, known) for payload in payloads]
        features = known if known is None else [(name, False) for name in known]
        decoder = Decoder(wanted, "example", known=features)
        records, batches = check(decoder, payloads, judged, random_)
        batches.append(decoder.take())
        for batch in batches:
            batch.validate(full=True)
        assert sum(batch.num_rows for batch in batches) == len(records)
        for column in wanted:
            found = [value for batch in batches for value in oracle.canonical(batch[column.name].to_pylist())]
            assert found == oracle.column_values(records, column.name, column.depth), column
    inference = Inference("example")
    records, _ = check(inference, payloads, [judge(payload, None) for payload in payloads], random_)
    assert seen_by(inference) == oracle.inferred(records)
