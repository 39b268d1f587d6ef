"""A real LiteLLM proxy in an environment of its own, whose guardrail is a OneBERT server and whose model is a mock."""

import json
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import httpx

from environments import foreign_env, python_environment
from servers import wait_until

KEY = "sk-of-a-proxy-that-only-a-test-asks"


@contextmanager
def proxying(folder: Path, server: str, key: str, **parameters):
    """A client of the proxy; the parameters are the guardrail's own. No provider is ever asked."""
    guardrail = {
        "guardrail": "generic_guardrail_api",
        "mode": "pre_call",
        "api_base": server,
        "headers": {"Authorization": f"Bearer {key}"},
        "default_on": True,
        "additional_provider_specific_params": parameters,
    }
    model = {"model": "openai/mock", "api_key": "none", "mock_response": "a canned answer"}
    config = {
        "model_list": [{"model_name": "mock", "litellm_params": model}],
        "guardrails": [{"guardrail_name": "onebert", "litellm_params": guardrail}],
        "general_settings": {"master_key": KEY},
    }
    # JSON is YAML.
    (folder / "proxy.yaml").write_text(json.dumps(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = python_environment("litellm").program("litellm")
    command = [program, "--config", folder / "proxy.yaml", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "proxy.log").open("w") as log:
        proxy = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=foreign_env())
    try:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=180) as client:
            wait_until(lambda: _is_up(client, proxy, folder / "proxy.log"), 300)
            yield client
    finally:
        proxy.kill()
        proxy.wait()


def _is_up(client: httpx.Client, proxy: subprocess.Popen, log: Path) -> bool:
    assert proxy.poll() is None, log.read_text()
    try:
        return client.get("/health/liveliness").status_code == 200
    except httpx.HTTPError:
        return False
