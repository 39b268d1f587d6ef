"""Where a head ends, and which heads are refused, because two readers may understand them differently."""

import re

from onebert_server.http.connection.refusals import Refusal
from onebert_server.http.head import Head

# Host, Content-Length and Transfer-Encoding must come once and in one form. A proxy that reads another form (`018`)
# differently would see a part of the body as the next request, or vice versa.
_HOST = re.compile(rb"[\w.~%!$&'()*+;=:\[\]-]*", re.ASCII)
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,17}")
_TARGET = re.compile(rb"(?:https?://([^/?#@]+))?/[^#]*|\*", re.IGNORECASE)
# Maximum bytes of heads and chunks that are parsed at a time.
_PIECE_BYTES = 2**10
_EMPTY_LINE = b"\r\n\r\n"


def unclear(version: str, target: bytes, head: Head) -> Refusal | None:
    """Refuses a head in which two parsers may see different hosts or body ends (request smuggling); else None."""
    fields, repeated = head.fields, head.repeated
    host, length, encoding = fields.get(b"host"), fields.get(b"content-length"), fields.get(b"transfer-encoding")
    rule = ""
    if (host is not None and not _HOST.fullmatch(host)) or b"host" in repeated:
        rule = "Host must come once, with a name or an address"
    elif (length is not None and not _LENGTH.fullmatch(length)) or b"content-length" in repeated:
        rule = "Content-Length must come once, with a plain number"
    elif (encoding is not None and encoding.lower() != b"chunked") or b"transfer-encoding" in repeated:
        rule = "Transfer-Encoding must come once, and be chunked"
    elif version not in ("1.1", "1.0"):
        rule = "a request must be HTTP/1.1 or 1.0"
    elif not (aimed := _TARGET.fullmatch(target)):
        rule = "the target must be a path, or an http address with one"
    elif aimed[1] not in (None, host):
        rule = "Host must be the host of the target"
    elif version == "1.1":
        rule = "" if host is not None else "a request of HTTP/1.1 must have a Host"
    # The parser itself refuses a head with both a length and an encoding.
    elif encoding is not None:
        rule = "HTTP/1.0 has no Transfer-Encoding"
    return (400, rule) if rule else None


def end_of_piece(ahead: bytes, at: int) -> int:
    """Counts the bytes at a place, of a head or of chunks, for the parser: they may end a message and no more."""
    end = ahead.find(_EMPTY_LINE, at, at + _PIECE_BYTES)
    if end >= 0:
        return end + len(_EMPTY_LINE) - at
    piece = ahead[at : at + _PIECE_BYTES]
    # The part of an empty line that has come waits for the rest.
    return len(piece) - next((size for size in (3, 2, 1) if piece.endswith(_EMPTY_LINE[:size])), 0)
