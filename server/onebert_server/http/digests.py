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
        InvalidInput: a digest is not base64, or a field has two by one algorithm.
    """

    def __init__(self, headers: Headers) -> None:
        self._expected = [
            expected
            for field, ends in (("content-digest", ":"), ("digest", ""))
            for expected in _parse(headers.getlist(field), ends).items()
        ]
        # One for an algorithm, however often a header names it: hashing is what a digest costs.
        self._hashers = {algorithm: ALGORITHMS[algorithm]() for algorithm, _ in self._expected}

    def update(self, part: bytes) -> None:
        """Takes the next part of the body; for a thread where the part is large."""
        for hasher in self._hashers.values():
            hasher.update(part)

    def check(self) -> None:
        """Compares, at the end of the body.

        Raises:
            DigestMismatch: the body is not what its digest says.
        """
        found = {algorithm: hasher.digest() for algorithm, hasher in self._hashers.items()}
        if not all(hmac.compare_digest(found[algorithm], digest) for algorithm, digest in self._expected):
            raise DigestMismatch("the body is not the one whose digest was sent; it was changed on its way, or cut")


def _parse(fields: list[str], ends: str) -> dict[str, bytes]:
    """The digest by each algorithm of a field, whose values stand between `ends`."""
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
