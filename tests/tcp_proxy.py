"""A TCP proxy on loopback whose network a test can take away: refuse, go silent, and be itself again."""

import socket
import threading
from contextlib import suppress


class TcpProxy:
    """Forwards to `connect()`; leaving `with` closes every connection.

    Attributes:
        port: where it listens; the same while it refuses.
    """

    def __init__(self, connect) -> None:
        self._connect = connect
        self._flowing = threading.Event()
        self._flowing.set()
        self._open: list[socket.socket] = []
        self._forwarding: list[threading.Thread] = []
        self.port = 0
        self.accept()

    def accept(self) -> None:
        """Listens (again)."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self._serving = threading.Thread(target=self._serve, args=(self._listener,))
        self._serving.start()

    def refuse(self) -> None:
        """Cuts every connection, and refuses new ones, as where nothing runs."""
        if self._listener.fileno() < 0:
            return
        # A thread that waits in `accept` keeps the port until it is woken.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._serving.join()
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Cuts the connections that there are."""
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._forwarding:
            thread.join()
        for connection in self._open:
            connection.close()
        self._open, self._forwarding = [], []

    def silence(self) -> None:
        """Takes everything, and forwards nothing until `speak`."""
        self._flowing.clear()

    def speak(self) -> None:
        """Forwards again; what came meanwhile, first."""
        self._flowing.set()

    def _serve(self, listener) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = self._connect()
                self._open += [client, server]
                for source, target in ((client, server), (server, client)):
                    thread = threading.Thread(target=self._forward, args=(source, target))
                    self._forwarding.append(thread)
                    thread.start()

    def _forward(self, source, target) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                target.sendall(data)
        for side in (source, target):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> "TcpProxy":
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._flowing.set()
        self.refuse()
