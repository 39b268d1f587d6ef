"""Names of blobs: `sha256:` and 64 hexadecimal digits, which are also the name of a file or an object."""

import hashlib
import re
from collections.abc import Iterable, Iterator

from onebert_store.errors import StoreCorrupt

DIGEST_PREFIX = "sha256:"
_DIGITS = re.compile(r"[0-9a-f]{64}")


def digest_of(data: bytes) -> str:
    """The name of a blob with this content."""
    return DIGEST_PREFIX + hashlib.sha256(data).hexdigest()


def digits_of(digest: str) -> str:
    """The 64 digits of a digest: it becomes the name of a file or an object only here, whatever the caller was given.

    Raises:
        ValueError: this is no digest.
    """
    digits = digest.removeprefix(DIGEST_PREFIX)
    if not is_digits(digits):
        raise ValueError("not a digest")
    return digits


def is_digits(name: str) -> bool:
    """Whether a file or an object is named as a blob is."""
    return bool(_DIGITS.fullmatch(name))


def verified(pieces: Iterable[bytes], digest: str, most: int) -> Iterator[bytes]:
    """Gives the pieces on; they are trusted only once the last one has come without an error.

    Args:
        pieces: of a blob; no more of them are taken once they are too many bytes.
        digest: names the blob.
        most: bytes that a blob may have.

    Raises:
        StoreCorrupt: together they are not what the digest names.
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
