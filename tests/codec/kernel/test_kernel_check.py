"""The kernel's search for damage: the same ranges whatever part of the file each call gets.

Modules: codec.
"""

import oracle
from damaged_files import damaged_files, holed_files, kept_records
from guard import exact
from hypothesis import given
from hypothesis import strategies as st

from dask_tfrecord.codec import Checked, Inference


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
