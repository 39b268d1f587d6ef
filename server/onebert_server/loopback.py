"""Hosts that only this machine can reach; a request to one goes through no proxy."""

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on the host."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def direct_mounts(url: str) -> dict[str, None]:
    """Returns the `mounts` of an httpx client by which no variable's proxy gets requests to a URL on loopback."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return {}
    return {"http://": None, "https://": None} if is_loopback(host) else {}
