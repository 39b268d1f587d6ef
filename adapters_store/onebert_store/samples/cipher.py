"""Encrypts texts by Fernet (AES-128-CBC with HMAC-SHA256, https://github.com/fernet/spec) with keys of the operator."""

import base64
import hmac
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from onebert_store.errors import InvalidSettings, SamplesKeyNeeded

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

_IDENTIFIERS = b"onebert: identifiers of feedback"


class Cipher:
    """Encrypts with the first of the keys and decrypts with any; without keys both raise SamplesKeyNeeded.

    Attributes:
        naming: the key of a new store's default identifiers.
        has_later_keys: whether there is a key that only decrypts.
    """

    def __init__(self, keys: Sequence[str] = ()) -> None:
        """Raises InvalidSettings if a key is malformed, or the package `cryptography` is missing."""
        self._fernet = _fernet(keys) if keys else None
        self._first = _fernet(keys[:1]) if keys else None
        self.has_later_keys = len(keys) > 1
        # Another key than the ones that encrypt, derived by the label.
        self.naming = hmac.digest(base64.urlsafe_b64decode(keys[0]), _IDENTIFIERS, "sha256") if keys else b""

    @property
    def has_key(self) -> bool:
        return self._fernet is not None

    def encrypt(self, value: Any) -> str:
        """Returns the token of a JSON value."""
        return self._required().encrypt(json.dumps(value).encode()).decode()

    def decrypt(self, token: str) -> Any:
        """Returns the value; raises SamplesKeyNeeded if none of the keys is the one that encrypted it, else ValueError.

        A ValueError says that the token is damaged: no key has encrypted it.
        """
        fernet = self._required()
        from cryptography.fernet import InvalidToken  # noqa: PLC0415 - see `_fernet`

        try:
            return json.loads(fernet.decrypt(token))
        except InvalidToken:
            check_token(token)
            raise SamplesKeyNeeded("ONEBERT_SAMPLES_KEY lacks the key that a kept text was encrypted with") from None

    def renewed(self, token: str | None) -> str | None:
        """Returns a token with the first key in place of another one; as it is if no key decrypts it, or the first."""
        if token is None or self._first is None:
            return token
        from cryptography.fernet import InvalidToken  # noqa: PLC0415 - see `_fernet`

        try:
            self._first.decrypt(token)
        except InvalidToken:
            with suppress(InvalidToken):
                return self._required().rotate(token).decode()
        return token

    def _required(self) -> "MultiFernet":
        if self._fernet is None:
            raise SamplesKeyNeeded("this server keeps no texts: ONEBERT_SAMPLES_KEY is not set")
        return self._fernet


def check_token(token: str) -> tuple[str, ...]:
    """Returns no texts; raises ValueError if no key can have made the token: a version, a time, blocks, an HMAC."""
    data = base64.urlsafe_b64decode(token)
    if data[:1] != b"\x80" or len(data) < 73 or len(data) % 16 != 57 % 16:
        raise ValueError("the token is damaged")
    return ()


def _fernet(keys: Sequence[str]) -> "MultiFernet":
    # Imported here: a server that keeps no texts needs no cryptography.
    try:
        from cryptography.fernet import Fernet, MultiFernet  # noqa: PLC0415
    except ImportError as error:
        raise InvalidSettings(
            "ONEBERT_SAMPLES_KEY needs cryptography: pip install '.[samples]' in the checkout"
        ) from error
    try:
        return MultiFernet([Fernet(key) for key in keys])
    except ValueError:
        raise InvalidSettings("ONEBERT_SAMPLES_KEY: a key is 32 bytes in URL-safe base64, 44 characters") from None
