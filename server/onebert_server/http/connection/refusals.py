"""Refusals of requests that the protocol cannot read.

A refusal without a readable head goes to the app in a stand-in request. If only the body is unreadable, the app already
has the request and receives the refusal in place of the body's next part.
"""

# Maximum bytes of a request's target and headers together, and maximum number of header lines.
MAX_HEAD_BYTES = 2**15
MAX_HEADER_LINES = 100

Refusal = tuple[int, str]
"""Status and detail of a problem for an unreadable request."""

REFUSAL = "refusal"
"""Request state key: the Refusal of a stand-in, or of a body that is unreadable from here on."""

MALFORMED = (400, "this is not HTTP/1.1")
TOO_LARGE = (431, f"a request has at most {MAX_HEAD_BYTES} bytes of header fields, in {MAX_HEADER_LINES} lines")
TOO_SLOW = (408, "the header fields did not come in time")
TOO_MANY = (503, "as many connections are open as the server takes")
