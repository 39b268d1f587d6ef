"""A real LiteLLM proxy in an environment of its own."""

import re
import subprocess
from contextlib import contextmanager
from pathlib import Path

from environments import foreign_env, python_environment
from servers import wait_until


@contextmanager
def proxying(config: Path, master_key: str):
    """The address of a proxy with that configuration, whose log stands beside it."""
    program, log = python_environment("litellm").program("litellm"), config.with_suffix(".log")
    # Asked for port 0 it takes one that is free, and then says which.
    command = [program, "--config", config, "--host", "127.0.0.1", "--port", "0"]
    with log.open("w") as file:
        env = foreign_env(LITELLM_MASTER_KEY=master_key)
        proxy = subprocess.Popen(command, stdout=file, stderr=file, cwd=config.parent, env=env)
    try:
        wait_until(lambda: _address(proxy, log) is not None, 300)
        yield _address(proxy, log)
    finally:
        proxy.kill()
        proxy.wait()


def _address(proxy: subprocess.Popen, log: Path) -> str | None:
    """Where the proxy listens, once it does."""
    text = log.read_text()
    assert proxy.poll() is None, text
    match = re.search(r"Uvicorn running on (http://127\.0\.0\.1:\d+)", text)
    return match and match[1]
