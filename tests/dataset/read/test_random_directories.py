"""Random directories of varying records: the defaults read all values, or the error's advice does.

Modules: dataset.read.sample.
"""

import random
from pathlib import Path
from typing import Any

import oracle
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from oracle import Feature, Record
from other_writers import advised, fill, read

from dask_tfrecord import TFRecordError
from dask_tfrecord.dataset.read import sample

Files = dict[str, list[Record]]

VALUES = {
    "int64": [0, 1, -5, 2**40],
    "float": [oracle.float_bits(0.5), oracle.float_bits(-2.0)],
    "bytes": [b"text", b"", b"\xff", b"\x01", b"x" * 30],
}


def random_files(chance: random.Random) -> Files:
    """Files of records with the same features; some records of one file differ."""
    kinds = {name: chance.choice([*VALUES]) for name in "abcd"[: chance.randint(1, 4)]}
    widths = {name: chance.choice([1, 1, 1, 3]) for name in kinds}
    style = chance.choice(["usual", "a null column", "empty"])
    mixed, lists = chance.random() < 0.3, chance.random() < 0.3

    def feature(name: str, odd: bool) -> Feature:
        kind, width, dice = kinds[name], widths[name], chance.random()
        if odd and dice < 0.15:
            return Feature()
        if odd and dice < 0.25:
            width = chance.choice([0, 1, 2])
        elif odd and mixed and dice < 0.3:
            kind = chance.choice([*VALUES])
        return Feature(kind, [chance.choice(VALUES[kind]) if odd else VALUES[kind][0] for _ in range(width)])

    def usual() -> Record:
        if style == "empty":
            return Record()
        features = {name: feature(name, False) for name in kinds}
        return Record(features | {"a": Feature()} if style == "a null column" else features)

    def odd() -> Record:
        features = {name: feature(name, True) for name in kinds if chance.random() < 0.8}
        if chance.random() < 0.3:
            features["new"] = Feature("int64", [1] * chance.choice([1, 2]))
        if not lists:
            return Record(features)
        steps = [feature("a", True) for _ in range(chance.randint(0, 2))]
        return Record(features, {chance.choice("ssta"): steps})

    count = chance.choice([1, 2, 7, 12])
    files = {f"{n:02d}.tfrecord": [usual() for _ in range(chance.choice([0, 1, 4]))] for n in range(count)}
    strange = files[f"{chance.randrange(count):02d}.tfrecord"]
    strange += [odd() for _ in range(chance.randint(1, 5))]
    chance.shuffle(strange)
    return files


def assert_all_values(found: dict[str, list[Any]], records: list[Record], left_out: set[str]) -> None:
    """Check that the read returned every value, except for columns that its arguments left out."""
    places = {(name, False) for record in records for name in record.features}
    places |= {(name, True) for record in records for name in record.lists}
    for name, is_list in sorted(places):
        if name in left_out:
            assert name not in found
        elif name not in found:  # a feature that no sampled record has, and no record gives a value
            assert not _has_values(records, name, is_list)
        elif (name, not is_list) in places and not _has_values(records, name, is_list):
            continue  # the column reads the other map, whose feature this loop also checks
        elif is_list:
            assert found[name] == oracle.column_values(records, name, 2)
        else:
            expected = oracle.column_values(records, name, 1)
            values = [[one] if one is not None and not isinstance(one, list) else one for one in found[name]]
            scalar = not any(isinstance(one, list) for one in found[name])
            assert values == [None if scalar and one == [] else one for one in expected]


def _has_values(records: list[Record], name: str, is_list: bool) -> bool:
    found = [step for one in records for step in one.lists.get(name, [])]
    if not is_list:
        found = [one.features[name] for one in records if name in one.features]
    return any(feature.kind for feature in found)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore:the records do not look like Examples")
# Empty values of a feature in the context, and a feature list of the same name.
@example(chance=random.Random(1_635_929_196), compression=None)
@given(chance=st.integers(0, 2**32).map(random.Random), compression=st.sampled_from([None, "gzip"]))
@pytest.mark.parametrize("more_bytes", [0, 1 << 26], ids=["a small sample", "a sample that may grow"])
def test_all_values_are_read_by_defaults_or_in_one_step(
    tmp_path_factory: pytest.TempPathFactory,
    more_bytes: int,
    chance: random.Random,
    compression: str | None,
) -> None:
    files = random_files(chance)
    contents = {
        name: oracle.records_file([oracle.serialize(record, "sequence_example") for record in records])
        for name, records in files.items()
    }
    root: Path = tmp_path_factory.mktemp("files")
    fill(
        root, {name: content and oracle.compress(content, compression) for name, content in contents.items()}
    )
    options: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sample, "_MORE_BYTES", more_bytes)
        try:
            found = read(root)
        except TFRecordError as error:
            options = advised(error)
            found = read(root, **options)
    records = [record for name in sorted(files) for record in files[name]]
    if list(found) == ["record"]:
        assert found["record"] == [one for name in sorted(files) for one in oracle.frames(contents[name])]
    elif options.get("extra") != "ignore":
        left_out = {name for name, type_ in options.get("schema", {}).items() if type_ is None}
        assert_all_values(found, records, left_out)
