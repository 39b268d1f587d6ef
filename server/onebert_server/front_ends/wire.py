"""The msgpack messages between front ends and the engine process; `channel` carries them."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import msgspec
from pydantic import BaseModel

from onebert_encoder.answering.asked import Asked
from onebert_server.access.keys import Holder, KeyRing
from onebert_server.access.principal import Principal
from onebert_server.telemetry.observed import Ended
from onebert_server.versions.facts import Facts
from onebert_store.registry.grants import Quotas, Scope

# Cached conversions of principals.
MAX_PRINCIPALS = 1024


class Setup(msgspec.Struct, frozen=True):
    """The configuration that a front end reads from standard input.

    `listeners` are descriptors of bound sockets. `engine_path` and `app_path` are Unix sockets for `Compute` and for
    forwarded requests. `tokenizer` is the output of `Tokenizer.dumps`, and `max_length` is in tokens.
    """

    listeners: list[int]
    engine_path: str
    app_path: str
    tokenizer: str
    max_length: int
    settings: dict[str, Any]


class Connected(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: connected; it listens after it has received `Keys`."""


class Accepting(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: accepts connections now."""


class Drain(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: send `Connection: close` with every reply."""


class Stop(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: stop accepting, finish the open requests, and exit."""


class SplitInput(msgspec.Struct, frozen=True, array_like=True):
    """One input: the token ids of its halves, without special tokens, and the untruncated length of each half."""

    ids: list[list[int]]
    lengths: list[int]


class Asking(msgspec.Struct, frozen=True, array_like=True):
    """The fields of Principal that the engine process needs."""

    name: str
    scopes: frozenset[Scope]
    tasks: tuple[str, ...]
    requests: float | None
    tokens: float | None


class KeyHolder(msgspec.Struct, frozen=True, array_like=True):
    """A registry key's owner; see Holder."""

    digest: bytes
    asking: Asking
    default_task: str | None
    expires: float | None


class Keys(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: the complete set of valid registry keys."""

    holders: list[KeyHolder]
    is_open: bool


class Compute(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: resolve, truncate, compute, and reply with `Logits` or `Refused`.

    Attributes:
        number: the reply repeats it.
        remaining, waited: seconds until the deadline and since arrival; the processes' clocks may differ.
        refs: one reference per input; None means the live version of every task that accepts such an input.
        pair: whether the input is a pair; read only if `refs` is None.
        order: the input index for each reference; empty if all references share the only input.
        min_seq: the reply must reflect the registry up to this change.
        each: an error concerns its own reference only instead of the whole reply.
        counted: quotas have already counted the request.
    """

    number: int
    principal: Asking
    request_id: str
    remaining: float
    waited: float
    refs: list[str] | None
    pair: bool
    asked: Asked
    inputs: list[SplitInput]
    order: list[int]
    min_seq: int = 0
    span: tuple[str, str] | None = None
    each: bool = False
    counted: bool = False


class Cancel(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: the question with this number has been cancelled."""

    number: int


class SequenceLogits(msgspec.Struct, frozen=True, array_like=True):
    """One computed sequence: the kept pieces of each half, its role, and its float32 logits."""

    kept: tuple[tuple[int, int], ...]
    role: str
    logits: bytes


class Why(msgspec.Struct, frozen=True, array_like=True):
    """A typed error of a whole question or of one reference."""

    status: int
    code: str
    title: str
    detail: str
    retry_after: int | None


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """One version's (`task@number`) result for the input at this index; with `missed`, `version` is the reference."""

    version: str
    input: int
    computed: list[SequenceLogits]
    missed: Why | None = None


class Logits(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: the reply to a question, with one answer per reference, in order.

    `learned` has facts that the front end lacks, `forgotten` versions that it must evict (never one in `answers`).
    """

    number: int
    answers: list[Answer]
    learned: list[Facts]
    forgotten: list[str]
    seconds: dict[str, float] = {}


class Refused(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: a typed error; `whatever`: any question of this principal would be refused at this moment."""

    number: int
    why: Why
    whatever: bool = False


class InProgress(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: the number of open requests."""

    count: int


class RequestEnded(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: a finished request to count."""

    ended: Ended


class Line(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: a line of the access log."""

    line: bytes


FromEngine = Drain | Stop | Keys | Logits | Refused
FromFrontEnd = Connected | Accepting | Compute | Cancel | InProgress | RequestEnded | Line


def _as_json(value: Any) -> Any:
    """Encodes the types that msgspec does not know: pydantic models of a manifest."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_none=True)
    raise TypeError(type(value))


def _from_json(kind: type, value: Any) -> Any:
    if issubclass(kind, BaseModel):
        return kind.model_validate(value)
    raise TypeError(kind)


encode = msgspec.msgpack.Encoder(enc_hook=_as_json).encode


def decoder(kind: Any) -> Callable[[bytes | bytearray], Any]:
    """Returns a function that decodes a message type or a union of them."""
    return msgspec.msgpack.Decoder(kind, dec_hook=_from_json).decode


@lru_cache(MAX_PRINCIPALS)
def asking(principal: Principal) -> Asking:
    """Converts a principal to its wire form."""
    quotas = principal.quotas
    return Asking(principal.name, principal.scopes, principal.tasks, quotas.requests, quotas.tokens)


@lru_cache(MAX_PRINCIPALS)
def principal(asking: Asking) -> Principal:
    """Converts back to a Principal; cached, because a Principal compiles its globs once."""
    quotas = Quotas(requests=asking.requests, tokens=asking.tokens)
    return Principal(asking.name, asking.scopes, asking.tasks, quotas=quotas)


def keys(ring: KeyRing) -> Keys:
    """The registry keys that a ring has now."""
    holders = [
        KeyHolder(digest, asking(holder.principal), holder.principal.default_task, holder.expires)
        for digest, holder in ring.registered.items()
    ]
    return Keys(holders, ring.is_open)


def exchange(ring: KeyRing, frame: Keys) -> None:
    """Replaces a ring's registry keys with the keys of a frame."""
    holders = {
        one.digest: Holder(replace(principal(one.asking), default_task=one.default_task), one.expires)
        for one in frame.holders
    }
    ring.replace(holders, frame.is_open)
