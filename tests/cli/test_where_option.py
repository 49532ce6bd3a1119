"""`--where` means what Python means, and evaluates nothing.

Modules: cli.options.
"""

from typing import Any

import click
import pyarrow as pa
import pytest

from dask_tfrecord.cli.options import parse
from dask_tfrecord.dataset.query.filters import parse_filters
from dask_tfrecord.schema.fields import Schema

TABLE = pa.table(
    {
        "x": pa.array([1, 2, 3, 4, None]),
        "name": ["CH", "FR", None, "it's", "CH"],
        "day": pa.array([0, 365, 19_000, None, 20_000], pa.date32()),
        "a-b": pa.array([True, False, None, True, False]),
        "y": pa.array([0.5, float("nan"), 2.0, -1.0, None], pa.float32()),
        "raw": pa.array([b"\x00", b"a", None, b"", b"a"]),
    }
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("x > 2", [2, 3]),
        ("2 < x", [2, 3]),
        ("1 < x <= 3", [1, 2]),
        ("not 1 < x <= 3", [0, 3]),
        ("x == 1 or x == 4", [0, 3]),
        ("x in [1, 4]", [0, 3]),
        ("x not in (1, 4)", [1, 2, 4]),
        ("x is None", [4]),
        ("x == None", [4]),
        ("x is not None", [0, 1, 2, 3]),
        ("not x is None", [0, 1, 2, 3]),
        ("x > 1 and name == 'FR'", [1]),
        ("x > 1 and (name == 'FR' or name is None)", [1, 2]),
        ("not (x > 1 and name == 'FR')", [0, 3, 4]),
        ("not (x > 1 or name == 'FR')", [0]),
        ('name == "it\'s"', [3]),
        ("name != 'CH'", [1, 3]),
        ("day >= '1971-01-01'", [1, 2, 4]),
        ("column('a-b') == True", [0, 3]),
        ("y > -1.5 and y < 1e0", [0, 3]),
        ("x > 2.5", [2, 3]),
        ("x >= -3", [0, 1, 2, 3]),
        ("raw == b'a'", [1, 4]),
    ],
)
def test_selected_rows(text: str, rows: list[int]) -> None:
    predicate = parse_filters(parse(text), Schema.from_arrow(TABLE.schema))
    mask = predicate.mask(TABLE).fill_null(False).to_pylist()
    assert [row for row, selected in enumerate(mask) if selected] == rows


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "x >",
        "x > y",
        "x + 1 > 2",
        "f(x) > 2",
        "x > f()",
        "x.__class__ == 1",
        "__import__('os').system('true') == 0",
        "[x for x in (1,)] == 1",
        "x in 3",
        "x is 3",
        "1 > 2",
        "column(x) > 1",
        "column('x', 'y') > 1",
        "x > 1; y > 2",
        "lambda: 0",
        "x := 1",
        "(" * 500 + "x > 1" + ")" * 500,
        " and ".join(["(x == 1 or x == 2)"] * 20),
    ],
)
def test_everything_else_is_an_error_of_usage(text: str) -> None:
    with pytest.raises(click.UsageError, match="--where"):
        parse(text)


def test_nothing_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("evaluated")

    monkeypatch.setattr("builtins.eval", refuse)
    monkeypatch.setattr("builtins.exec", refuse)
    assert parse("x > 3") == [[("x", ">", 3)]]


def test_an_error_says_how_equality_is_written() -> None:
    with pytest.raises(click.UsageError, match="write == to compare"):
        parse("x = 3")
    with pytest.raises(click.UsageError) as raised:
        parse("x >= ")
    assert "==" not in str(raised.value)
