"""Escape the characters in untrusted text that would control a terminal."""

import json
import re

# Characters that control a terminal or change the order of the text: C0 and C1 controls, separators of lines,
# directional and invisible formatting, and bytes of names that are not UTF-8.
UNSAFE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    r"\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    r"""Return a text as one line, with escapes such as ``\x1b`` for characters that control a terminal."""
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escaped_json(text: str) -> str:
    """Escape the characters in JSON text that would control a terminal. Line breaks are kept."""
    return UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else json.dumps(found[0])[1:-1], text)
