"""Parses a connection's bytes into one request after the other, within bounds on heads and on a body's framing."""

import re
from typing import NamedTuple

import httptools

from onebert_server.http.connection.refusals import (
    MALFORMED,
    MAX_HEAD_BYTES,
    MAX_HEADER_LINES,
    TOO_LARGE,
    Refusal,
)
from onebert_server.http.head import Field, Head

# Maximum bytes of chunk framing per byte of content.
CHUNK_OVERHEAD = 8
# Maximum bytes of heads and chunks that are parsed at a time: a chunk of one byte takes as long as one of thousands.
PIECE_BYTES = 2**10
_EMPTY_LINE = b"\r\n\r\n"
# The fields that delimit a body.
FRAMING = (b"content-length", b"transfer-encoding")
# These fields must come once and in this form; each has its rule for the error. A proxy that reads another form (`018`)
# differently would see a part of the body as the next request, or vice versa.
_FORMS = {
    b"host": (re.compile(rb"[\w.~%!$&'()*+;=:\[\]-]*", re.ASCII), "Host must come once, with a name or an address"),
    b"content-length": (re.compile(rb"0|[1-9][0-9]{0,17}"), "Content-Length must come once, with a plain number"),
    b"transfer-encoding": (re.compile(rb"chunked", re.IGNORECASE), "Transfer-Encoding must come once, and be chunked"),
}
_TARGET = re.compile(rb"(?:https?://([^/?#@]+))?/[^#]*|\*", re.IGNORECASE)


class Unreadable(Exception):
    """The bytes are no request that this server takes."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(*refusal)
        self.refusal = refusal


class Request(NamedTuple):
    """A request whose head is complete; `path` and `query` are as they came."""

    version: str
    method: str
    path: bytes
    query: bytes
    head: Head
    keep_alive: bool


class Reader:
    """Holds what has arrived, and parses it up to the places at which a message may end.

    Attributes:
        ahead: bytes that are not parsed yet.
        in_head: a head has begun and is not complete.
        request: the request whose head the last piece has completed, if any.
        parts: the parts of a body in the last piece, `content` bytes together.
        ended: the last piece has ended a message.
    """

    def __init__(self) -> None:
        self.ahead, self.content = 0, 0
        self.in_head = self.ended = False
        self.request: Request | None = None
        self.parts: list[bytes] = []
        self._parser = httptools.HttpRequestParser(self)
        # Received bytes, whose last `ahead` ones are not parsed yet; and the last bytes before these in their message.
        self._received, self._tail = b"", b""
        self._url, self._fields = b"", list[Field]()
        self._body_left = 0  # bytes that the body's declared length leaves to arrive
        self._taken_on = False  # a new parser gets a head that has been read already
        # Bytes of the message so far: of its head, then of its framing beyond what its content may take.
        self._overhead = 0
        self._refusal = MALFORMED  # why the parser stops

    def add(self, data: bytes) -> None:
        self._received = self._received[-self.ahead :] + data if self.ahead else data
        self.ahead = len(self._received)

    def clear(self) -> None:
        self._received, self.ahead = b"", 0

    def parse(self) -> None:
        """Parses the next piece, which may end a message and no more; raises Unreadable.

        A head is one together with what has come of a body whose length it declares.
        """
        self.request, self.parts, self.content, self.ended = None, [], 0, False
        more = True
        while more:
            at = len(self._received) - self.ahead
            end = at + min(self.ahead, self._body_left) if self._body_left else self._end_of_piece(at)
            piece, size = self._received[at:end], end - at
            self.ahead -= size
            self._overhead += size
            try:
                try:
                    self._parser.feed_data(piece)
                except httptools.HttpParserUpgrade:
                    self._ignore_upgrade()
            except httptools.HttpParserError:
                raise Unreadable(self._refusal) from None
            more = self._body_left > 0 and self.ahead > 0 and not self.ended
        if not self.ahead:
            self._received = b""
        if self.ended:
            self._tail, self._overhead = b"", 0
            return
        self._tail = (self._tail + piece)[-3:] if size < 3 else piece[-3:]
        # This bounds data that never completes: an endless field, a chunk extension, trailers.
        self._overhead = max(0, self._overhead - (CHUNK_OVERHEAD + 1) * self.content)
        if self._overhead > MAX_HEAD_BYTES:
            raise Unreadable(TOO_LARGE)

    def _end_of_piece(self, at: int) -> int:
        if self._tail and (joint := (self._tail + self._received[at : at + 3]).find(_EMPTY_LINE)) >= 0:
            return at + joint + len(_EMPTY_LINE) - len(self._tail)
        most = min(len(self._received), at + PIECE_BYTES)
        end = self._received.find(_EMPTY_LINE, at, most)
        return most if end < 0 else end + len(_EMPTY_LINE)

    def _ignore_upgrade(self) -> None:
        """Reads on as HTTP/1.1, as RFC 9110 allows; Java's client asks for an upgrade with each request.

        The parser treats the data after such a head as the other protocol, so a new parser takes over the framing.
        """
        if self._parser.get_method() == b"CONNECT":
            return
        framing = [b"%b: %b\r\n" % field for field in self._fields if field[0] in FRAMING]
        self._parser, self._taken_on = httptools.HttpRequestParser(self), True
        try:
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing))
        finally:
            self._taken_on = False

    # The parser's callbacks

    def on_message_begin(self) -> None:
        if self._taken_on:
            return
        self.in_head = True
        self._url, self._fields = b"", []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Ignores trailers; stops the parser over the limits."""
        if not self.in_head:
            return
        self._fields.append((name.lower(), value))
        if len(self._fields) > MAX_HEADER_LINES:
            self._stop_at(TOO_LARGE)

    def on_headers_complete(self) -> None:
        if self._taken_on:
            return
        version, head = self._parser.get_http_version(), Head(self._fields)
        if self._overhead > MAX_HEAD_BYTES:
            self._stop_at(TOO_LARGE)
        if refusal := unclear(version, self._url, head):
            self._stop_at(refusal)
        path, _, query = self._url.partition(b"?")
        if not path.startswith(b"/"):
            parsed = httptools.parse_url(self._url)
            path, query = parsed.path, parsed.query or b""
        if not self._url.isascii():
            self._stop_at(MALFORMED)
        self.in_head = False
        self._body_left = int(head.fields.get(b"content-length", 0))
        keep_alive = version != "1.0" and self._parser.should_keep_alive()
        method = self._parser.get_method().decode("ascii")
        self.request = Request(version, method, path, query, head, keep_alive)

    def _stop_at(self, refusal: Refusal) -> None:
        self._refusal = refusal
        # httptools turns any exception of a callback into its own error.
        raise ValueError

    def on_body(self, body: bytes) -> None:
        self.content += len(body)
        self.parts.append(body)
        self._body_left = max(0, self._body_left - len(body))

    def on_message_complete(self) -> None:
        # After a request for an upgrade, `_ignore_upgrade` hands the framing to a new parser.
        self.ended = not self._parser.should_upgrade() or self._parser.get_method() == b"CONNECT"


def unclear(version: str, target: bytes, head: Head) -> Refusal | None:
    """Refuses a head in which two parsers may see different hosts or body ends (request smuggling); else None."""
    fields = head.fields
    for name, (form, rule) in _FORMS.items():
        if name in fields and (name in head.repeated or not form.fullmatch(fields[name])):
            return 400, rule
    aimed, host = _TARGET.fullmatch(target), fields.get(b"host")
    if aimed and version == "1.1" and host is not None and aimed[1] is None:
        return None
    # The parser itself refuses a head with both FRAMING fields.
    for kept, rule in (
        (version in ("1.1", "1.0"), "a request must be HTTP/1.1 or 1.0"),
        (aimed, "the target must be a path, or an http address with one"),
        (host is not None or version == "1.0", "a request of HTTP/1.1 must have a Host"),
        (aimed is None or aimed[1] in (None, host), "Host must be the host of the target"),
        (version == "1.1" or b"transfer-encoding" not in fields, "HTTP/1.0 has no Transfer-Encoding"),
    ):
        if not kept:
            return 400, rule
    return None
