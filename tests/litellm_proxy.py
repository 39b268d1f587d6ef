"""A real LiteLLM proxy in an environment of its own."""

import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import httpx

from environments import foreign_env, python_environment
from servers import wait_until


@contextmanager
def proxying(config: Path, master_key: str):
    """The address of a proxy with that configuration, whose log stands beside it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = python_environment("litellm").program("litellm")
    command = [program, "--config", config, "--host", "127.0.0.1", "--port", str(port)]
    log = config.with_suffix(".log")
    with log.open("w") as file:
        env = foreign_env(LITELLM_MASTER_KEY=master_key)
        proxy = subprocess.Popen(command, stdout=file, stderr=file, cwd=config.parent, env=env)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: _is_up(url, proxy, log), 300)
        yield url
    finally:
        proxy.kill()
        proxy.wait()


def _is_up(url: str, proxy: subprocess.Popen, log: Path) -> bool:
    assert proxy.poll() is None, log.read_text()
    try:
        return httpx.get(f"{url}/health/liveliness", timeout=180).status_code == 200
    except httpx.HTTPError:
        return False
