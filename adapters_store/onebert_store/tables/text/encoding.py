"""Finds a text file's encoding: by its byte order mark, as UTF-8, or as charset-normalizer guesses it."""

import codecs
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from zlib import crc32

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
_SAMPLE_BYTES = 2**18  # of lines that are not ASCII
# The library knows more, which it finds in short texts, though nobody writes them.
_CANDIDATES = [
    *(
        _WESTERN,
        "cp1250",
        "cp1251",
        "cp1253",
        "cp1254",
        "cp1255",
        "cp1256",
        "cp1257",
        "cp437",
        "cp850",
        "cp852",
        "cp866",
    ),
    *(
        "iso8859_2",
        "iso8859_5",
        "iso8859_7",
        "iso8859_9",
        "iso8859_15",
        "koi8_r",
        "koi8_u",
        "mac_roman",
        "mac_cyrillic",
    ),
    *("cp932", "shift_jis", "euc_jp", "gb18030", "big5", "cp949"),
]


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

    The last yields UTF-8, UTF-16 if the first letters show it, or a guess. Raises InvalidData if a byte is 0, the file
    mixes encodings, or none can be guessed.
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
    return Encoding("utf-8") if first_undecodable(file, "utf-8") is None else _guessed(file)


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


def _guessed(file: File) -> Encoding:
    from charset_normalizer import from_bytes  # noqa: PLC0415 - slow to import, and few files need it

    first, sample, size = dict[bool, int](), set[bytes](), 0  # is it UTF-8 -> number of the first such line
    with closing(file.unpacked()) as stream:
        for number, line in enumerate(iter(partial(stream.readline, _LINE_BYTES), b""), start=1):
            if line.isascii():
                continue
            first.setdefault(_is_utf8(line), number)
            if size < _SAMPLE_BYTES and line not in sample:
                sample.add(line)
                size += len(line)
    if len(first) > 1:
        raise InvalidData(
            f"{file.name} mixes encodings: line {first[False]} is not UTF-8, while line {first[True]} is; save it in "
            "one, or say which with --encoding"
        )
    # By checksums, so that no order of rows matters, and rows that begin alike are not together.
    matches = from_bytes(b"".join(sorted(sample, key=crc32)), cp_isolation=_CANDIDATES)
    if not (best := matches.best()):
        raise InvalidData(
            f"{file.name} line {first[False]} is not readable as UTF-8; say what it is with --encoding, as cp1251"
        )
    # Without words of a known language nothing but bytes without a meaning speaks against the most common one.
    unclear = not best.coherence and any(_WESTERN in match.could_be_from_charset for match in matches)
    name = _WESTERN if unclear else best.encoding
    guess = f"{file.name} is not UTF-8 and is read as {name}; if letters come out wrong, say what it is with --encoding"
    return Encoding(name, guess)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
