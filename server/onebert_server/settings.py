"""Everything that can be configured, as `ONEBERT_…` environment variables; docs/generate.py makes a page of it."""

import hashlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from onebert_server.installed import modules
from onebert_server.limits import BODY_BYTES, MAX_REQUEST_TIMEOUT
from onebert_server.loopback import is_loopback
from onebert_store.errors import InvalidSettings
from onebert_store.file.format import MAX_FILE_BYTES
from onebert_store.suggestion import suggestion

logger = logging.getLogger("onebert.settings")

KIB = 2**10
MIN_KEY_LENGTH = 16
PREFIX = "ONEBERT_"
# An attacker who can change plain HTTP could add keys that we accept, so only HTTPS or loopback.
JWKS_ADDRESS = re.compile(r"https://|http://(127\.0\.0\.1|localhost|\[::1\])(:|/)")

# The form that browsers send: no path, no slash at the end.
ORIGIN = re.compile(r"https?://[A-Za-z0-9.\[\]:-]+")

# The settings of a front end: of secrets only the digests of keys.
OF_FRONT_ENDS = {
    *("host", "port", "api_keys", "oidc_issuer", "oidc_audience", "oidc_jwks", "cors_origins", "request_timeout"),
    *("max_body_bytes", "max_upload_bytes", "drain_delay", "shutdown_timeout"),
    *("access_log", "task_metrics", "log_level", "front_ends"),
}
# Variables that the client commands read.
OF_COMMANDS = frozenset({"ONEBERT_URL", "ONEBERT_API_KEY"})
# Variables of earlier releases, which are constants now.
REMOVED = frozenset(
    f"{PREFIX}{name}"
    for name in ("BLOB_CACHE_BYTES", "ENGINE_TIMEOUT", "MAX_QUEUE_SEQUENCES", "MAX_QUEUE_TOKENS", "RECEIVE_TIMEOUT")
)
# Variables that Kubernetes sets in every container of a namespace with a service named "onebert…".
OF_KUBERNETES = re.compile(
    r"ONEBERT_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


class Settings(BaseSettings):
    """Settings of one server; flags of `onebert serve` win over the environment."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    #: Address to listen on. Beyond loopback the server needs `ONEBERT_API_KEYS` or `ONEBERT_OIDC_ISSUER`.
    host: str = "127.0.0.1"
    #: Port; 0 takes a free one, which the line printed at start names.
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    #: Hub ids, local folders or names of added bases (`onebert base list`), with commas; without it the default
    #: base.
    base: Annotated[tuple[str, ...], NoDecode] = ()
    #: Numbers that the encoder computes with. `auto` is bfloat16 if the processor or GPU multiplies it. `int8` is for
    #: CPUs, and faster than bfloat16 in full batches, at a small cost in accuracy
    #: ([decision 14](../decisions.md#14-products-in-8-bit-integers-on-request)). If the processor lacks `bfloat16`,
    #: or vectors do not agree with float32's at start, the server warns and takes float32.
    dtype: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    #: Whether a text gets the same bits alone and in every batch. `auto`: on a CPU with the fast kernels, at no cost.
    #: `True` or `1`: everywhere, or the server does not start; its cost on a GPU is not measured.
    batch_invariant: Literal["auto"] | bool = "auto"
    #: `cpu`, `cuda` or `cuda:N`; `auto` is a GPU if PyTorch finds one, else the CPU.
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    #: Threads of a forward pass; without it PyTorch decides.
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    #: Processes that take HTTP, tokenize and read answers beside the engine's
    #: ([operations](../guide/operations.md#front-ends)); 0: all in one process. Without it on a GPU half of the cores,
    #: eight at most, on a CPU 0.
    front_ends: Annotated[int, Field(ge=0, le=256)] | None = None
    #: Folder of the registry; one server at a time owns it.
    data_dir: Path = Path("onebert-data")
    # May hold a password.
    #: URL of the database with tasks, versions and aliases; without it `registry.sqlite3` in the data folder.
    #: `sqlite:///FILE` (`sqlite:////…` for an absolute path), or `postgresql://USER:PASSWORD@HOST/DATABASE`, which any
    #: number of servers may share, with the extra `postgresql`
    #: ([operations](../guide/operations.md#postgresql)).
    registry: Annotated[str | None, Field(repr=False)] = None
    #: Place of the delta files: `file:///FOLDER`, or `s3://BUCKET/PREFIX` with the extra `s3`
    #: ([operations](../guide/operations.md#files-in-a-bucket)). Without it the folder `blobs` of the data folder.
    blobs: str | None = None
    # SHA-256 of each key -> its name. Never the key itself: a dump of the settings then reveals nothing.
    #: Keys that may do everything, with commas between (make others with [`onebert
    #: keys`](../guide/keys.md#keys-of-the-registry)): each is the key itself, of at least 16 characters of
    #: ASCII, or `sha256:` and its hexadecimal SHA-256, also `NAME=sha256:…`: the trail and the access log call it
    #: `key:NAME`, else by its digits.
    api_keys: Annotated[dict[bytes, str], NoDecode, Field(repr=False)] = {}
    #: Also accept bearer tokens of this OIDC issuer, the value of `iss`
    #: ([keys](../guide/keys.md#tokens-of-an-oidc-issuer)), with the next two settings and the extra
    #: `oidc`.
    oidc_issuer: str | None = None
    #: A value that `aud` must hold.
    oidc_audience: str | None = None
    #: Place of the issuer's keys: a file, or an address that begins with `https://` (on loopback also `http://`).
    oidc_jwks: str | None = None
    #: Origins of web pages that may ask this server from a browser, with commas (`https://app.example.org`), or `*` if
    #: keys are needed; without it a browser lets only the server's own page.
    cors_origins: Annotated[tuple[str, ...], NoDecode] = ()
    #: Tokens of one forward pass at most; the server takes fewer if its measured speed allows.
    max_batch_tokens: Annotated[int, Field(ge=512)] = 8192
    #: Bytes that the folded rows of all versions in memory may take. The least recently used go when another needs
    #: room, and come back when they are asked for. Without it half of the memory of the machine or its container, on a
    #: GPU a quarter of the free memory.
    bank_bytes: Annotated[int, Field(ge=2**20)] | None = None
    #: Longest estimated wait that a request may find: the work of all principals that is served before it and with it,
    #: each principal counted up to the request's own. Further requests of the principal that holds most are refused
    #: first, with 429 or 503.
    max_queue_seconds: Annotated[float, Field(gt=0)] = 0.8
    #: Seconds within which a request is answered, or refused with 504, unless its `X-Request-Timeout` gives others.
    request_timeout: Annotated[float, Field(gt=0, le=MAX_REQUEST_TIMEOUT)] = 30.0
    #: Largest body of a JSON request.
    max_body_bytes: Annotated[int, Field(ge=KIB)] = BODY_BYTES
    #: Largest delta file, uploaded or made by the server; not above 64 MiB, the limit of the format.
    max_upload_bytes: Annotated[int, Field(ge=KIB, le=MAX_FILE_BYTES)] = MAX_FILE_BYTES
    #: Seconds between SIGTERM and the end of accepting: `/readyz` answers 503, and requests are still answered.
    drain_delay: Annotated[float, Field(ge=0)] = 0.0
    #: Seconds that running requests may take to finish, after the drain delay.
    shutdown_timeout: Annotated[float, Field(ge=0)] = 30.0
    #: `json`: a line on standard output for each request ([its fields](monitoring.md#access-log)).
    access_log: Literal["off", "json"] = "off"
    # Each task has at most sixty samples, one per label value and bucket.
    #: Versions that `/metrics` shows each for itself, the ones with the most traffic, with up to sixty numbers each;
    #: all others are `(other)`. 0 shows nothing of tasks.
    task_metrics: Annotated[int, Field(ge=0, le=10_000)] = 200
    #: Level of the log, which goes to standard error.
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("api_keys", mode="before")
    @classmethod
    def _digests(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return dict(_named_digest(key.strip()) for key in value.split(",") if key.strip())

    @field_validator("base", mode="before")
    @classmethod
    def _bases(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        names = [value] if Path(value).expanduser().is_dir() else value.split(",")
        return tuple(name.strip() for name in names if name.strip())

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _origins(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        origins = tuple(origin.strip() for origin in value.split(",") if origin.strip())
        if not all(origin == "*" or ORIGIN.fullmatch(origin) for origin in origins):
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
    def only_base(self) -> str | None:
        """The base of a command that computes with one, or None for the default base; raises InvalidSettings."""
        if len(self.base) > 1:
            raise InvalidSettings("ONEBERT_BASE: this command computes with one base; name it with --base")
        return self.base[0] if self.base else None

    @property
    def oidc(self) -> tuple[str, str, str] | None:
        """Issuer, audience, and where the issuer's keys are; None where no issuer is configured."""
        if self.oidc_issuer and self.oidc_audience and self.oidc_jwks:
            return self.oidc_issuer, self.oidc_audience, self.oidc_jwks
        return None


# One class for the core and every extension, so that a variable has one meaning.
ServerSettings: type[Settings] = type(
    "ServerSettings",
    (Settings, *(module.Settings for module in modules("settings"))),
    {"__module__": __name__, "__doc__": "The settings of the core and of every extension."},
)


def load_settings(**overrides: Any) -> Settings:
    """Reads the environment; overrides that are None do not count.

    Raises:
        InvalidSettings: names the setting and the rule, never the value; or a variable that is no setting.
    """
    for name in _misspelled():
        if name.upper() in REMOVED:
            logger.warning("%s is not a setting any more, and is ignored", name)
            continue
        there = (setting.upper() for setting in ServerSettings.model_fields)
        raise InvalidSettings(f"{name} is not a setting{suggestion(name[len(PREFIX) :], there, PREFIX + '{}')}")
    try:
        return ServerSettings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = f"ONEBERT_{str(first['loc'][0]).upper()}: " if first["loc"] else ""
        raise InvalidSettings(where + first["msg"].removeprefix("Value error, ")) from None


def _misspelled() -> Iterator[str]:
    """Variables that look like settings and are none; a typo must not leave a default in force unseen."""
    known = OF_COMMANDS | {f"{PREFIX}{field.upper()}" for field in ServerSettings.model_fields}
    for name in sorted(os.environ):
        if name.upper().startswith(PREFIX) and name.upper() not in known and not OF_KUBERNETES.fullmatch(name):
            yield name


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
