"""What the processes that answer HTTP have in common: the one with the engine, and each front end."""

from dataclasses import dataclass, field
from typing import Protocol

from onebert_server.answering.answers import Answerer
from onebert_server.limits import MAX_UNTAKEN_BYTES
from onebert_server.metrics import RequestCounts
from onebert_server.permits import Permits
from onebert_server.telemetry.telemetry import Telemetry


class Listening(Protocol):
    """The part of an `Edge` that is needed before a request is answered; a server that still starts has it, too."""

    metrics: RequestCounts
    draining: bool
    telemetry: Telemetry


def _untaken() -> Permits:
    return Permits(
        MAX_UNTAKEN_BYTES,
        "as many large answers wait for their clients to take them as the server holds; try again soon",
    )


@dataclass
class Edge:
    """What a process that answers requests has, with or without the engine in it.

    Attributes:
        telemetry: what is told of each request beside metrics.
        untaken: the bytes of large answers that their clients have not taken yet.
        draining: set when the server was told to stop; /readyz says so.
    """

    answerer: Answerer
    metrics: RequestCounts
    telemetry: Telemetry = field(default_factory=Telemetry, kw_only=True)
    untaken: Permits = field(default_factory=_untaken, kw_only=True)
    draining: bool = field(default=False, kw_only=True)
