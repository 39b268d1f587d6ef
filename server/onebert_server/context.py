"""What the server knows of a request beside its body: who asks, until when, since when, and under which id."""

import time
from dataclasses import dataclass

# The principal of the server's own work: proofs of uploads and of loaded versions. No key's principal looks like it.
RESERVED = "(server)"


@dataclass(frozen=True)
class Context:
    """One request as it travels from the edge to the engine's queue.

    Attributes:
        principal: who asks; what fairness and shares are counted by. Never a key itself.
        deadline: when nobody waits for the answer any more, in seconds of `time.monotonic()`.
        arrived: when the request came, on the same clock.
        request_id: what the answer and the log call the request.
    """

    principal: str
    deadline: float
    arrived: float
    request_id: str


def own_work(name: str) -> Context:
    """The context of work that the server itself has to do: it is let in whatever waits, and never too late.

    Args:
        name: what the log calls it.
    """
    return Context(RESERVED, deadline=float("inf"), arrived=time.monotonic(), request_id=name)
