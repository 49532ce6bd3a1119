"""Protobuf's text format is parsed as google.protobuf parses it.

Modules: schema.text_proto.
"""

import math
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from dask_tfrecord.schema.text_proto import Message, parse


def new_schema() -> Any:
    """A message of TensorFlow Metadata. The test is skipped if the package is not installed."""
    return pytest.importorskip("tensorflow_metadata.proto.v0.schema_pb2").Schema()


@st.composite
def messages(draw: st.DrawFn, message: Any = None, depth: int = 0) -> Any:
    """A message of TensorFlow Metadata with a few random fields."""
    message = new_schema() if message is None else message
    known = [
        one
        for one in message.DESCRIPTOR.fields
        if "Any" not in str(one.message_type and one.message_type.name)
    ]
    wanted = (
        draw(st.lists(st.sampled_from(known), max_size=4, unique_by=lambda one: one.name)) if known else []
    )
    for field in wanted:
        is_message = field.type == field.TYPE_MESSAGE
        if is_message and depth > 3:
            continue
        if is_message and field.message_type.GetOptions().map_entry:
            key = draw(st.text(max_size=3))
            draw(messages(getattr(message, field.name)[key], depth + 1))
        elif field.is_repeated:
            values = getattr(message, field.name)
            for _ in range(draw(st.integers(1, 3))):
                if is_message:
                    draw(messages(values.add(), depth + 1))
                else:
                    values.append(draw(scalars(field)))
        elif is_message:
            part = getattr(message, field.name)
            part.SetInParent()
            draw(messages(part, depth + 1))
        else:
            setattr(message, field.name, draw(scalars(field)))
    return message


def scalars(field: Any) -> st.SearchStrategy[Any]:
    if field.type == field.TYPE_ENUM:
        return st.sampled_from([one.number for one in field.enum_type.values])
    if field.type == field.TYPE_BYTES:
        return st.binary(max_size=5)
    if field.type == field.TYPE_STRING:
        return st.text(max_size=5)
    if field.type == field.TYPE_BOOL:
        return st.booleans()
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return st.floats(width=32)
    bits = 31 if "32" in str(field.cpp_type) or field.cpp_type in (1, 3) else 63
    return st.integers(0 if field.cpp_type in (3, 4) else -(2**bits), 2**bits - 1)


def plain(message: Any) -> dict[str, list[Any]]:
    """The fields of a message of google.protobuf, in the form of `normal`."""
    found = {}
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE and field.message_type.GetOptions().map_entry:
            found[field.name] = [{"key": [key], "value": [plain(value[key])]} for key in sorted(value)]
            continue
        values = list(value) if field.is_repeated else [value]
        found[field.name] = [
            plain(one) if field.type == field.TYPE_MESSAGE else scalar(field, one) for one in values
        ]
    return found


def scalar(field: Any, value: Any) -> Any:
    if field.type == field.TYPE_ENUM:
        return field.enum_type.values_by_number[value].name
    if field.type == field.TYPE_BYTES:
        return value.decode(errors="surrogateescape")
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def normal(message: Message, class_: Any) -> dict[str, list[Any]]:
    """The fields of a parsed message, with the types that the class of the message gives them."""
    found: dict[str, list[Any]] = {}
    for name, values in message.fields.items():
        field = class_.fields_by_name.get(name)
        if field is None or not values:
            continue
        if field.type == field.TYPE_MESSAGE:
            parts = [normal(one, field.message_type) for one in message.messages(name)]
            is_map = field.message_type.GetOptions().map_entry
            found[name] = [{"key": [""], "value": [{}], **one} for one in parts] if is_map else parts
            if is_map:  # the last of several entries with one key counts
                found[name] = [
                    *{
                        one["key"][0]: one for one in sorted(found[name], key=lambda one: one["key"][0])
                    }.values()
                ]
        else:
            found[name] = [typed(field, one) for one in message.texts(name)]
        if not field.is_repeated:
            found[name] = found[name][-1:]
    return found


def typed(field: Any, text: str) -> Any:
    if field.type == field.TYPE_ENUM:
        numbers = field.enum_type.values_by_number
        return numbers[int(text)].name if text.isdecimal() else text
    if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        return text
    if field.type == field.TYPE_BOOL:
        return text in ("true", "True", "t", "1")
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        value = float(text.rstrip("fF")) if "in" not in text.lower() else float(text)
        if field.type == field.TYPE_FLOAT:
            value = float(np.float32(value))
        return "nan" if math.isnan(value) else value
    digits = text.lstrip("-")
    base = 8 if len(digits) > 1 and digits.isdecimal() and digits[0] == "0" else 0
    return int(text, base)


@given(messages(), st.tuples(*[st.booleans()] * 4))
def test_a_printed_message_is_parsed(message: Any, styles: tuple[bool, ...]) -> None:
    one_line, utf8, pointy, short = styles
    text = text_format.MessageToString(
        message,
        as_one_line=one_line,
        as_utf8=utf8,
        pointy_brackets=pointy,
        use_short_repeated_primitives=short,
    )
    for one in (text, str(message)):
        expected = text_format.Parse(one, new_schema())  # the text may have rounded numbers
        assert normal(parse(one), message.DESCRIPTOR) == plain(expected)


SPELLINGS = r"""
feature: { name: "a" 'b' "\303\251\x41\u00e9\U0001F600\n\"" type: INT, deprecated: t; } # text " {
feature < name: "c"; type: 2; presence: < min_fraction: 1.0f min_count: 0x1F > shape { } >
feature { name: 'it''s' type: FLOAT value_count { min: 010 max: -3 } float_domain { min: -inf max: 1e+3 } }
feature { name: "v" float_domain { min: .5 max: 1.5E-2F } in_environment: ["x", "y"] not_in_environment: [] }
string_domain: [{ name: "d" value: "1" value: ["2"] }, < name: "e" >]
default_environment: "TRAINING" default_environment: "#"
"""


def test_every_spelling_of_the_format_is_parsed() -> None:
    expected = text_format.Parse(SPELLINGS, new_schema())
    assert normal(parse(SPELLINGS), expected.DESCRIPTOR) == plain(expected)


@given(st.integers(0, len(SPELLINGS) - 1), st.integers(0, 3), st.sampled_from("{}<>[]:,;'\"\\ 0a-.#\n"))
def test_texts_with_a_mistake_are_never_read_differently(at: int, length: int, new: str) -> None:
    text = SPELLINGS[:at] + new + SPELLINGS[at + length :]
    try:
        expected = text_format.Parse(text, new_schema(), allow_unknown_field=True)
    except (text_format.ParseError, UnicodeError):
        return
    except DeprecationWarning:  # google.protobuf accepts escapes that the format does not have
        return
    assert normal(parse(text), expected.DESCRIPTOR) == plain(expected)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "a",
        "a:",
        "a: {",
        "a { b: 1 >",
        "a: [1",
        "a: [1 2]",
        "a: [1,]",
        'a: "x',
        r'a: "\q"',
        "a: }",
        "a b",
        "a" + "{a" * 200,
    ],
)
def test_an_invalid_text_raises(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse(text)
