"""Parse protobuf's text format, without the classes of the messages.

The format is specified at https://protobuf.dev/reference/protobuf/textformat-spec/.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

# A message, or the text of a string, of a number or of an enum value.
Value: TypeAlias = "Message | str"

_TOKEN = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*)|(?P<name>[A-Za-z_]\w*(?:\.\w+)*)"""
    r"""|(?P<number>-?\s*\.?\d[\w.]*(?:(?<=[eE])[-+]?\d\w*)?|-\s*[A-Za-z]\w*)"""
    r"""|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<mark>[{}<>\[\]:,;/%-])""",
    re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_LETTERS = dict(zip("abfnrtv?\\'\"", b"\a\b\f\n\r\t\v?\\'\"", strict=True))
_ENDS = {"{": "}", "<": ">"}

# The greatest depth of nested messages, as in protobuf.
_DEEPEST = 100


@dataclass(frozen=True)
class Message:
    """The fields of a message.

    Attributes
    ----------
    fields : dict of str to list of (Message or str)
        The values of each field, in the order of the text.
    """

    fields: dict[str, list[Value]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def messages(self, name: str) -> list["Message"]:
        """Return the messages in a field. Raise ValueError if the field has other values."""
        found = [one for one in self.fields.get(name, ()) if isinstance(one, Message)]
        if len(found) < len(self.fields.get(name, ())):
            raise ValueError(f"the field {name!r} is not a message")
        return found

    def texts(self, name: str) -> list[str]:
        """Return the strings, numbers and enum values in a field as texts. Raise ValueError if the field has
        messages.
        """
        found = [one for one in self.fields.get(name, ()) if isinstance(one, str)]
        if len(found) < len(self.fields.get(name, ())):
            raise ValueError(f"the field {name!r} is a message")
        return found

    def message(self, name: str) -> "Message":
        """Return the message in a field, or an empty message if the field is absent."""
        return self.messages(name)[-1] if name in self else Message()

    def text(self, name: str, default: str = "") -> str:
        """Return the text in a field, or the default if the field is absent."""
        return self.texts(name)[-1] if name in self else default


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def parse(text: str) -> Message:
    """Parse a message in protobuf's text format.

    Raises
    ------
    ValueError
        If the text is not valid. The error has the number of the line.
    """
    tokens = [*_tokens(text)]
    tokens.reverse()  # so that `pop` removes the next token
    return _message(tokens, "", 0)


def _tokens(text: str) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise ValueError(f"line {line}: {text[at : at + 20]!r} is not valid")
        if match.lastgroup != "skip":
            yield _Token(match.lastgroup, match[0], line)
        line += match[0].count("\n")
        at = match.end()


def _message(tokens: list[_Token], end: str, depth: int) -> Message:
    """Parse the fields of a message up to the mark ``end``, or up to the end of the text."""
    if depth > _DEEPEST:
        raise ValueError(f"line {tokens[-1].line if tokens else 0}: messages are nested too deeply")
    found = Message()
    while tokens and (tokens[-1].kind, tokens[-1].text) != ("mark", end):
        name = _field_name(tokens)
        has_colon = _skip(tokens, ":")
        values = found.fields.setdefault(name.text, [])
        if _skip(tokens, "["):
            if not _skip(tokens, "]"):
                values.append(_value(tokens, name, depth))
                while _skip(tokens, ","):
                    values.append(_value(tokens, name, depth))
                _require(tokens, "]", name)
        elif has_colon or (tokens and tokens[-1].text in _ENDS):
            values.append(_value(tokens, name, depth))
        else:
            raise ValueError(f"line {name.line}: the field {name.text!r} has no value")
        _ = _skip(tokens, ",") or _skip(tokens, ";")
    if end:
        _require(tokens, end, None)
    return found


def _field_name(tokens: list[_Token]) -> _Token:
    token = tokens.pop()
    if token.text == "[":  # the name of an extension, or the URL of a type
        parts = []
        while tokens and tokens[-1].text != "]":
            parts.append(tokens.pop().text)
        _require(tokens, "]", token)
        return token._replace(text=f"[{''.join(parts)}]")
    # The text of a message shows the number of a field that the class of the message does not know.
    if token.kind == "name" or token.text.isdecimal():
        return token
    raise ValueError(f"line {token.line}: {token.text!r} is not the name of a field")


def _value(tokens: list[_Token], name: _Token, depth: int) -> Value:
    if not tokens:
        raise ValueError(f"line {name.line}: the field {name.text!r} has no value")
    token = tokens.pop()
    if token.kind == "mark" and token.text in _ENDS:
        return _message(tokens, _ENDS[token.text], depth + 1)
    if token.kind == "mark":
        raise ValueError(f"line {token.line}: {token.text!r} is not a value")
    if token.kind != "text":
        return "".join(token.text.split())
    parts = [token]
    while tokens and tokens[-1].kind == "text":  # adjacent strings are joined
        parts.append(tokens.pop())
    return b"".join(map(_unescaped, parts)).decode(errors="surrogateescape")


def _skip(tokens: list[_Token], mark: str) -> bool:
    """If the next token is a mark, remove the token and return True."""
    is_next = bool(tokens) and (tokens[-1].kind, tokens[-1].text) == ("mark", mark)
    if is_next:
        tokens.pop()
    return is_next


def _require(tokens: list[_Token], mark: str, name: _Token | None) -> None:
    if not _skip(tokens, mark):
        place = tokens[-1] if tokens else name
        raise ValueError(f"{f'line {place.line}' if place else 'the end'}: {mark!r} is missing")


def _unescaped(token: _Token) -> bytes:
    text = token.text[1:-1]
    found, at = b"", 0
    for match in _ESCAPE.finditer(text):
        octal, hexadecimal, short, long, letter = match.groups()
        if octal or hexadecimal:
            value = int(octal, 8) if octal else int(hexadecimal, 16)
        elif letter is not None:
            value = _LETTERS.get(letter, 256)
        if short or long:
            new = chr(int(short or long, 16)).encode()
        elif value < 256:
            new = bytes([value])
        else:
            raise ValueError(f"line {token.line}: the escape {match[0]!r} is not valid")
        found += text[at : match.start()].encode() + new
        at = match.end()
    return found + text[at:].encode()
