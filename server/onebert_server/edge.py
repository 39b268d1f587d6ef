"""What answers requests, in every process that does: the one with the engine, and each front end."""

from dataclasses import dataclass, field
from typing import Protocol

from onebert_server.answering.answers import Answerer
from onebert_server.metrics import RequestCounts


class Listening(Protocol):
    """What every process has that takes requests, whatever it makes of them; see Edge."""

    metrics: RequestCounts
    draining: bool


@dataclass
class Edge:
    """What answers requests, in every process that does.

    Attributes:
        draining: set when the server was told to stop; /readyz says so.
    """

    answerer: Answerer
    metrics: RequestCounts
    draining: bool = field(default=False, kw_only=True)
