"""The messages between front ends and the engine's process, as msgpack; `channel` brings them there."""

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

# Principals that are kept in the form of the other side.
MAX_PRINCIPALS = 1024


class Setup(msgspec.Struct, frozen=True):
    """The configuration of a front end, which it reads from standard input.

    Attributes:
        listeners: the descriptors of the bound sockets.
        engine_path, app_path: the Unix sockets of the engine's process, for `Compute` and for forwarded requests.
        tokenizer: of `Tokenizer.dumps`.
        max_length: tokens of the longest sequence that the base takes.
        api_keys: digests with whose they are; this and what follows are of Settings.
        oidc: issuer, audience and where the issuer's keys are; None where there is no issuer.
        cors_origins: of pages that may ask from within a browser.
    """

    listeners: list[int]
    engine_path: str
    app_path: str
    tokenizer: str
    max_length: int
    api_keys: dict[bytes, str]
    oidc: tuple[str, str, str] | None
    cors_origins: tuple[str, ...]
    max_body_bytes: int
    receive_timeout: float
    request_timeout: float
    engine_timeout: float
    shutdown_timeout: float
    log_level: str
    access_log: bool
    counts_answers: bool


class Connected(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: it listens once it was told which keys are taken."""


class Accepting(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: it accepts connections now."""


class Drain(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: say in every answer that the connection ends."""


class Stop(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: accept nothing more, answer the requests that are there, and end."""


class SplitInput(msgspec.Struct, frozen=True, array_like=True):
    """One input: the ids of its halves, without special tokens and not yet cut, and how long the halves are in all."""

    ids: list[list[int]]
    lengths: list[int]


class Asking(msgspec.Struct, frozen=True, array_like=True):
    """Who asks; see Principal, of which the engine's process needs no more."""

    name: str
    scopes: frozenset[Scope]
    tasks: tuple[str, ...]
    requests: float | None
    tokens: float | None


class KeyHolder(msgspec.Struct, frozen=True, array_like=True):
    """Whose a key of the registry is; see Holder."""

    digest: bytes
    asking: Asking
    default_task: str | None
    expires: float | None


class Keys(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: the keys of the registry that are taken from now on, and no others."""

    holders: list[KeyHolder]
    is_open: bool


class Compute(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: resolve, cut and compute, and answer with `Logits` or `Refused`.

    Attributes:
        number: the front end's own number of this question, which the reply repeats.
        principal, request_id: of the request's context; the front end has seen what the principal proved itself by.
        remaining, waited: seconds until its deadline, and since it came: the two processes may have different clocks.
        refs: a reference for each input; None is the live version of every task that takes such an input.
        pair: whether the input is a pair; read where there are no references.
        asked: what each answer shall be like.
        inputs: the distinct inputs.
        order: for each reference, which input; empty where the only input is for all.
        min_seq: the registry's change that the answer has to know of.
        span: of the request, where that is sampled; see `Observed.carried`.
        each: whether what is wrong with one question is said of that one alone.
        counted: whether quotas have counted the request already.
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
    """From a front end: nobody waits for the reply with this number any more."""

    number: int


class SequenceLogits(msgspec.Struct, frozen=True, array_like=True):
    """One sequence that was run: the pieces of each half that it kept, its role, and its float32 logits."""

    kept: tuple[tuple[int, int], ...]
    role: str
    logits: bytes


class Why(msgspec.Struct, frozen=True, array_like=True):
    """A typed error, as it is said of one question."""

    status: int
    code: str
    title: str
    detail: str
    retry_after: int | None


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What one version (`task@number`) made of the input with this index in the question's order.

    Attributes:
        missed: why there is nothing; then `version` is the reference as it was asked.
    """

    version: str
    input: int
    computed: list[SequenceLogits]
    missed: Why | None = None


class Logits(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: what was computed, and which versions it learns and forgets with it.

    Attributes:
        number: of the question.
        answers: one for each reference, in order.
        learned: versions among the answers that the front end does not know.
        forgotten: versions that the front end need not keep; none of the answers.
        seconds: that each phase of the question took, by its name.
    """

    number: int
    answers: list[Answer]
    learned: list[Facts]
    forgotten: list[str]
    seconds: dict[str, float] = {}


class Refused(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: a typed error.

    Attributes:
        number: of the question.
        whatever: whether any question of its principal would be refused at this moment, however small.
    """

    number: int
    status: int
    code: str
    title: str
    detail: str
    retry_after: int | None
    whatever: bool = False


class InProgress(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: how many requests it is answering."""

    count: int


class RequestEnded(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: one request that it has answered, to be counted."""

    ended: Ended


class Line(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: a line of the access log."""

    line: bytes


FromEngine = Drain | Stop | Keys | Logits | Refused
FromFrontEnd = Connected | Accepting | Compute | Cancel | InProgress | RequestEnded | Line


def _as_json(value: Any) -> Any:
    """The form on the wire of what msgspec does not know: models of a manifest."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_none=True)
    raise TypeError(type(value))


def _from_json(kind: type, value: Any) -> Any:
    if issubclass(kind, BaseModel):
        return kind.model_validate(value)
    raise TypeError(kind)


encode = msgspec.msgpack.Encoder(enc_hook=_as_json).encode


def decoder(kind: Any) -> Callable[[bytes | bytearray], Any]:
    """What reads messages of a kind, or of a union of kinds."""
    return msgspec.msgpack.Decoder(kind, dec_hook=_from_json).decode


@lru_cache(MAX_PRINCIPALS)
def asking(principal: Principal) -> Asking:
    """A principal as it goes over the wire."""
    quotas = principal.quotas
    return Asking(principal.name, principal.scopes, principal.tasks, quotas.requests, quotas.tokens)


@lru_cache(MAX_PRINCIPALS)
def principal(asking: Asking) -> Principal:
    """Who asks, from the wire; the same object for the same content, since its globs are compiled once."""
    quotas = Quotas(requests=asking.requests, tokens=asking.tokens)
    return Principal(asking.name, asking.scopes, asking.tasks, quotas=quotas)


def keys(ring: KeyRing) -> Keys:
    """The keys of the registry that a ring has now."""
    holders = [
        KeyHolder(digest, asking(holder.principal), holder.principal.default_task, holder.expires)
        for digest, holder in ring.registered.items()
    ]
    return Keys(holders, ring.is_open)


def exchange(ring: KeyRing, frame: Keys) -> None:
    """Has a ring take the keys that a frame has."""
    holders = {
        one.digest: Holder(replace(principal(one.asking), default_task=one.default_task), one.expires)
        for one in frame.holders
    }
    ring.replace(holders, frame.is_open)
