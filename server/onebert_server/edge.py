"""What the processes that answer HTTP have in common: the one with the engine, and each front end."""

from dataclasses import dataclass, field
from typing import Protocol

from onebert_server.answering.answers import Answerer
from onebert_server.metrics import RequestCounts


class Listening(Protocol):
    """The part of an `Edge` that is needed before a request is answered; a server that still starts has it, too."""

    metrics: RequestCounts
    draining: bool


@dataclass
class Edge:
    """What a process that answers requests has, with or without the engine in it.

    Attributes:
        draining: set when the server was told to stop; /readyz says so.
    """

    answerer: Answerer
    metrics: RequestCounts
    draining: bool = field(default=False, kw_only=True)
