"""Free ports for servers that cannot take port 0 and say which one they got."""

import secrets
import socket

# Below the ports that a Linux gives to those who ask for any, so that none of them takes one that is chosen here, and
# above those of Ray's workers.
_LOWEST, _COUNT = 20_000, 2_700


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now, also 10000 higher, where each part of SeaweedFS listens for its own kind."""
    ports: list[int] = []
    while len(ports) < count:
        port = _LOWEST + secrets.randbelow(_COUNT)
        with socket.socket() as first, socket.socket() as other:
            try:
                first.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
        ports += [port] * (port not in ports)
    return ports


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
