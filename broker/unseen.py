"""Invisible characters: they control a terminal, reverse the direction of text, or make two names look alike.

Input from outside may contain none except tabs and line breaks. Where text is shown, those of old rows are
escaped.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from types import MappingProxyType

LAYOUT = frozenset("\t\n\r")
_RANGES = (
    (0x00, 0x1F),
    (0x7F, 0x9F),
    (0xAD, 0xAD),
    (0x61C, 0x61C),
    (0x200B, 0x200B),  # the joiners after it are needed in several languages
    (0x200E, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),
    (0xE0001, 0xE007F),
)
"""Control and format characters of Unicode, and its two line separators."""


def _escape(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


ESCAPES: Mapping[int, str] = MappingProxyType(
    {code: _escape(code) for first, last in _RANGES for code in range(first, last + 1)}
)
"""Escapes of all these characters, and of layout characters."""
_HIDDEN = {code: escaped for code, escaped in ESCAPES.items() if chr(code) not in LAYOUT}
_SEARCH = re.compile("[" + "".join(re.escape(chr(code)) for code in _HIDDEN) + "]")


def find_unseen(text: str) -> str | None:
    """The first invisible character of ``text`` that is not layout; None if there is none."""
    found = _SEARCH.search(text)
    return None if found is None else found.group()


def shown(text: str) -> str:
    """``text`` with escaped invisible characters, except layout. Markup stays markup."""
    return text if _SEARCH.search(text) is None else text.translate(_HIDDEN)


def name_of(character: str) -> str:
    """The name of a character in messages: ``U+202E (RIGHT-TO-LEFT OVERRIDE)``."""
    return f"U+{ord(character):04X} ({unicodedata.name(character, 'a control character')})"
