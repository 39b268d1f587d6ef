"""The socket of a connection as uvicorn sees it: what uvicorn closes is closed by the rules of protocol.py."""

import asyncio
from typing import Any, Protocol


class Closing(Protocol):
    """A protocol that decides when its connection is closed."""

    @property
    def closing(self) -> bool:
        """Whether nothing more will be answered."""

    def close(self) -> None:
        """Closes the connection when its client has had the chance to read the answer."""

    def resume_reading(self) -> None:
        """Reads on where the protocol has room."""


class LingeringTransport(asyncio.Transport):
    """The transport as uvicorn sees it: what closes it closes by the protocol's rules."""

    def __init__(self, transport: asyncio.Transport, protocol: Closing) -> None:
        super().__init__()
        self._transport = transport
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the socket says of itself."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Reads no more for now."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Reads on; see Closing."""
        self._protocol.resume_reading()

    def close(self) -> None:
        """Closes the connection when its client has had the chance to read the answer; see Closing."""
        self._protocol.close()

    def is_closing(self) -> bool:
        """Whether nothing more will be answered."""
        return self._protocol.closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends, unless the client has left: of several requests uvicorn tells only the last one so."""
        if not self._transport.is_closing():
            self._transport.write(data)
