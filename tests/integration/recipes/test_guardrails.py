"""The recipes for guardrails, followed top to bottom with the real gateway: LiteLLM's proxy, NeMo Guardrails."""

import json
from functools import partial

import pytest

from environments import python_environment
from litellm_proxy import proxying
from pages import ROOT, blocks, run_block
from servers import Server, Task

pytestmark = pytest.mark.slow

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
    (config, _), (code,) = (blocks(page, language) for language in ("yaml", "python"))
    with Server(folder, base="") as server, server.client() as client:
        run_block("bash", train, folder, ONEBERT_URL=server.url)
        assert_tells(client)
        (folder / "config").mkdir()
        (folder / "config" / "config.yml").write_text(config.code.replace(HERE, server.url))
        printed = python_environment("nemoguardrails").prints(code.code, folder=folder)
    assert printed.split() == ["blocked", "passed"]


# Prints what the rails of a folder's configuration make of texts, which it reads as JSON.
CHECK = """
import json
import logging
import sys

from nemoguardrails import LLMRails, RailsConfig

logging.disable()
rails = LLMRails(RailsConfig.from_path("config"))
checked = [rails.check(messages=[{"role": "user", "content": text}]) for text in json.loads(sys.argv[1])]
print(json.dumps([[one.status.value, one.content] for one in checked]))
"""


def _masked(at_least, text, answer):
    for entity in reversed([entity for entity in answer["entities"] if entity["score"] > at_least]):
        text = f"{text[: entity['start']]}[{entity['label']}]{text[entity['end'] :]}"
    return text


def test_nemo_finds_what_is_personal(folder):
    """By GLiNER's rails, as the page configures them, with a key; a label that nobody finds blocks."""
    key, at_least = "key-of-who-reads-the-page", 0.3
    task = Task(pooling="none", seed=4, task_type="token", labels=["O", "B-PERSON", "I-PERSON", "B-PLACE", "I-PLACE"])
    texts = ["Please refund Ada in London.", "the order was late", "\U0001f600 a parcel for Ada " * 20]
    _, config = blocks("docs/recipes/nemo.md", "yaml")
    code = config.code.replace("threshold: 0.5", f"threshold: {at_least}")
    code = code.replace("    gliner:\n", "    gliner:\n      api_key_env_var: ONES_KEY\n")
    nemo = python_environment("nemoguardrails")
    (folder / "config").mkdir()

    def checked(configured):
        (folder / "config" / "config.yml").write_text(configured)
        return json.loads(nemo.prints(CHECK, json.dumps(texts), folder=folder, ONES_KEY=key))

    with Server(folder, api_keys=key) as server, server.client(api_key=key) as client:
        client.push("personal", task.file)
        code = code.replace(HERE, server.url)
        asked = {"inputs": texts, "window": {"overlap": 12}}
        answers = client.send("POST", "/v1/tasks/personal/classify", json=asked).json()["results"]
        masked, blocked = checked(code), checked(code.replace("mask pii", "detect pii"))
        unknown = checked(code.replace("[PERSON, PLACE]", "[PERSON, SSN]"))
    expected = [*map(partial(_masked, at_least), texts, answers)]
    assert expected != texts
    pairs = list(zip(texts, expected, strict=True))
    assert masked == [["passed" if text == shown else "modified", shown] for text, shown in pairs]
    assert [status for status, _ in blocked] == ["passed" if text == shown else "blocked" for text, shown in pairs]
    assert [status for status, _ in unknown] == ["blocked"] * 3
