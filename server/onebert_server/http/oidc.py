"""Verifies OIDC bearer tokens of the configured issuer and maps their claims to principals."""

import asyncio
import json
import logging
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from onebert_server.access.principal import Principal
from onebert_server.fairness.places import Places
from onebert_server.fairness.rates import Attempts
from onebert_server.loopback import direct_mounts
from onebert_store.errors import InvalidInput
from onebert_store.registry.grants import UNLIMITED, Grant, Quotas, Scope, check_grant

logger = logging.getLogger("onebert.oidc")

T = TypeVar("T")

# Accepted signature algorithms, so that no token can choose a weaker one or a shared secret.
ALGORITHMS = ("RS256", "PS256", "ES256", "Ed25519")
# Claims with the bearer's permissions; identity providers map groups and roles to them.
SCOPES_CLAIM, TASKS_CLAIM, DEFAULT_TASK_CLAIM = "onebert_scopes", "onebert_tasks", "onebert_default_task"
QUOTAS_CLAIM = "onebert_quotas"
# Seconds of tolerated clock skew.
LEEWAY = 30
# Seconds between two fetches of the issuer's keys, and the minimum between two fetches caused by unknown keys.
KEYS_EVERY, KEYS_AT_MOST_EVERY = 300.0, 10.0
# Seconds for a whole fetch: a token with an unknown key waits for it. And the maximum size of the key set.
FETCH_TIMEOUT, MAX_JWKS_BYTES = 5.0, 2**20
# Cached tokens, valid and refused ones; maximum characters of a token, and of a subject.
MAX_REMEMBERED, MAX_TOKEN, MAX_SUBJECT = 4096, 8192, 200


class Tokens:
    """Authenticates OIDC tokens by `iss`, `aud` and signature.

    `jwks` is a file or an https:// address (http:// on loopback); `clock` returns seconds since 1970.
    """

    def __init__(self, issuer: str, audience: str, jwks: str, clock: Callable[[], float] = time.time) -> None:
        self._jwks = jwks
        self._clock = clock
        self._keys: KeySet | None = None
        self._read_at = self._read_next = float("-inf")
        self._reading = asyncio.Lock()
        self._refreshing: asyncio.Task[None] | None = None
        # One: a flood of forged tokens takes one thread, which addresses get round robin.
        self._verifying, self._places = ThreadPoolExecutor(1, "onebert-tokens"), Places(1)
        self._attempts = Attempts()
        self._finding: dict[bytes, asyncio.Task[Principal | None]] = {}
        self._registry = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
        self._claims = jwt.JWTClaimsRegistry(
            now=lambda: int(clock()),
            leeway=LEEWAY,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": audience},
            sub={"essential": True},
            exp={"essential": True},
        )
        # By the SHA-256 of a token, the latest last: the principal of a verified one, and until when another is refused
        # unseen. Both are cleared when the keys change.
        self._remembered: OrderedDict[bytes, Principal] = OrderedDict()
        self._refused: OrderedDict[bytes, float] = OrderedDict()

    async def find(self, token: str, digest: bytes, address: str) -> Principal | None:
        """Returns the principal of a valid token, else None; verifies an unknown one off the event loop.

        Raises TooManyAttempts if too many other tokens from the address were invalid. Each counts once, however often
        it is sent: whoever comes through a proxy shares its address with clients whose token is over.
        """
        if self._clock() >= self._read_next and not self._reading.locked():
            self._refreshing = asyncio.create_task(self._read(self._read_at))
        if (principal := self._remembered.get(digest)) and self._clock() < principal.expires:
            self._remembered.move_to_end(digest)
            return principal
        # Reject malformed tokens before the library sees them.
        if token.count(".") != 2 or len(token) > MAX_TOKEN or not token.isascii():
            return None
        if self._clock() < self._refused.get(digest, 0.0):
            return None
        if digest not in self._finding:
            self._attempts.count(address, time.monotonic())
            self._finding[digest] = asyncio.create_task(self._find(token, digest, address))
        # Shielded: others wait, too.
        return await asyncio.shield(self._finding[digest])

    async def _find(self, token: str, digest: bytes, address: str) -> Principal | None:
        try:
            principal, keys = await self._by_latest_keys(token, address)
        finally:
            del self._finding[digest]
        if principal is None:
            _remember(self._refused, digest, self._clock() + KEYS_AT_MOST_EVERY)
            return None
        self._attempts.give_back(address)
        # Not by keys that were withdrawn meanwhile.
        if keys is self._keys:
            _remember(self._remembered, digest, principal)
        return principal

    async def _by_latest_keys(self, token: str, address: str) -> tuple[Principal | None, KeySet | None]:
        """Verifies a token, by the issuer's new keys if it names one of them; returns its principal and the keys."""
        # A slow issuer delays only requests before the first fetch, or with an unknown key.
        if self._keys is None and self._refreshing is not None:
            await asyncio.shield(self._refreshing)
        read_at, keys, principal = self._read_at, self._keys, None
        try:
            principal = await self._verified(token, keys, address)
        except InvalidKeyIdError:
            # The issuer may have a new key. Forged key ids cause no more than one fetch per KEYS_AT_MOST_EVERY.
            if self._clock() >= read_at + KEYS_AT_MOST_EVERY or self._reading.locked():
                await self._read(read_at)
            keys = self._keys
            with suppress(InvalidKeyIdError):
                principal = await self._verified(token, keys, address)
        return principal, keys

    async def _verified(self, token: str, keys: KeySet | None, address: str) -> Principal | None:
        await self._places.take(address)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._verifying, self._checked, token, keys)
        finally:
            self._places.give_back()

    def _checked(self, token: str, keys: KeySet | None) -> Principal | None:
        """Verifies a token that is not cached; returns None if it is invalid."""
        if keys is None:
            raise InvalidKeyIdError("no keys were read yet")
        try:
            decoded = jwt.decode(token, keys, algorithms=ALGORITHMS, registry=self._registry)
            self._claims.validate(decoded.claims)
            principal = principal_of(decoded.claims)
            # Libraries disagree on the last second.
            return principal if self._clock() < principal.expires else None
        except InvalidKeyIdError:
            raise
        # Unauthenticated clients control these bytes, and the library assumes the types of some fields. Any error
        # means an invalid token.
        except Exception:
            return None

    async def _read(self, before: float) -> None:
        """Fetches the issuer's keys, unless a fetch has finished since `before`; keeps the old keys on failure."""
        async with self._reading:
            if self._read_at != before:
                return
            every = KEYS_EVERY
            try:
                keys = KeySet.import_key_set(json.loads(await _fetch(self._jwks)))
            # Catch everything: the file or address is outside our control.
            except Exception as error:
                logger.error(
                    "the keys of the OIDC issuer cannot be read (%s): those read last stay", type(error).__name__
                )
                every = KEYS_AT_MOST_EVERY
            else:
                if self._keys is None or keys != self._keys:
                    # Tokens signed by a withdrawn key are no longer valid.
                    self._remembered.clear()
                    self._refused.clear()
                    self._keys = keys
            self._read_at = self._clock()
            self._read_next = self._read_at + every


def _remember(tokens: OrderedDict[bytes, T], digest: bytes, value: T) -> None:
    tokens[digest] = value
    if len(tokens) > MAX_REMEMBERED:
        tokens.popitem(last=False)


def principal_of(claims: Mapping[str, Any]) -> Principal:
    """Maps verified claims to a principal."""
    subject = claims["sub"]
    if not 0 < len(subject) <= MAX_SUBJECT or not subject.isprintable():
        raise ValueError("the subject is no name")
    known = {scope.value for scope in Scope}
    scopes = frozenset(Scope(scope) for scope in _texts(claims.get(SCOPES_CLAIM, [])) if scope in known)
    default_task = claims.get(DEFAULT_TASK_CLAIM)
    if not (default_task is None or isinstance(default_task, str)):
        raise InvalidInput("the default task is no text")
    tasks, quotas = tuple(_texts(claims.get(TASKS_CLAIM, []))), _quotas(claims.get(QUOTAS_CLAIM, {}))
    grant = Grant("oidc", scopes, tasks, default_task, quotas)
    check_grant(grant, None)
    rights = grant.scopes, grant.tasks, grant.default_task, grant.quotas
    return Principal(f"oidc:{subject}", *rights, expires=float(claims["exp"]) + LEEWAY)


def _texts(value: Any) -> list[str]:
    texts = value.split() if isinstance(value, str) else value
    if not (isinstance(texts, list) and all(isinstance(text, str) for text in texts)):
        raise InvalidInput("a claim is no list of texts")
    return texts


def _quotas(value: Any) -> Quotas:
    """Reads a claim with a number per quota; rejects unknown names, so that a typo cannot mean unlimited."""
    if not (isinstance(value, dict) and value.keys() <= vars(UNLIMITED).keys()):
        raise InvalidInput("a claim is no object of quotas")
    if not all(type(limit) in (int, float) for limit in value.values()):
        raise InvalidInput("a quota is no number")
    return Quotas(**value)


async def _fetch(jwks: str) -> bytes:
    """Reads the issuer's keys from a file or an address, without following redirects."""
    if "://" not in jwks:
        return await asyncio.to_thread(Path(jwks).read_bytes)
    trusted = await asyncio.to_thread(ssl.create_default_context)
    content = b""
    async with (
        asyncio.timeout(FETCH_TIMEOUT),
        httpx.AsyncClient(verify=trusted, mounts=direct_mounts(jwks)) as web,
        web.stream("GET", jwks) as answer,
    ):
        answer.raise_for_status()
        async for part in answer.aiter_bytes():
            content += part
            if len(content) > MAX_JWKS_BYTES:
                raise ValueError("the issuer's keys are too long")
    return content
