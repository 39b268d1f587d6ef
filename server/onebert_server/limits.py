"""Bounds that all parts of the server share, and the cut of work into parts within a bound."""

from collections.abc import Iterator, Sequence
from math import inf

# Characters of one text.
MAX_TEXT = 65536
# Inputs of one request.
MAX_ITEMS = 64
# Default bound on a JSON body, in bytes.
BODY_BYTES = 2**20
# Bytes of incomplete bodies that all processes with HTTP hold; each at least four times the largest body.
MAX_COMING_BYTES = 2**27
# Pairs of text and task in one request: the tasks of a fan-out, or texts × tasks of a façade's request.
MAX_FANOUT = 1024
# Characters of one reference to a task.
MAX_REF = 128

# Sequences and tokens that may wait for the engine: these bound memory, `max_queue_seconds` the wait. The largest
# request that the schemas allow, 1,024 sequences of 512 tokens, is half of the tokens.
MAX_QUEUE_SEQUENCES, MAX_QUEUE_TOKENS = 2**14, 2**20
# Sequences of one request, which tasks and the windows of long texts multiply.
MAX_SEQUENCES = 4096
# Logits in the answers to one request, 64 MiB: for example 64 texts of 512 tokens with 512 tags each.
MAX_LOGITS = 2**24
# Bytes of JSON in one response.
MAX_ANSWER_BYTES = 2**24
# Bytes of large responses that all processes with HTTP hold until clients read them.
MAX_UNTAKEN_BYTES = 2**29

# Characters in tokenization or waiting for it: the largest request, 64 pairs of the longest texts.
MAX_CHARACTERS = MAX_ITEMS * 2 * MAX_TEXT

# Inputs of one request that asks for explanations.
MAX_EXPLAINED = 16
# Stretches that are left out of one input, one at a time, to explain an answer; each costs one more run of the input.
MAX_LEFT_OUT = 64
# Long inputs leave out fewer stretches: at most 2,048 computed tokens, but at least eight stretches.
MAX_LEFT_OUT_TOKENS, MIN_LEFT_OUT = 2048, 8
# Sums over all shortened inputs of one request: the tokens of the largest plain request and the characters of the
# largest body. Longer inputs leave out fewer stretches.
MAX_EXPLAINED_TOKENS, MAX_EXPLAINED_CHARACTERS = 2**15, 2**20

# Longest timeout of a request, in seconds.
MAX_REQUEST_TIMEOUT = 600


def parts_of(costs: Sequence[int], most: float, count: float = inf) -> Iterator[range]:
    """Yields ranges of at most `count` pieces, which cost at most `most` together, or of one piece."""
    start = spent = 0
    for index, cost in enumerate(costs):
        if index > start and (spent + cost > most or index - start == count):
            yield range(start, index)
            start, spent = index, 0
        spent += cost
    if costs:
        yield range(start, len(costs))
