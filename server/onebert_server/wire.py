"""What front ends and the process with the engine say to each other over Unix sockets: msgpack behind its length."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import msgspec

_LENGTH_BYTES = 4


class Setup(msgspec.Struct, frozen=True):
    """What a front end works with, which it reads from standard input.

    Attributes:
        listener: the descriptor of the bound socket.
        engine_path, app_path: the sockets of the engine's process, for questions and for forwarded requests.
        tokenizer: of `Tokenizer.dumps`.
        api_keys: digests; this and the rest are of Settings.
    """

    listener: int
    engine_path: str
    app_path: str
    tokenizer: str
    api_keys: tuple[bytes, ...]
    max_body_bytes: int
    receive_timeout: float
    shutdown_timeout: float
    log_level: str


class Listening(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: it accepts connections."""


class Drain(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: say in every answer that the connection ends."""


class Stop(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: accept nothing more, answer what is there, and end."""


class Tokens(msgspec.Struct, frozen=True, array_like=True):
    """The ids of one tokenized input, and its segments."""

    input_ids: list[int]
    type_ids: list[int]


class Ask(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: compute, if references still mean these versions; without sequences: say whether they do.

    Attributes:
        number: which the reply repeats.
        refs: a reference for each input, or where `every` is set, the tasks that shall answer.
        every: whether it shall be the live version of every task that takes a pair, or a text.
        pair: which of these.
        versions: what the references are remembered to mean.
        sequences: the distinct tokenized inputs.
        order: for each reference, which sequence.
    """

    number: int
    refs: list[str]
    every: bool
    pair: bool
    versions: list[int]
    sequences: list[Tokens]
    order: list[int]


class Answer(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """The references mean what was said; float32 logits for each, if they were asked for."""

    number: int
    logits: list[bytes]


class Version(msgspec.Struct, frozen=True, array_like=True):
    """A version; `manifest` is JSON, without what no answer needs."""

    task: str
    version: int
    digest: str
    manifest: bytes


class Mean(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """The references do not mean what was said.

    Attributes:
        refs: of the question, or where it was for every task, the tasks that shall answer now.
        versions: what those of them mean that do not mean what was said.
    """

    number: int
    refs: list[str]
    versions: dict[str, Version]


class Refusal(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """A typed error."""

    number: int
    status: int
    code: str
    title: str
    detail: str
    retry_after: int | None


class Count(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """To a front end: say what you have counted."""


class Counted(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """From a front end: its metrics, by family, sample, and labels."""

    samples: list[tuple[str, str, dict[str, str], float]]


FromEngine = Drain | Stop | Count | Answer | Mean | Refusal
FromFrontEnd = Listening | Ask | Counted

_encode = msgspec.msgpack.Encoder().encode


class Channel(asyncio.Protocol):
    """Frames both ways over one connection.

    Args:
        kind: what comes, a union of the frames above.
        received: called with each, in order.
        lost: called when the other side is gone.
    """

    def __init__(self, kind: Any, received: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._received = received
        self._lost = lost
        self._incoming = bytearray()
        self._outgoing: deque[bytes] = deque()
        self._flushing = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None

    def send(self, frame: msgspec.Struct) -> None:
        """Sends a frame, from any thread; what is sent in one turn of the loop, or meanwhile, goes out together."""
        self._outgoing.append(framed(frame))
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon_threadsafe(self._flush)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._incoming += data
        start = 0
        while len(self._incoming) >= start + _LENGTH_BYTES:
            end = start + _LENGTH_BYTES
            end += int.from_bytes(self._incoming[start:end], "big")
            if len(self._incoming) < end:
                break
            self._received(self._decode(self._incoming[start + _LENGTH_BYTES : end]))
            start = end
        del self._incoming[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._transport = None
        self._lost()

    def _flush(self) -> None:
        # First, so that what comes from now on is flushed again.
        self._flushing = False
        outgoing = []
        while self._outgoing:
            outgoing.append(self._outgoing.popleft())
        if self._transport is not None:
            self._transport.write(b"".join(outgoing))


def framed(message: Any) -> bytes:
    """A message as it goes over the wire."""
    body = _encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


async def read_message(reader: asyncio.StreamReader) -> Any:
    """One message; None where the other side has gone."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        return msgspec.msgpack.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
