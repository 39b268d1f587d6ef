"""Blocks: the requests that an edge submits in one turn of its event loop, and the answers of one batch, as arrays."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.text.tokens import SEGMENT_BITS
from onebert_server.access.principal import Principal
from onebert_store.errors import OneBertError

if TYPE_CHECKING:
    from onebert_server.engine.host import Host

# number: the edge's own, unique among the requests that it has under way. host: index among the engine's hosts.
# principal: index in `Block.principals`. sequences: how many of `Block.sequences`, in the order of the requests.
# requests: the quota of requests counts so many, 0 if it counted the client's request before. deadline, submitted: in
# seconds of `time.monotonic()`, which all processes of a machine share. waits: computed only in idle time (a shadow's).
REQUEST = np.dtype(
    [
        ("number", "i8"),
        ("host", "i4"),
        ("principal", "i4"),
        ("sequences", "i4"),
        ("requests", "i4"),
        ("deadline", "f8"),
        ("submitted", "f8"),
        ("waits", "?"),
    ]
)
# slot, generation: of the row in the host's bank. tokens: number of its `Block.ids`, in the order of the sequences.
# second: start of a pair's own sequence (siamese), else 0. text: equal numbers in one block are one text, cut alike,
# whose layers they share.
SEQUENCE = np.dtype([("slot", "i4"), ("tokens", "i4"), ("second", "i4"), ("text", "i4"), ("generation", "i8")])
# error: index in `Ended.errors`, -1 if answered. sequences: how many the request had; 0 with an error. began, ended:
# start of its first batch and end of its last one.
ENDED = np.dtype([("number", "i8"), ("error", "i4"), ("sequences", "i4"), ("began", "f8"), ("ended", "f8")])


class Block(NamedTuple):
    """Requests of one turn.

    Attributes:
        requests, sequences: REQUEST and SEQUENCE.
        ids: int32, a token's id, and its segment above `SEGMENT_BITS`.
        spans: of each request, if tracing is on.
    """

    principals: Sequence[Principal]
    requests: NDArray[Any]
    sequences: NDArray[Any]
    ids: NDArray[np.int32]
    spans: Sequence[Any] = ()


class Ended(NamedTuple):
    """Requests that have ended together.

    Attributes:
        requests: ENDED.
        outputs: int32, the number of logits of each sequence of the answered requests.
        logits: float32, of those sequences one after another; they need not be finite.
        batches: spans of their batches, by the numbers of the traced requests.
    """

    requests: NDArray[Any]
    outputs: NDArray[np.int32]
    logits: NDArray[np.float32]
    errors: Sequence[OneBertError] = ()
    batches: Mapping[int, Sequence[Any]] = {}


def questions(requests: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether a question begins with a request of a block.

    A question to several hosts has several requests, one after another: the first one's number counts for the quota,
    if any does. All of them wait, or none; half of them would be no answer.
    """
    begins = np.ones(len(requests), np.bool_)
    before, after = requests[:-1], requests[1:]
    begins[1:] = (after["requests"] > 0) | (after["host"] == before["host"])
    for name in ("principal", "deadline", "submitted"):
        begins[1:] |= after[name] != before[name]
    return begins


def validate(block: Block, hosts: "Sequence[Host]") -> None:
    """Raises ValueError for a damaged block.

    Every index in it must lie within what the block and the hosts hold, and sequences of one text must be alike.
    """
    requests, sequences = block.requests, block.sequences
    counts, tokens = requests["sequences"], sequences["tokens"]
    whole = (
        _most(requests["host"]) < len(hosts)
        and _most(requests["principal"]) < len(block.principals)
        and _most(counts) <= len(sequences)
        and int(counts.sum()) == len(sequences)
        and _most(tokens - 1) < len(block.ids)
        and int(tokens.sum()) == len(block.ids)
        and _most(sequences["text"]) < len(sequences)
        and len(block.spans) in (0, len(requests))
        and _share_texts(sequences, block.ids)
    )
    if not (whole and all(_fits(hosts[host], *arrays) for host, *arrays in _by_host(block, len(hosts)))):
        raise ValueError("a damaged block of requests")


def _share_texts(sequences: NDArray[Any], ids: NDArray[np.int32]) -> bool:
    """Whether sequences with one number of a text have its lengths and ids."""
    texts, tokens, second = (sequences[name] for name in ("text", "tokens", "second"))
    if np.array_equal(texts, np.arange(len(texts))):
        return True
    _, firsts, text = np.unique(texts, return_index=True, return_inverse=True)
    first = firsts[text]
    if not (np.array_equal(tokens, tokens[first]) and np.array_equal(second, second[first])):
        return False
    starts = np.cumsum(tokens) - tokens
    return np.array_equal(ids, ids[np.arange(len(ids)) + np.repeat(starts[first] - starts, tokens)])


def _by_host(block: Block, hosts: int) -> Iterator[tuple[int, NDArray[Any], NDArray[Any]]]:
    """Yields each host with its sequences, and the ids of these."""
    if hosts == 1:
        yield 0, block.sequences, block.ids
        return
    of_sequence = np.repeat(block.requests["host"], block.requests["sequences"])
    of_token = np.repeat(of_sequence, block.sequences["tokens"])
    for host in np.unique(of_sequence).tolist():
        yield host, block.sequences[of_sequence == host], block.ids[of_token == host]


def _fits(host: "Host", sequences: NDArray[Any], ids: NDArray[Any]) -> bool:
    """Whether a host can have these slots, lengths and ids."""
    config, second, largest = host.base.config, sequences["second"], _most(ids)
    return (
        _most(sequences["slot"]) < len(host.bank.diverges_at)
        and _most(second) <= config.max_length
        and _most(sequences["tokens"] - second - 1) < config.max_length
        and largest < max(config.type_vocab_size, 1) << SEGMENT_BITS
        and (largest < config.vocab_size or _most(ids & (1 << SEGMENT_BITS) - 1) < config.vocab_size)
    )


def _most(indices: NDArray[np.int32]) -> int:
    """Returns the largest index, for a negative one a number larger than all others; -1 if there is none."""
    # As unsigned numbers the negative ones are the largest.
    return int(np.maximum.reduce(indices.view(np.uint32))) if len(indices) else -1
