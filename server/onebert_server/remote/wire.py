"""The msgpack messages between front ends and the process with the engine; a transport carries them."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pydantic import BaseModel

from onebert_encoder.answering.asked import Asked
from onebert_server.access.keys import Holder, KeyRing
from onebert_server.access.principal import Principal
from onebert_server.answering.gateway import Computed
from onebert_server.observed import Carried, Kept
from onebert_server.versions.facts import Facts, Identity, Shadowing
from onebert_store.errors import OneBertError
from onebert_store.registry.keeping import Keeping

Setup = dict[str, tuple[str, int]]
"""The bases of the process with the engine, by digest, for a front end: `Tokenizer.dumps`, and the most tokens."""


class Keys(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: the complete set of valid registry keys, by their SHA-256."""

    holders: Mapping[bytes, Holder]
    is_open: bool


class Resolve(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: reply with `Versions`, once all are in memory, or with `Refused`.

    Attributes:
        remaining: seconds until the deadline; the processes' clocks may differ.
        refs, pair, asked, partial, only_facts: see `Wanted`.
        min_seq: the reply must reflect the registry up to this change.
        headers: the request's headers, or null, of those names that the front end knows aliases to choose by.
    """

    principal: Principal
    request_id: str
    remaining: float
    refs: list[str] | None
    pair: bool
    asked: Asked
    min_seq: int = 0
    headers: dict[str, bytes | None] = {}
    only_facts: bool = False
    partial: bool = False


class Why(msgspec.Struct, frozen=True, array_like=True):
    """A typed error."""

    status: int
    code: str
    title: str
    detail: str
    retry_after: int | None


class Found(msgspec.Struct, frozen=True, array_like=True):
    """A `Resolved`, with the identity of its version."""

    version: Identity
    host: int
    slot: int
    generation: int
    keeping: Keeping | None
    lasting: bool
    shadows: Shadowing | None


class Versions(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: the version of each reference, in order, and the facts of all of them.

    `missed` has the errors of other references by their places, if a partial answer is wanted.
    """

    found: list[Found]
    facts: list[Facts]
    missed: dict[int, Why] = {}


class Refused(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: the typed error of a `Resolve`."""

    why: Why


class Block(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: a `Block` of `engine/block.py` with its arrays as bytes; no spans mean that none is sampled."""

    principals: list[Principal]
    requests: memoryview
    sequences: memoryview
    ids: memoryview
    spans: list[Carried | None]


class Ended(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: an `Ended` of `engine/block.py` with its arrays as bytes.

    `full` has principals whose every request would be refused at this moment, each with its error.
    """

    requests: memoryview
    outputs: memoryview
    logits: memoryview
    errors: list[Why]
    batches: dict[int, list[Carried]]
    full: list[tuple[Principal, Why]] = []


class Withdraw(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: nobody waits for the requests with these numbers."""

    numbers: list[int]


class Shadowed(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: have shadows compute these questions."""

    questions: Computed


ToGateway = Block | Withdraw | Shadowed
"""What a front end sends to its gateway in the other process."""


class Samples(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: answers that are kept, and how many it has dropped since its last message."""

    kept: list[Kept]
    dropped: int


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


def why_of(error: OneBertError) -> Why:
    """Describes an error for another process."""
    return Why(error.status, error.code, error.title, error.detail, error.retry_after)


def error_of(why: Why) -> OneBertError:
    """Rebuilds an error; it has the code of its kind, and no kind."""
    error = OneBertError(why.detail)
    error.status, error.code, error.title, error.retry_after = why.status, why.code, why.title, why.retry_after
    return error
