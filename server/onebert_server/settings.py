"""Everything that can be configured, as `ONEBERT_…` environment variables; docs/generate.py makes a page of it."""

import hashlib
import os
import re
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from onebert_server.limits import BODY_BYTES, MAX_REQUEST_TIMEOUT
from onebert_store.errors import InvalidSettings
from onebert_store.file.format import MAX_FILE_BYTES
from onebert_store.meant import meant

KIB = 2**10
MIN_KEY_LENGTH = 16
PREFIX = "ONEBERT_"
# An attacker who can change plain HTTP could add keys that we accept, so only HTTPS or loopback.
JWKS_ADDRESS = re.compile(r"https://|http://(127\.0\.0\.1|localhost|\[::1\])(:|/)")

# The form that browsers send: no path, no slash at the end.
ORIGIN = re.compile(r"https?://[A-Za-z0-9.\[\]:-]+")

# Variables that the client commands read.
OF_COMMANDS = frozenset({"ONEBERT_URL", "ONEBERT_API_KEY"})
# Variables that Kubernetes sets in every container of a namespace with a service named "onebert…".
OF_KUBERNETES = re.compile(
    r"ONEBERT_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


class Settings(BaseSettings):
    """Settings of one server; flags of `onebert serve` win over the environment."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    base: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    batch_invariant: Literal["auto"] | bool = "auto"
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    front_ends: Annotated[int, Field(ge=0, le=256)] = 0
    data_dir: Path = Path("onebert-data")
    # May hold a password.
    registry: Annotated[str | None, Field(repr=False)] = None
    blobs: str | None = None
    blob_cache_bytes: Annotated[int, Field(ge=0)] = 2**30
    # SHA-256 of each key -> its name. Never the key itself: a dump of the settings then reveals nothing.
    api_keys: Annotated[dict[bytes, str], NoDecode, Field(repr=False)] = {}
    oidc_issuer: str | None = None
    oidc_audience: str | None = None
    oidc_jwks: str | None = None
    cors_origins: Annotated[tuple[str, ...], NoDecode] = ()
    max_batch_tokens: Annotated[int, Field(ge=512)] = 8192
    bank_bytes: Annotated[int, Field(ge=2**20)] | None = None
    # The smallest queue fits the largest request that the schemas allow: 1024 sequences of 512 tokens.
    max_queue_sequences: Annotated[int, Field(ge=1024)] = 16384
    max_queue_tokens: Annotated[int, Field(ge=2**19)] = 2**20
    max_queue_seconds: Annotated[float, Field(gt=0)] = 0.8
    request_timeout: Annotated[float, Field(gt=0, le=MAX_REQUEST_TIMEOUT)] = 30.0
    engine_timeout: Annotated[float, Field(gt=0)] = 60.0
    max_body_bytes: Annotated[int, Field(ge=KIB)] = BODY_BYTES
    max_upload_bytes: Annotated[int, Field(ge=KIB, le=MAX_FILE_BYTES)] = MAX_FILE_BYTES
    receive_timeout: Annotated[float, Field(gt=0)] = 60.0
    drain_delay: Annotated[float, Field(ge=0)] = 0.0
    shutdown_timeout: Annotated[float, Field(ge=0)] = 30.0
    access_log: Literal["off", "json"] = "off"
    # Each task has at most sixty samples, one per label value and bucket.
    task_metrics: Annotated[int, Field(ge=0, le=10_000)] = 200
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("api_keys", mode="before")
    @classmethod
    def _digests(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return dict(_named_digest(key.strip()) for key in value.split(",") if key.strip())

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _origins(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        origins = tuple(one.strip() for one in value.split(",") if one.strip())
        if not all(one == "*" or ORIGIN.fullmatch(one) for one in origins):
            raise ValueError("an origin is scheme, host and port alone, such as https://example.org")
        return origins

    @model_validator(mode="after")
    def _every_page_only_with_keys(self) -> "Settings":
        if "*" in self.cors_origins and not self.api_keys and self.oidc is None:
            raise ValueError("without API keys, every web page could ask this server; name the origins that may")
        return self

    @model_validator(mode="after")
    def _open_only_with_keys(self) -> "Settings":
        if not self.api_keys and self.oidc is None and not is_loopback(self.host):
            raise ValueError("listening beyond loopback needs API keys; set ONEBERT_API_KEYS")
        return self

    @model_validator(mode="after")
    def _oidc_is_whole(self) -> "Settings":
        given = self.oidc_issuer, self.oidc_audience, self.oidc_jwks
        if any(given) and not all(given):
            raise ValueError("OIDC takes ONEBERT_OIDC_ISSUER, ONEBERT_OIDC_AUDIENCE and ONEBERT_OIDC_JWKS together")
        if self.oidc_jwks and "://" in self.oidc_jwks and not JWKS_ADDRESS.match(self.oidc_jwks):
            raise ValueError("ONEBERT_OIDC_JWKS is a file, or an address that begins with https://")
        return self

    @property
    def oidc(self) -> tuple[str, str, str] | None:
        """Issuer, audience, and where the issuer's keys are; None where no issuer is configured."""
        if self.oidc_issuer and self.oidc_audience and self.oidc_jwks:
            return self.oidc_issuer, self.oidc_audience, self.oidc_jwks
        return None


def load_settings(**overrides: Any) -> Settings:
    """Reads the environment; overrides that are None do not count.

    Raises:
        InvalidSettings: names the setting and the rule, never the value; or a variable that is no setting.
    """
    for name in _misspelled():
        there = (setting.upper() for setting in Settings.model_fields)
        raise InvalidSettings(f"{name} is not a setting{meant(name[len(PREFIX) :], there, PREFIX + '{}')}")
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = f"ONEBERT_{str(first['loc'][0]).upper()}: " if first["loc"] else ""
        raise InvalidSettings(where + first["msg"].removeprefix("Value error, ")) from None


def _misspelled() -> Iterator[str]:
    """Variables that look like settings and are none; a typo must not leave a default in force unseen."""
    known = OF_COMMANDS | {f"{PREFIX}{field.upper()}" for field in Settings.model_fields}
    for name in sorted(os.environ):
        if name.upper().startswith(PREFIX) and name.upper() not in known and not OF_KUBERNETES.fullmatch(name):
            yield name


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on the host."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _named_digest(key: str) -> tuple[bytes, str]:
    """The SHA-256 of a key, and whose it is: of one without a name its first digits."""
    name, _, named = key.partition("=")
    if named.startswith("sha256:"):
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,62}", name):
            raise ValueError("the name of a key begins with a-z or 0-9; up to 62 of these, '.', '_' and '-' follow")
        return _key_digest(named), name
    digest = _key_digest(key)
    return digest, digest.hex()[:16]


def _key_digest(key: str) -> bytes:
    if not key.startswith("sha256:"):
        if len(key) < MIN_KEY_LENGTH:
            raise ValueError(f"a key has at least {MIN_KEY_LENGTH} characters")
        if not re.fullmatch(r"[ -~]+", key):
            raise ValueError("a key is made of printable ASCII: clients send other characters in different ways")
        return hashlib.sha256(key.encode()).digest()
    if not re.fullmatch(r"[0-9a-f]{64}", key[7:]):
        raise ValueError("a key that starts with sha256: goes on with 64 hexadecimal digits")
    return bytes.fromhex(key[7:])
