"""Digests that a client sends with a body (RFC 9530's Content-Digest, RFC 3230's Digest), and whether they hold."""

import base64
import binascii
import hashlib
import hmac

from starlette.datastructures import Headers

from onebert_store.errors import DigestMismatch, InvalidInput

# Algorithms as the header fields name them; digests by others are left unread, as RFC 9530 says.
ALGORITHMS = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512}


class SentDigests:
    """What a body shall be by its header fields; to be fed with the body's parts.

    Raises:
        InvalidInput: a digest is not base64.
    """

    def __init__(self, headers: Headers) -> None:
        self._expected = [
            (ALGORITHMS[algorithm](), digest)
            for field, ends in (("content-digest", ":"), ("digest", ""))
            for algorithm, digest in _parse(headers.getlist(field), ends)
        ]

    def update(self, part: bytes) -> None:
        """Takes the next part of the body."""
        for hasher, _ in self._expected:
            hasher.update(part)

    def check(self) -> None:
        """Compares, at the end of the body.

        Raises:
            DigestMismatch: the body is not what its digest says.
        """
        if not all(hmac.compare_digest(hasher.digest(), digest) for hasher, digest in self._expected):
            raise DigestMismatch("the body is not the one whose digest was sent; it was changed on its way, or cut")


def _parse(fields: list[str], ends: str) -> list[tuple[str, bytes]]:
    """Algorithms and digests of a field, whose values stand between `ends`."""
    found = []
    for member in ",".join(fields).split(","):
        algorithm, _, value = member.strip().partition("=")
        if algorithm.lower() not in ALGORITHMS:
            continue
        try:
            if not (value.startswith(ends) and value.endswith(ends)):
                raise ValueError
            found.append(
                (algorithm.lower(), base64.b64decode(value[len(ends) : len(value) - len(ends)], validate=True))
            )
        except (ValueError, binascii.Error):
            raise InvalidInput(f"the digest by {algorithm.lower()} is not {ends}base64{ends}") from None
    return found
