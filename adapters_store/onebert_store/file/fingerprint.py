"""The fingerprint of a training: a Bloom filter of the texts that a version was trained on, in its manifest."""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pydantic import Field

from onebert_store.file.fields import Strict
from onebert_store.file.manifest import Manifest

# 24 bits and 17 hashes a text: one of 100,000 other texts is taken for one that was trained on.
BITS, HASHES = 24, 17
LEAST_BITS = 2**11
# A fingerprint of more texts has a share of them, chosen by their hashes, so that it stays below 64 KiB.
MOST_TEXTS = 2**14


class Fingerprint(Strict):
    """The filter's bits in base64; one text of `one_of` is in it."""

    bits: str
    one_of: int = Field(1, ge=1)


class Overlap(NamedTuple):
    """Rows that a version was trained on.

    Attributes:
        known: of each row, whether its text is in the fingerprint.
        rows: how many rows were trained on; an estimate where the fingerprint has a share of the texts.
    """

    known: Sequence[bool]
    rows: int

    @property
    def note(self) -> list[str]:
        return overlap_note(self.rows, len(self.known))


def overlap_note(trained_on: int, rows: int) -> list[str]:
    """One sentence about rows that were trained on; none without any."""
    which = f"{trained_on:,} of {rows:,} rows have texts that the version was trained on"
    return [f"{which}: they are not held out, and scores on them are too high"] if trained_on else []


def fingerprint_of(texts: Iterable[Any], base_digest: str) -> dict[str, Any]:
    """The fingerprint of texts, or of pairs, as JSON values for a manifest's `training`."""
    hashes = sorted({_hash(text, base_digest) for text in texts})
    one_of = -(-len(hashes) // MOST_TEXTS) or 1
    chosen = [number for number in hashes if number % one_of == 0]
    bits = bytearray(-(-max(LEAST_BITS, len(chosen) * BITS) // 8))
    for number in chosen:
        for place in _places(number, 8 * len(bits)):
            bits[place // 8] |= 1 << place % 8
    return Fingerprint(bits=base64.b64encode(bits).decode(), one_of=one_of).model_dump(exclude_defaults=True)


def overlap_of(manifest: Manifest, texts: Sequence[Any]) -> Overlap:
    """The rows of texts, or of pairs, that a version was trained on; none if its file has no fingerprint."""
    try:
        fingerprint = Fingerprint.model_validate(manifest.training.get("fingerprint"))
        bits = base64.b64decode(fingerprint.bits, validate=True)
    except ValueError:  # of another form, or no base64
        return Overlap([False] * len(texts), 0)
    known = [_has(bits, fingerprint.one_of, _hash(text, manifest.base.digest)) for text in texts]
    return Overlap(known, min(len(texts), sum(known) * fingerprint.one_of))


def _has(bits: bytes, one_of: int, number: int) -> bool:
    inside = bool(bits) and number % one_of == 0
    return inside and all(bits[place // 8] >> place % 8 & 1 for place in _places(number, 8 * len(bits)))


def _hash(text: Any, salt: str) -> int:
    """128 bits of a text; of a pair, of both texts together."""
    content = json.dumps(text if isinstance(text, str) else list(text)).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=16, key=salt.encode()[:64]).digest(), "little")


def _places(number: int, size: int) -> Iterator[int]:
    """The bits of a text, by enhanced double hashing (Dillinger and Manolios 2004)."""
    first, step = divmod(number, 2**64)
    return ((first + each * step + (each**3 - each) // 6) % size for each in range(HASHES))
