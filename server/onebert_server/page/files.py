"""The files of the page at `/`: where each is, what it is, and the policy that a browser keeps with all of them."""

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "static"
START = FOLDER / "index.html"
# By the file's ending; what the system believes about endings does not matter.
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# Path of a URL -> file. Only these are served, whatever a path says.
PATHS = {"/": START} | {
    f"/page/{path.relative_to(FOLDER).as_posix()}": path
    for path in FOLDER.rglob("*")
    if path.suffix in TYPES and path != START
}

# Nothing is loaded from elsewhere, sent elsewhere, written into the page as markup, or shown inside of another page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Kept, and asked for again each time: after an upgrade nobody has one half of the old page and one of the new.
    "Cache-Control": "no-cache",
}


class File(NamedTuple):
    """One file of the page: its bytes, its media type, and its ETag with the quotes."""

    content: bytes
    media_type: str
    etag: str


@cache
def read(path: str) -> File:
    """A file by the path of its URL, one of `PATHS`."""
    file = PATHS[path]
    content = file.read_bytes()
    return File(content, TYPES[file.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
