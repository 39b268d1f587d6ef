"""A transport for uvicorn whose `close` follows the rules of protocol.py."""

import asyncio
from typing import Any, Protocol


class Closing(Protocol):
    """A protocol that closes its connection by its own rules."""

    @property
    def closing(self) -> bool: ...

    def close(self) -> None: ...

    def resume_reading(self) -> None: ...


class LingeringTransport(asyncio.Transport):
    """The transport that uvicorn sees; `close` and `resume_reading` go to the protocol."""

    def __init__(self, transport: asyncio.Transport, protocol: Closing) -> None:
        super().__init__()
        self._transport = transport
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._protocol.resume_reading()

    def close(self) -> None:
        self._protocol.close()

    def is_closing(self) -> bool:
        return self._protocol.closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Writes unless the client has left; uvicorn signals a disconnect to the newest pipelined request only."""
        if not self._transport.is_closing():
            self._transport.write(data)
