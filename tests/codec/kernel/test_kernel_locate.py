"""The kernel's searches for a record and for damage, in bytes that begin anywhere, in windows of any size.

Modules: codec.
"""

import itertools

import oracle
import pytest
from damaged_files import damaged_files, first_record, header, holed_files, kept_records
from guard import exact
from hypothesis import given
from hypothesis import strategies as st

from dask_tfrecord.codec import MAX_RECORD_BYTES, Checked, FoundRecord, Inference, find_record

limits = st.sampled_from([MAX_RECORD_BYTES, 0, 20, 100])


def test_a_record_behind_zeros_is_found() -> None:
    """The search skips zeros in steps, but an empty record begins with eight zeros."""
    for zeros, between in itertools.product([*range(45), 1000], [b"", b"\1", b"\xff" * 3]):
        nothing = find_record(exact(between + bytes(zeros)), 0, final=True)
        assert nothing == (zeros + len(between), 0, False), (zeros, between)
        for payload in (b"", bytes(5), bytes(40), b"x" * 30):
            frame = oracle.frame(payload)
            for data in (bytes(zeros) + between + frame * 2, between + bytes(zeros) + frame):
                expected = first_record(data, 0, lenient=False, max_record_bytes=MAX_RECORD_BYTES)
                assert find_record(exact(data), 0, final=True) == expected, (zeros, between)
                unproven = find_record(exact(data + b"\0"), 0, final=False)
                assert unproven.offset <= expected[0], (zeros, between)


def test_a_header_is_found_behind_any_bytes() -> None:
    """The search skips offsets by the upper bytes of a length. The record comes later."""
    lengths = [1, 255, 2**16, 2**24, 2**24 + 1, 0x01010101, 2**30, 2**31 - 1]
    fillers = [b"\0", b"\1", b"\xff", b"\0\1", b"\1\0\0\0"]
    for length, filler, before in itertools.product(lengths, fillers, range(20)):
        data = (filler * 20)[:before] + header(length)
        expected = FoundRecord(before, length + 16, proven=False)
        case = length, filler, before
        assert find_record(exact(data), 0, final=False) == expected, case
        assert find_record(exact(data + bytes(3)), 0, final=False).offset == before, case
        assert find_record(exact(data), 0, final=False, max_record_bytes=length) == expected, case
        assert find_record(exact(data), 0, final=False, max_record_bytes=length - 1).size == 0, case
    assert find_record(header(2**31), 0, final=False, max_record_bytes=2**40).size == 0


@given(damaged_files(), st.integers(0, 1000), st.booleans(), limits)
def test_the_first_record_is_the_one_that_the_definition_says(
    data: bytes, start: int, lenient: bool, limit: int
) -> None:
    start = min(start, len(data))
    found = find_record(exact(data), start, final=True, lenient=lenient, max_record_bytes=limit)
    assert found == first_record(data, start, lenient=lenient, max_record_bytes=limit)


@given(damaged_files(), st.integers(1, 50), st.booleans(), limits)
def test_windows_find_the_same_record_as_the_whole(data: bytes, step: int, lenient: bool, limit: int) -> None:
    """As in a reader: bytes that begin no record are dropped, and the next bytes are added."""
    begin, end = 0, min(step, len(data))
    while True:
        window = exact(data[begin:end])
        final = end == len(data)
        found = find_record(window, 0, final=final, lenient=lenient, max_record_bytes=limit)
        if found.proven or final:
            break
        begin += found.offset
        wanted = found.size + 12 if found.size else end - begin + step
        assert wanted <= (limit + 28) * (1 + lenient) or not found.size
        assert begin + wanted > end
        end = min(begin + wanted, len(data))
    expected = first_record(data, 0, lenient=lenient, max_record_bytes=limit)
    assert (begin + found.offset, *found[1:]) == expected


def test_a_start_outside_the_data_is_refused() -> None:
    with pytest.raises(IndexError, match="start"):
        find_record(b"abc", 4, final=True)


@pytest.mark.parametrize("lenient", [False, True])
def test_headers_in_headers_take_time_by_the_size_of_the_data(lenient: bool) -> None:
    """Each header claims a record up to another header. Checking every claimed payload would read 800 GB.

    The same holds for a search of each payload for records that end after it.
    """
    size = 16 << 20
    data = bytearray()
    for at in range(0, size, 160):  # every length ends at the same place
        data += header(size - at - 16) + b"\xff" * 148
    last = oracle.frame(b"first")  # it ends where all lengths end
    data = data[: size - len(last)] + last + oracle.frame(b"x")
    found = find_record(data, 0, final=True, lenient=lenient)
    assert found == FoundRecord(size - len(last), len(last), True)


def test_a_length_is_not_believed_if_an_intact_record_ends_after_the_payload() -> None:
    """The record lacks the rest of its payload. The length ends near the end of the record after it."""
    for offset in range(-30, 31):
        after = oracle.frame(b"after") + oracle.frame(oracle.records_file([b"", b"inner", b""]))
        last = oracle.frame(b"last")
        start = header(len(after) + offset) + b"start of the payload"
        data = start + after + last
        found = find_record(exact(data), 0, final=True, lenient=True)
        assert found == FoundRecord(len(start), len(oracle.frame(b"after")), True), offset
        assert found == first_record(data, 0, lenient=True, max_record_bytes=MAX_RECORD_BYTES), offset


@given(st.lists(st.integers(0, 130), min_size=1, max_size=4), st.integers(0, 20))
def test_intact_records_that_overlap_are_all_searched(lengths: list[int], start: int) -> None:
    """A payload of eight bytes and its checksum look like a header, here of a record that is intact too."""
    eight = oracle.frame((8).to_bytes(8, "little"))
    data = b"".join(map(header, lengths)) + eight * 4 + oracle.frame(b"last")
    found = find_record(exact(data), start, final=True, lenient=True)
    assert found == first_record(data, start, lenient=True, max_record_bytes=MAX_RECORD_BYTES)


def test_records_inside_a_payload_leave_the_length_believed() -> None:
    inner = oracle.records_file([b"", b"inner", b"last"])
    for payload in (inner, inner + b"?", inner[:-1], b"?" + inner):
        damaged = bytearray(oracle.frame(payload))
        damaged[-1] ^= 1
        for rest in (b"", oracle.frame(b"next")):
            found = find_record(exact(bytes(damaged) + rest), 0, final=True, lenient=True)
            assert found == FoundRecord(0, len(damaged), True)


def test_no_record_ends_after_the_limit() -> None:
    data = oracle.frame(b"x" * 50) + oracle.frame(b"second")
    for lenient in (False, True):
        found = find_record(exact(data[:66]), 0, final=False, lenient=lenient, limit=66)
        assert found == FoundRecord(0, 66, True)  # the end follows
        found = find_record(exact(data[:40]), 0, final=False, lenient=lenient, limit=65)
        assert (found.size, found.proven) == (0, False)


# --- the search for damage ---


@given(damaged_files() | holed_files(), st.integers(1, 60), st.booleans())
def test_windows_find_the_damage_of_the_whole(data: bytes, step: int, is_size_known: bool) -> None:
    """As in a reader: bytes that a call did not use come first in the data of the next call."""
    inference = Inference("bytes")
    intact, lost, reasons, begin, end = b"", [], [], 0, 0
    while begin < len(data):
        end = min(max(end, begin) + step, len(data))
        window, limit = exact(data[begin:end]), len(data) - begin if is_size_known else None
        checked = inference.check(window, final=end == len(data), limit=limit)
        spans = [(begin + a, begin + b) for a, b in zip(checked.starts, checked.ends, strict=True)]
        if checked.continues:
            assert lost[-1][1] == spans[0][0]
            lost[-1] = lost[-1][0], spans.pop(0)[1]
        lost += spans
        reasons += [checked.texts[reason] for reason in checked.reasons[int(checked.continues) :]]
        intact += checked.intact(window)
        parts = checked.damaged(window).to_pylist()
        assert parts == [bytes(window[a:b]) for a, b in zip(checked.starts, checked.ends, strict=True)]
        begin += checked.consumed
    kept, expected = kept_records(data)
    assert lost == expected
    assert intact == b"".join(data[start:stop] for start, stop in kept)
    whole = Inference("bytes").check(data, final=True)
    assert whole.records == len(kept)
    assert [whole.texts[reason] for reason in whole.reasons] == reasons
    before = [sum(start < at for start, _ in kept) for at, _ in expected]
    assert whole.records_before.tolist() == before


def test_messages_of_other_types_are_damage_and_no_features() -> None:
    good = oracle.features_file([{"n": ("int64", [1])}])
    data = good + oracle.frame(b"\xff") + good
    inference = Inference("example")
    checked = inference.check(data, final=True)
    assert (checked.records, checked.starts.tolist(), checked.ends.tolist()) == (
        2,
        [len(good)],
        [len(good) + 17],
    )
    assert checked.texts == ("malformed protobuf message",)
    assert [one.name for one in inference.features()] == ["n"]


def test_a_range_of_nothing_but_damage() -> None:
    checked = Checked.one_range(3, "why", continues=False)
    assert (bytes(checked.intact(b"abc")), checked.damaged(b"abc").to_pylist()) == (b"", [b"abc"])
