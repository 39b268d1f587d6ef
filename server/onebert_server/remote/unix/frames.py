"""Messages that only this transport has; `wire` has the messages of every transport."""

from typing import Any

import msgspec

from onebert_server.observed import FinishedRequest
from onebert_server.remote import wire
from onebert_server.versions.facts import Identity


class Start(msgspec.Struct, frozen=True):
    """The configuration that a front end reads from standard input.

    `listeners` are descriptors of bound sockets. `engine` and `control` are Unix sockets for messages and for forwarded
    requests.
    """

    listeners: list[int]
    engine: str
    control: str
    setup: wire.Setup
    settings: dict[str, Any]


class Connected(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: connected; it listens after it has received `wire.RegistryKeys`."""

    process: int


class Accepting(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: accepts connections now."""


class Drain(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: send `Connection: close` with every reply."""


class Stop(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: stop accepting, finish the open requests, and exit."""


class Ask(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: references to resolve; the `AskReply` repeats the number."""

    number: int
    question: wire.Resolve


class Cancel(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: the question with this number has been cancelled."""

    number: int


class AskReply(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: the reply to a question, without facts that the front end has cached.

    `forgotten` has versions to evict, never one of the reply.
    """

    number: int
    reply: wire.Versions | wire.Refused
    forgotten: list[Identity] = []


class Alive(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end, which repeats it: both processes do not stand still."""


class InProgress(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: the number of open requests."""

    count: int


class CountedRequests(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: requests that one turn of its event loop has finished, and their lines of the access log."""

    ended: list[FinishedRequest]
    lines: list[bytes]


FromEngine = Drain | Stop | wire.RegistryKeys | AskReply | wire.EndedMessage | Alive
FromFrontEnd = (
    Connected | Accepting | Alive | Ask | Cancel | wire.ToGateway | InProgress | CountedRequests | wire.Samples
)
