"""The msgpack messages between front ends and the process with the engine; a transport carries them."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pydantic import BaseModel

from onebert_encoder.answering.asked import Asked
from onebert_server.access.keys import Holder, KeyRing
from onebert_server.access.principal import Principal
from onebert_server.observed import Kept
from onebert_server.versions.facts import Facts
from onebert_store.registry.keeping import Keeping

Setup = dict[str, tuple[str, int]]
"""The bases of the process with the engine, by digest, for a front end: `Tokenizer.dumps`, and the most tokens."""


class SplitInput(msgspec.Struct, frozen=True, array_like=True):
    """One input: the token ids of its halves, without special tokens, and the untruncated length of each half."""

    ids: list[list[int]]
    lengths: list[int]


class Keys(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: the complete set of valid registry keys, by their SHA-256."""

    holders: Mapping[bytes, Holder]
    is_open: bool


class Compute(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: resolve, truncate, compute, and reply with `Logits` or `Refused`.

    Attributes:
        remaining, waited: seconds until the deadline and since arrival; the processes' clocks may differ.
        refs: one reference per input; None means the live version of every task that accepts such an input.
        inputs: distinct inputs, as the tokenizer of each base has split them, by its digest.
        pair: whether the input is a pair; read only if `refs` is None.
        order: the input index for each reference; empty if all references share the only input.
        min_seq: the reply must reflect the registry up to this change.
        each: an error concerns its own reference only instead of the whole reply.
        counted: quotas have already counted the request.
        headers: the request's headers, or null, of those names that the front end knows aliases to choose by.
    """

    principal: Principal
    request_id: str
    remaining: float
    waited: float
    refs: list[str] | None
    pair: bool
    asked: Asked
    inputs: dict[str, list[SplitInput]]
    order: list[int]
    min_seq: int = 0
    span: tuple[str, str] | None = None
    each: bool = False
    counted: bool = False
    headers: dict[str, bytes | None] = {}


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
    """One version's (`task@number`) result for the input at this index; with `missed`, `version` is the reference.

    `keeping` is how much the front end keeps of such answers.
    """

    version: str
    input: int
    computed: list[SequenceLogits]
    missed: Why | None = None
    keeping: Keeping | None = None


class Logits(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: one answer per reference, in order, and the facts of every version that answered."""

    answers: list[Answer]
    facts: list[Facts]
    seconds: dict[str, float] = {}


class Refused(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: a typed error; `whatever`: any question of this principal would be refused at this moment."""

    why: Why
    whatever: bool = False


class Samples(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: answers that are kept, and how many it has dropped since its last message."""

    kept: list[Kept]
    dropped: int


class Request(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: a request for the control plane, whose key, head and body's length have been checked.

    Attributes:
        scope: fields of the ASGI scope.
        headers: the raw fields of the head, in their order.
        remaining: seconds until the deadline.
        min_seq: the answer must reflect the registry up to this change.
    """

    scope: dict[str, Any]
    headers: list[tuple[bytes, bytes]]
    principal: Principal
    request_id: str
    remaining: float
    min_seq: int


class Matched(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: the template of the route that answers; comes before body and response."""

    route: str


class Response(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: a response's head, and its problem's code, if any."""

    status: int
    headers: list[tuple[bytes, bytes]]
    problem: str | None


class Part(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """A part of the body of a relayed request or response; `refusal`: the rest of a request's cannot be read."""

    body: bytes
    more: bool
    refusal: tuple[int, str] | None = None


Relayed = Matched | Response | Part
"""The replies to a relayed request."""


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


def keys(ring: KeyRing) -> Keys:
    """The registry keys that a ring has now."""
    return Keys(ring.registered, ring.is_open)


def exchange(ring: KeyRing, frame: Keys) -> None:
    """Replaces a ring's registry keys with the keys of a frame."""
    ring.replace(frame.holders, frame.is_open)
