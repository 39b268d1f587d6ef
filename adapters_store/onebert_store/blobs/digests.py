"""Digests, the names of blobs: `sha256:` and 64 hexadecimal digits, which also name the file or object."""

import hashlib
import re
from collections.abc import Iterable, Iterator

from onebert_store.errors import StoreCorrupt

DIGEST_PREFIX = "sha256:"
_DIGITS = re.compile(r"[0-9a-f]{64}")


def digest_of(data: bytes) -> str:
    """Returns the digest of a blob with this content."""
    return DIGEST_PREFIX + hashlib.sha256(data).hexdigest()


def digits_of(digest: str) -> str:
    """Returns a digest's 64 digits, the name of its file or object; raises ValueError if the digest is malformed."""
    digits = digest.removeprefix(DIGEST_PREFIX)
    if not is_digits(digits):
        raise ValueError("not a digest")
    return digits


def is_digits(name: str) -> bool:
    """True if a file or object has a blob's name."""
    return bool(_DIGITS.fullmatch(name))


def verified(pieces: Iterable[bytes], digest: str, most: int) -> Iterator[bytes]:
    """Yields the pieces of a blob; trust them only after the last one has come without an error.

    Raises StoreCorrupt if the content does not match the digest, or has more than `most` bytes.
    """
    found, size = hashlib.sha256(), 0
    for piece in pieces:
        found.update(piece)
        size += len(piece)
        if size > most:
            break
        yield piece
    if size > most or DIGEST_PREFIX + found.hexdigest() != digest:
        raise StoreCorrupt(f"the blob {digest} has other content than its digest says")
