"""The msgpack messages between front ends and the process with the engine, made and read; a transport carries them."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from onebert_encoder.answering.asked import Asked
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_server.access.keys import Holder, KeyRing
from onebert_server.access.principal import Principal
from onebert_server.answering.gateway import ShadowQuestions
from onebert_server.answering.tokenizing import Splitter
from onebert_server.engine.block import ENDED, REQUEST, SEQUENCE, Block, Ended
from onebert_server.observed import Carried, Kept
from onebert_server.versions.facts import Facts, Identity, Shadowing
from onebert_store.errors import OneBertError
from onebert_store.registry.keeping import Keeping

if TYPE_CHECKING:
    from onebert_server.telemetry.tracing import Tracing

Setup = dict[str, tuple[str, int]]
"""The bases of the process with the engine, by digest, for a front end: `Tokenizer.dumps`, and the most tokens."""


class RegistryKeys(msgspec.Struct, tag=True, frozen=True, array_like=True):
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


class BlockMessage(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: a `Block` with its arrays as bytes; no spans mean that none is sampled."""

    principals: list[Principal]
    requests: memoryview
    sequences: memoryview
    ids: memoryview
    spans: list[Carried | None]

    @classmethod
    def of(cls, block: Block) -> "BlockMessage":
        spans = [span.carried if span is not None and span.sampled else None for span in block.spans]
        arrays = bytes_of(block.requests), bytes_of(block.sequences), bytes_of(block.ids)
        return cls([*block.principals], *arrays, spans if any(spans) else [])

    def block(self, tracing: "Tracing | None") -> Block:
        """Returns the block without a copy of its arrays; raises ValueError if one of them ends within an element."""
        spans = [tracing.taken_up(carried) if carried else None for carried in self.spans] if tracing else []
        arrays = np.frombuffer(self.requests, REQUEST), np.frombuffer(self.sequences, SEQUENCE)
        return Block(self.principals, *arrays, np.frombuffer(self.ids, np.int32), spans)


class EndedMessage(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: an `Ended` with its arrays as bytes.

    `full` has principals whose every request would be refused at this moment, each with its error.
    """

    requests: memoryview
    outputs: memoryview
    logits: memoryview
    errors: list[Why]
    batches: dict[int, list[Carried]]
    full: list[tuple[Principal, Why]] = []

    @classmethod
    def of(
        cls, ended: Ended, tracing: "Tracing | None", full: Sequence[tuple[Principal, OneBertError]] = ()
    ) -> "EndedMessage":
        arrays = bytes_of(ended.requests), bytes_of(ended.outputs), bytes_of(ended.logits)
        batches = ended.batches.items()
        carried = {number: [*map(tracing.carried, spans)] for number, spans in batches} if tracing else {}
        whys = [(principal, why_of(error)) for principal, error in full]
        return cls(*arrays, [*map(why_of, ended.errors)], carried, whys)

    def ended(self, tracing: "Tracing | None") -> Ended:
        """Returns the answers without a copy of their arrays."""
        batches = dict[int, list[Any]]()
        for number, spans in self.batches.items() if tracing else ():
            batches[number] = [tracing.taken_up(span).context for span in spans] if tracing else []
        arrays = np.frombuffer(self.requests, ENDED), np.frombuffer(self.outputs, np.int32)
        return Ended(*arrays, np.frombuffer(self.logits, np.float32), [*map(error_of, self.errors)], batches)


class Withdraw(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: nobody waits for the requests with these numbers."""

    numbers: list[int]


class Shadowed(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: have shadows compute these questions."""

    questions: ShadowQuestions


ToGateway = BlockMessage | Withdraw | Shadowed
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


def keys(ring: KeyRing) -> RegistryKeys:
    """The registry keys that a ring has now."""
    return RegistryKeys(ring.registered, ring.is_open)


def exchange(ring: KeyRing, frame: RegistryKeys) -> None:
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


def bytes_of(array: NDArray[Any]) -> memoryview:
    """Returns an array as a field of a message."""
    return memoryview(array.tobytes())


def setup_of(splitters: Mapping[str, Splitter]) -> Setup:
    """Builds what a front end gets at its start."""
    return {base: (splitter.tokenizer.dumps(), splitter.max_length) for base, splitter in splitters.items()}


def splitters_of(setup: Setup) -> dict[str, Splitter]:
    """Rebuilds the splitters in a front end."""
    return {base: Splitter(Tokenizer.loads(tokenizer), most) for base, (tokenizer, most) in setup.items()}
