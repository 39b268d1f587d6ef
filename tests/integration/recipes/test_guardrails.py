"""The recipes for guardrails, followed top to bottom with the real gateway: LiteLLM's proxy, NeMo Guardrails."""

import json

import pytest

from environments import python_environment
from litellm_proxy import proxying
from pages import ROOT, blocks, run_block
from servers import Server

pytestmark = pytest.mark.nightly("programs")

HERE = "http://127.0.0.1:8000"
# What the recipes ask, with what they say becomes of it.
BLOCKED, PASSED = "The soup was cold and nobody cared.", "Best coffee in town!"
THRESHOLD = 0.6


@pytest.fixture
def folder(tmp_path):
    """A folder with the data that the pages name."""
    (tmp_path / "demo").symlink_to(ROOT / "demo")
    return tmp_path


def assert_tells(client):
    """The task that the page has trained says of the two texts what makes the guardrail do what the page says."""
    blocked, passed = client.classify("tone", [BLOCKED, PASSED])["results"]
    assert blocked["scores"]["negative"] > THRESHOLD > passed["scores"]["negative"]


def test_litellm(folder):
    key, master_key = "key-of-who-follows-the-page", "sk-of-a-proxy-that-only-a-test-asks"
    train, configure, ask = (block.code for block in blocks("docs/recipes/litellm.md", "bash"))
    with Server(folder, base="", api_keys=key) as server, server.client(api_key=key) as client:
        mine = {"ONEBERT_URL": server.url, "ONEBERT_API_KEY": key}
        run_block("bash", train, folder, **mine)
        assert_tells(client)
        run_block("bash", configure.replace(HERE, server.url), folder, **mine)
        with proxying(folder / "proxy.yaml", master_key) as url:
            asked = ask.replace("http://127.0.0.1:4000", url)
            printed = run_block("bash", asked, folder, LITELLM_MASTER_KEY=master_key)
        made = client.send("GET", "/v1/keys").json()
    first, second = printed.splitlines()
    assert "tone@1" in json.loads(first)["error"]["message"]
    assert BLOCKED not in first
    assert json.loads(second)["choices"][0]["message"]["content"] == "How may I help you?"
    (narrow,) = made["keys"]
    assert (narrow["scopes"], narrow["tasks"]) == (["classify"], ["tone"])


def test_nemo(folder):
    page = "docs/recipes/nemo.md"
    (train,) = (block.code for block in blocks(page, "bash") if not block.kind)
    (config,), (code,) = (blocks(page, language) for language in ("yaml", "python"))
    with Server(folder, base="") as server, server.client() as client:
        run_block("bash", train, folder, ONEBERT_URL=server.url)
        assert_tells(client)
        (folder / "config").mkdir()
        (folder / "config" / "config.yml").write_text(config.code.replace(HERE, server.url))
        printed = python_environment("nemoguardrails").prints(code.code, folder=folder)
    assert printed.split() == ["blocked", "passed"]
