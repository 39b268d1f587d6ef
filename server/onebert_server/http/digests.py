"""Verifies the digests that a client sends with a body (Content-Digest of RFC 9530, Digest of RFC 3230)."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

from onebert_server.http.head import Head
from onebert_store.errors import DigestMismatch, InvalidInput

# Supported algorithms by their names in the header fields; RFC 9530 says to ignore the others.
ALGORITHMS = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512}


class SentDigests:
    """The digests in a request's headers; `update` takes the body's parts."""

    def __init__(self, head: Head) -> None:
        self._expected = [
            expected
            for field, ends in (("content-digest", ":"), ("digest", ""))
            for expected in _parse(head.all(field.encode()), ends).items()
        ]
        # One hasher per algorithm, even if both headers name it, since hashing is the expensive part.
        self._hashers = {algorithm: ALGORITHMS[algorithm]() for algorithm, _ in self._expected}

    def update(self, part: bytes) -> None:
        """Hashes the next part of the body; call it in a thread if the part is large."""
        for hasher in self._hashers.values():
            hasher.update(part)

    def check(self) -> None:
        """Compares the digests after the last part; raises DigestMismatch if one differs."""
        found = {algorithm: hasher.digest() for algorithm, hasher in self._hashers.items()}
        if not all(hmac.compare_digest(found[algorithm], digest) for algorithm, digest in self._expected):
            raise DigestMismatch("the body is not the one whose digest was sent; it was changed on its way, or cut")


def _parse(fields: Sequence[str], ends: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for member in ",".join(fields).split(","):
        name, _, value = member.strip().partition("=")
        algorithm = name.lower()
        if algorithm not in ALGORITHMS:
            continue
        if algorithm in found:
            raise InvalidInput(f"there is more than one digest by {algorithm}")
        try:
            if not (value.startswith(ends) and value.endswith(ends)):
                raise ValueError
            found[algorithm] = base64.b64decode(value[len(ends) : len(value) - len(ends)], validate=True)
        except (ValueError, binascii.Error):
            raise InvalidInput(f"the digest by {algorithm} is not {ends}base64{ends}") from None
    return found
