"""The state that every process with HTTP has: the engine's process and each front end."""

from dataclasses import dataclass, field
from typing import Protocol

from onebert_server.answering.answers import Answerer
from onebert_server.fairness.shares import Permits
from onebert_server.limits import MAX_UNTAKEN_BYTES
from onebert_server.telemetry.telemetry import RequestCounts, Telemetry


class Listening(Protocol):
    """The part of an `Edge` that the middleware needs; a server that is still starting has it, too."""

    draining: bool
    telemetry: Telemetry


def untaken(processes: int = 1) -> Permits:
    """The bytes of large responses that one of so many processes holds."""
    return Permits(
        MAX_UNTAKEN_BYTES // processes,
        "as many large answers wait for their clients to take them as the server holds; try again soon",
    )


@dataclass
class Edge:
    """The state of a process that answers requests, with or without the engine in it.

    Attributes:
        untaken: bytes of large responses that clients have not read yet.
        draining: set once the server is asked to stop; /readyz then reports it.
    """

    answerer: Answerer
    metrics: RequestCounts
    telemetry: Telemetry = field(default_factory=Telemetry, kw_only=True)
    untaken: Permits = field(default_factory=untaken, kw_only=True)
    draining: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self.telemetry.counts = self.metrics
