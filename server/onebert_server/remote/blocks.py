"""Converts blocks and ended requests to and from their wire messages; arrays cross as their bytes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from onebert_server.access.principal import Principal
from onebert_server.engine.block import ENDED, REQUEST, SEQUENCE, Block, Ended
from onebert_server.remote import wire
from onebert_store.errors import OneBertError

if TYPE_CHECKING:
    from onebert_server.telemetry.tracing import Tracing


def block_message(block: Block) -> wire.Block:
    """Builds the message of a block; its spans cross if one of them is sampled."""
    spans = [span.carried if span is not None and span.sampled else None for span in block.spans]
    arrays = bytes_of(block.requests), bytes_of(block.sequences), bytes_of(block.ids)
    return wire.Block([*block.principals], *arrays, spans if any(spans) else [])


def block_of(message: wire.Block, tracing: "Tracing | None") -> Block:
    """Reads a block without a copy of its arrays; raises ValueError if one of them ends within an element."""
    spans = [tracing.taken_up(carried) if carried else None for carried in message.spans] if tracing else []
    return Block(
        message.principals,
        np.frombuffer(message.requests, REQUEST),
        np.frombuffer(message.sequences, SEQUENCE),
        np.frombuffer(message.ids, np.int32),
        spans,
    )


def ended_message(
    ended: Ended, tracing: "Tracing | None", full: Sequence[tuple[Principal, OneBertError]] = ()
) -> wire.Ended:
    """Builds the message of requests that have ended; see `wire.Ended.full`."""
    arrays = bytes_of(ended.requests), bytes_of(ended.outputs), bytes_of(ended.logits)
    batches = {number: [tracing.carried(one) for one in of] for number, of in ended.batches.items()} if tracing else {}
    errors = [wire.why_of(error) for error in ended.errors]
    return wire.Ended(*arrays, errors, batches, [(principal, wire.why_of(error)) for principal, error in full])


def ended_of(message: wire.Ended, tracing: "Tracing | None") -> Ended:
    """Reads the message without a copy of its arrays."""
    batches = message.batches.items() if tracing else ()
    return Ended(
        np.frombuffer(message.requests, ENDED),
        np.frombuffer(message.outputs, np.int32),
        np.frombuffer(message.logits, np.float32),
        [wire.error_of(why) for why in message.errors],
        {number: [tracing.taken_up(one).context for one in of] for number, of in batches} if tracing else {},
    )


def bytes_of(array: NDArray[Any]) -> memoryview:
    """Returns an array as a field of a message."""
    return memoryview(array.tobytes())
