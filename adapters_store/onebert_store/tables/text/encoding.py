"""Finds a text file's encoding: by its byte order mark, as UTF-8, or by what its bytes leave possible."""

import codecs
import re
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from io import TextIOWrapper

from onebert_store.errors import InvalidData, InvalidSettings
from onebert_store.tables.file import File

# UTF-32 comes first: its byte order mark starts with that for UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)
_WESTERN = "cp1252"
_CHUNK_BYTES = 2**20
_LINE_BYTES = 2**24  # longer lines are examined in pieces of this size
# Signs of cp1252 that never stand inside a word; in other encodings their bytes are letters. Quotes touch words.
_QUOTES = "\u00a1\u00ab\u00bb\u00bf\u201a\u201c\u201d\u201e\u2039\u203a"
_SIGNS = (
    "\u00a2-\u00aa\u00ac\u00ae-\u00b3\u00b5\u00b6\u00b8-\u00ba\u00bc-\u00be\u00d7\u00f7"
    "\u0192\u02c6\u02dc\u2020\u2021\u2022\u2030\u20ac"
)
_INSIDE_A_WORD = re.compile(rf"(?<=[^\W\d_])[{_SIGNS}{_QUOTES}](?=[^\W\d_])")
_MOST_ODD = 0.1
# In the languages of cp1252, few letters of an accented word have accents; in Cyrillic or Greek all letters are high
# bytes. ASCII words prove nothing: they may be JSON keys, or labels.
_WORD = re.compile(rf"(?:[^\W\d_]|[{_SIGNS}])+")
_MOST_ACCENTED = 0.75
_MANY_ACCENTED = 0.5


def check_encoding(encoding: str) -> None:
    """Raises InvalidSettings if there is no such encoding."""
    try:
        "".encode(encoding)
    except (LookupError, UnicodeError, ValueError):
        raise InvalidSettings(f"there is no encoding {encoding[:40]!r}; utf-8, utf-16 and cp1252 are some") from None


@dataclass(frozen=True)
class Encoding:
    """A text file's encoding; `doubt` tells the user how it was guessed, and is empty if nothing was."""

    name: str
    doubt: str = ""


def find_encoding(file: File, preferred: str | None) -> Encoding:
    """Finds a text file's encoding: its byte order mark, else `preferred` by the user, else from all its bytes.

    The last yields UTF-8, UTF-16 if the first letters show it, or cp1252 if the text looks Western European. All lines
    are read before the decision, so that their order does not matter. Raises InvalidData if a byte is 0, the file mixes
    encodings, or the encoding cannot be determined.
    """
    if preferred is not None:
        check_encoding(preferred)
    with closing(file.unpacked()) as stream:
        head = stream.peek(8)[:8]
        marked = next((name for mark, name in _MARKS if head.startswith(mark)), preferred)
        if marked is not None:
            return Encoding(marked)
        if wide := _wide(head):
            return Encoding(wide, f"{file.name} has no byte order mark and is read as {wide}")
    if (line := first_undecodable(file, "utf-8")) is None:
        return Encoding("utf-8")
    return _one_byte(file, line)


def open_text(file: File, encoding: str) -> TextIOWrapper:
    """Opens a file as text; keeps line ends as they are."""
    return TextIOWrapper(file.unpacked(), encoding=encoding, newline="")


def first_undecodable(file: File, encoding: str) -> int | None:
    """Returns the first line that cannot be decoded, or None; raises InvalidData for a byte 0 in UTF-8 text."""
    decoder, lines = codecs.getincrementaldecoder(encoding)(), 1
    with closing(file.unpacked()) as stream:
        while True:
            chunk = stream.read(_CHUNK_BYTES)
            if encoding == "utf-8" and b"\0" in chunk:
                line = lines + chunk[: chunk.index(b"\0")].count(b"\n")
                raise InvalidData(f"{file.name} line {line} has a byte 0; is it a text file?")
            try:
                lines += decoder.decode(chunk, final=not chunk).count("\n")
            except UnicodeDecodeError as error:
                return lines + error.object[: error.start].decode(encoding, "replace").count("\n")
            if not chunk:
                return None


def _wide(head: bytes) -> str | None:
    """Detects UTF-16 without a mark: a header or JSON starts with ASCII, so every second byte is 0."""
    low, high = head[::2], head[1::2]
    if len(head) < 4 or len(low) != len(high):
        return None
    if not any(high) and all(low):
        return "utf-16-le"
    return "utf-16-be" if not any(low) and all(high) else None


@dataclass
class _Statistics:
    lines: dict[bool, list[int]] = field(default_factory=dict)  # is it UTF-8 -> number of the first line, count
    alone: int = 0  # words of one letter, such as à, è and é; in other encodings their bytes are words as well
    letters: int = 0  # letters of longer words that have an accent
    accented: int = 0
    odd: int = 0
    unreadable: bool = False

    def add(self, number: int, line: bytes) -> None:
        utf8 = _is_utf8(line)
        self.lines.setdefault(utf8, [number, 0])[1] += 1
        if utf8:
            return
        text = line.decode(_WESTERN, "replace")
        self.unreadable |= "\ufffd" in text
        for match in _WORD.finditer(text):
            word = match[0]
            if word.isascii():
                continue
            if len(word) == 1:
                self.alone += word.isalpha()
            else:
                self.letters += len(word)
                self.accented += sum(not letter.isascii() for letter in word)
        self.odd += sum(1 for _ in _INSIDE_A_WORD.finditer(text))


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _one_byte(file: File, first: int) -> Encoding:
    stats = _Statistics()
    with closing(file.unpacked()) as stream:
        for number, line in enumerate(iter(partial(stream.readline, _LINE_BYTES), b""), start=1):
            if not line.isascii():
                stats.add(number, line)
    if len(stats.lines) > 1:
        rarer, commoner = sorted(stats.lines, key=lambda utf8: stats.lines[utf8][1])
        kinds = {True: "UTF-8", False: "not UTF-8"}
        raise InvalidData(
            f"{file.name} mixes encodings: line {stats.lines[rarer][0]} is {kinds[rarer]}, while line "
            f"{stats.lines[commoner][0]} is {kinds[commoner]}; save it in one, or say which with --encoding"
        )
    strange = stats.accented > stats.letters * _MOST_ACCENTED or stats.odd > (stats.accented + stats.odd) * _MOST_ODD
    if stats.unreadable or strange:
        raise InvalidData(
            f"{file.name} line {first} is not readable as UTF-8; say what it is with --encoding, as cp1251 (Cyrillic)"
        )
    doubt = f"{file.name} is not UTF-8 and is read as {_WESTERN} (Western European Windows)"
    if stats.accented > stats.letters * _MANY_ACCENTED or (stats.alone and not stats.letters):
        doubt += ", though the few words with accents may as well be of another encoding"
    return Encoding(_WESTERN, f"{doubt}; if letters come out wrong, say what it is with --encoding")
