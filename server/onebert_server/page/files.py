"""The files of the page at `/`, their media types, and their security headers."""

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "static"
START = FOLDER / "index.html"
# Independent of the system's table of MIME types.
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# URL path -> file. A path outside this table is never served.
PATHS = {"/": START} | {
    f"/page/{path.relative_to(FOLDER).as_posix()}": path
    for path in FOLDER.rglob("*")
    if path.suffix in TYPES and path != START
}

# Forbids foreign resources and requests, injected markup, and framing.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Revalidated on each load, so that an upgrade never mixes files of two versions.
    "Cache-Control": "no-cache",
}


class File(NamedTuple):
    """One file of the page; `etag` includes the quotes."""

    content: bytes
    media_type: str
    etag: str


@cache
def read(path: str) -> File:
    """Reads the file at a URL path of `PATHS`."""
    file = PATHS[path]
    content = file.read_bytes()
    return File(content, TYPES[file.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
