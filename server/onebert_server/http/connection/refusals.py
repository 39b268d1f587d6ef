"""Refusals of requests that the protocol cannot read, and the rules that a clear head keeps.

A refusal without a readable head goes to the app in a stand-in request. If only the body is unreadable, the app already
has the request and receives the refusal in place of the body's next part.
"""

import re

from onebert_server.http.head import Head

# Maximum bytes of a request's target and headers together, and maximum number of header lines.
MAX_HEAD_BYTES = 2**15
MAX_HEADER_LINES = 100

Refusal = tuple[int, str]
"""Status and detail of a problem for an unreadable request."""

REFUSAL = "refusal"
"""Key of a Refusal, in a stand-in's state and in a message in place of the body's next part."""

WHOLE = "whole"
"""Request state key: the whole body, once it has come, if the app has received none of it."""

MALFORMED = (400, "this is not HTTP/1.1")
TOO_LARGE = (431, f"a request has at most {MAX_HEAD_BYTES} bytes of header fields, in {MAX_HEADER_LINES} lines")
TOO_SLOW = (408, "the header fields did not come in time")
TOO_MANY = (503, "as many connections are open as the server takes")

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
