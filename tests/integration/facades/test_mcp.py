"""Agents: the SDK's own client against a real server, with keys."""

import asyncio
from contextlib import asynccontextmanager

import httpx
import httpx2
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from servers import LAYOUTS, Server, Task

KEY = "key-of-the-agents"
TEXT, OTHER = "please help my order is late", "thank you it came today"
TASKS = {
    "tone": Task(seed=1),
    "acme-tags": Task(labels=["O", "B-x", "I-x"], task_type="token", pooling="none", seed=4),
    "amount": Task(task_type="regression", labels=["amount"], seed=3),
    "spans": Task(labels=["start", "end"], task_type="span", pooling="none", seed=5),
}


@pytest.fixture(scope="module", params=LAYOUTS["argvalues"], ids=LAYOUTS["ids"])
def server(request, tmp_path_factory):
    with Server(tmp_path_factory.mktemp("mcp"), api_keys=KEY, front_ends=request.param) as server:
        server.push(TASKS)
        yield server
    assert "Traceback" not in server.log.read_text()


@asynccontextmanager
async def session(server, key=KEY, path="/mcp"):
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=180) as http,
        streamable_http_client(server.url + path, http_client=http) as (read, write, *_),
        ClientSession(read, write) as agent,
    ):
        await agent.initialize()
        yield agent


def with_agent(server, work, **arguments):
    async def run():
        async with session(server, **arguments) as agent:
            return await work(agent)

    return asyncio.run(run())


def call(server, tool, arguments, **of_session):
    return with_agent(server, lambda agent: agent.call_tool(tool, arguments), **of_session)


def tasks_of(server, **of_session):
    return {task["task"]: task for task in call(server, "status", {}, **of_session).structured_content["tasks"]}


def test_an_agent_lists_tasks_and_classifies_with_them(server):
    async def work(agent):
        tools = [tool.name for tool in (await agent.list_tools()).tools]
        calls = {"tone": [TEXT, OTHER] * 40, "acme-tags": [TEXT], "amount": [TEXT]}
        return tools, {
            task: (await agent.call_tool("classify", {"task": task, "texts": texts})).structured_content["results"]
            for task, texts in calls.items()
        }

    tools, results = with_agent(server, work)
    assert tools == ["status", "classify"]
    tasks = tasks_of(server)
    assert {name: task["task_type"] for name, task in tasks.items()} == {
        "acme-tags": "token", "amount": "regression", "tone": "single_label",
    }  # fmt: skip
    assert (tasks["tone"]["labels"], tasks["tone"]["version"]) == (TASKS["tone"].manifest["labels"], "tone@1")
    for text, result in zip([TEXT, OTHER] * 40, results["tone"], strict=True):
        scores = TASKS["tone"].scores(text)
        assert (result["label"], result["version"]) == (max(scores, key=scores.get), "tone@1")
        assert result["score"] == pytest.approx(max(scores.values()), abs=1e-4)
    assert results["amount"][0]["score"] == pytest.approx(float(TASKS["amount"].logits(TEXT)[0]), abs=1e-4)
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=180) as http:
        [tags] = http.post("/v1/tasks/acme-tags/classify", json={"inputs": TEXT}).json()["results"]
    for span, entity in zip(results["acme-tags"][0]["spans"], tags["entities"], strict=True):
        assert (span["start"], span["end"], span["label"]) == (entity["start"], entity["end"], entity["label"])


def test_a_session_goes_on_after_a_promotion_to_other_labels(server):
    async def work(agent):
        tools = await agent.list_tools()
        with server.client(api_key=KEY) as client:
            client.push("moved", Task(labels=["mixed", "other"], seed=2).file)
            tag = client.send("GET", "/v1/tasks/moved/aliases/live").headers["etag"]
            client.send("PUT", "/v1/tasks/moved/aliases/live", json={"version": 2}, headers={"If-Match": tag})
        result = await agent.call_tool("classify", {"task": "moved", "texts": [TEXT]})
        return tools == await agent.list_tools(), result.structured_content["results"][0]["label"]

    server.push({"moved": Task(seed=1)})
    try:
        constant, label = with_agent(server, work)
        assert constant
        assert label in ("mixed", "other")
    finally:
        with server.client(api_key=KEY) as client:
            client.send("DELETE", "/v1/tasks/moved")


def test_a_key_and_an_address_have_their_tasks(server):
    with server.client(api_key=KEY) as client:
        body = {"name": "acme", "scopes": ["classify"], "tasks": ["acme-*"]}
        key = client.send("POST", "/v1/keys", json=body).json()["key"]
    assert set(tasks_of(server, key=key)) == {"acme-tags"}
    foreign, missing = (
        call(server, "classify", {"task": name, "texts": [TEXT]}, key=key) for name in ("tone", "toner")
    )
    assert foreign.is_error
    assert foreign.content[0].text == missing.content[0].text.replace("toner", "tone")
    assert set(tasks_of(server, path="/t/tone/mcp")) == {"tone"}
    for arguments in ({}, {"task": "tone"}):
        answered = call(server, "classify", {**arguments, "texts": [TEXT]}, path="/t/tone@1/mcp")
        assert answered.structured_content["results"][0]["version"] == "tone@1"
    assert call(server, "classify", {"task": "amount", "texts": [TEXT]}, path="/t/tone@1/mcp").is_error


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("classify", {"task": "tone", "texts": [" "]}, "must not be blank"),
        ("classify", {"texts": [TEXT]}, "name the task"),
        ("classify", {"task": "spans", "texts": [TEXT]}, "spans@1 is a span task"),
        ("no-such-tool", {}, "no such tool"),
    ],
)
def test_a_refusal_is_a_result_that_says_why(server, tool, arguments, words):
    result = call(server, tool, arguments)
    assert result.is_error
    assert words in result.content[0].text


def test_what_is_no_message_and_who_has_no_key(server):
    url, headers = (
        f"{server.url}/mcp",
        {"Authorization": f"Bearer {KEY}", "Accept": "application/json, text/event-stream"},
    )
    ping = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
    with httpx.Client(timeout=180) as http:
        assert http.post(url, json=ping).status_code == 401
        answer = http.post(url, json=ping, headers=headers)
        assert (answer.status_code, answer.json()) == (200, {"jsonrpc": "2.0", "id": 7, "result": {}})
        told = http.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
        assert (told.status_code, told.content) == (202, b"")
        for body in ([ping], {"method": "ping"}, {**ping, "params": 3}, {**ping, "id": None}, {**ping, "id": 1.5}):
            refused = http.post(url, json=body, headers=headers)
            assert refused.status_code in (400, 422)
            assert refused.json()["error"]["code"] in (-32600, -32602, -32700)
        assert http.get(url, headers=headers).status_code == 405
