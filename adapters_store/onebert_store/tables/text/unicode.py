"""Checks that cells are texts that a tokenizer can read."""

import unicodedata
from typing import Any

NO_TEXT = "the text is empty or not a text"
HALF = "half of a surrogate pair"


def is_unicode(text: str) -> bool:
    """True if the text has no half of a surrogate pair, which JSON can contain but a tokenizer cannot read."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def escaped(text: str) -> str:
    """Writes halves of surrogate pairs as JSON escapes."""
    return text if is_unicode(text) else text.encode(errors="backslashreplace").decode()


def is_blank(text: str) -> bool:
    """True if the text has no token: only white space, control and format characters, and loose marks."""
    return text.isspace() or all(unicodedata.category(char)[0] in "ZCM" and is_unicode(char) for char in text)


def text_fault(*cells: Any) -> str:
    """Returns why one of the cells is not a text; empty if all are."""
    for cell in cells:
        if isinstance(cell, bytes):
            return "the text is binary, and not UTF-8"
        if not isinstance(cell, str) or is_blank(cell):
            return NO_TEXT
        if not is_unicode(cell):
            return f"the text has {HALF}"
    return ""
