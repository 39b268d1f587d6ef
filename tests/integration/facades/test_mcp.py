"""Tasks as tools of agents: the SDK's own client against a real server, with keys; jsonschema checks the answers."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from unittest.mock import AsyncMock

import httpx
import httpx2
import pytest
from jsonschema import Draft202012Validator
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from onebert_mcp.tools import MAX_LABELS, Tools
from onebert_server.versions.facts import Facts
from servers import IDS, Server, Task

KEY = "key-of-the-agents"
TEXT, OTHER = "please help my order is late", "thank you it came today"
TASKS = {
    "tone": Task(seed=1),
    "acme-tags": Task(labels=["O", "B-x", "I-x"], task_type="token", pooling="none", seed=4),
    "amount": Task(task_type="regression", labels=["amount"], seed=3),
    "spans": Task(labels=["start", "end"], task_type="span", pooling="none", seed=5),
}


@pytest.fixture(scope="module", params=[0, 1], ids=IDS)
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


async def tools_of(agent):
    return {tool.name: tool for tool in (await agent.list_tools()).tools}


def test_tasks_are_tools_with_their_labels(server):
    tools = with_agent(server, tools_of)
    assert set(tools) == {"status"} | {f"{kind}_{task}" for kind in ("classify", "classify-many") for task in TASKS} - {
        "classify_spans",
        "classify-many_spans",
    }
    labels = TASKS["tone"].manifest["labels"]
    assert tools["classify_tone"].output_schema["properties"]["label"]["enum"] == labels
    for tool in tools.values():
        Draft202012Validator.check_schema(tool.input_schema)
        Draft202012Validator.check_schema(tool.output_schema)


def test_answers_are_the_servers_own_and_fit_their_schemas(server):
    async def work(agent):
        tools = await tools_of(agent)
        calls = {
            "classify_tone": {"text": TEXT},
            "classify-many_tone": {"texts": [TEXT, OTHER] * 40},
            "classify_acme-tags": {"text": TEXT},
            "classify_amount": {"text": TEXT},
            "status": {},
        }
        found = {}
        for name, arguments in calls.items():
            result = await agent.call_tool(name, arguments)
            assert not result.is_error, result
            Draft202012Validator(tools[name].output_schema).validate(result.structured_content)
            found[name] = result.structured_content
        return found

    found = with_agent(server, work)
    for text, result in zip([TEXT, OTHER] * 40, found["classify-many_tone"]["results"], strict=True):
        scores = TASKS["tone"].scores(text)
        assert (result["label"], result["version"]) == (max(scores, key=scores.get), "tone@1")
        assert result["score"] == pytest.approx(max(scores.values()), abs=1e-4)
    assert found["classify_tone"] == found["classify-many_tone"]["results"][0]
    assert found["classify_amount"]["score"] == pytest.approx(float(TASKS["amount"].logits(TEXT)[0]), abs=1e-4)
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=180) as http:
        [tags] = http.post("/v1/tasks/acme-tags/classify", json={"inputs": TEXT}).json()["results"]
    for span, entity in zip(found["classify_acme-tags"]["spans"], tags["entities"], strict=True):
        assert (span["start"], span["end"], span["label"]) == (entity["start"], entity["end"], entity["label"])
    assert [task["version"] for task in found["status"]["tasks"]] == ["acme-tags@1", "amount@1", "tone@1"]


def test_a_task_that_a_header_splits_has_its_tools(server):
    with server.client(api_key=KEY) as client:
        path = "/v1/tasks/tone/aliases/live"
        tag = client.send("GET", path).headers["etag"]
        client.push("tone", Task(seed=2).file)
        client.send(
            "PUT", path, json={"split": {"1": 60, "2": 40}, "sticky": "header:X-User"}, headers={"If-Match": tag}
        )

    async def work(agent):
        return set(await tools_of(agent)), await agent.call_tool("classify_tone", {"text": TEXT})

    def result_for(user, tool, arguments):
        fields = {"Authorization": f"Bearer {KEY}", "X-User": user, "Accept": "application/json"}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        answer = httpx.post(f"{server.url}/mcp", json=call, headers=fields, timeout=180)
        return answer.json()["result"]["structuredContent"]

    try:
        names, result = with_agent(server, work)
        tasks = {user: result_for(user, "status", {})["tasks"] for user in "abcdefgh"}
        answered = {user: result_for(user, "classify_tone", {"text": TEXT})["version"] for user in tasks}
    finally:
        with server.client(api_key=KEY) as client:
            tag = client.send("GET", path).headers["etag"]
            client.send("PUT", path, json={"version": 1}, headers={"If-Match": tag})
    assert {"classify_tone", "classify_amount"} <= names
    assert result.structured_content["version"] in ("tone@1", "tone@2")
    assert {*answered.values()} == {"tone@1", "tone@2"}
    for user, listed in tasks.items():
        assert answered[user] in [task["version"] for task in listed]


def test_a_key_has_the_tools_of_its_tasks(server):
    with server.client(api_key=KEY) as client:
        key = client.send(
            "POST", "/v1/keys", json={"name": "acme", "scopes": ["classify"], "tasks": ["acme-*"]}
        ).json()["key"]

    async def work(agent):
        foreign = await agent.call_tool("classify_tone", {"text": TEXT})
        missing = await agent.call_tool("classify_toner", {"text": TEXT})
        return set(await tools_of(agent)), foreign, missing

    names, foreign, missing = with_agent(server, work, key=key)
    assert names == {"status", "classify_acme-tags", "classify-many_acme-tags"}
    assert foreign.is_error
    assert missing.is_error
    assert foreign.content[0].text == missing.content[0].text.replace("toner", "tone")
    for task in ("tone", "toner"):

        async def refused(agent, task=task):
            with pytest.raises(MCPError, match=f"there is no task {task}"):
                await tools_of(agent)

        with_agent(server, refused, key=key, path=f"/t/{task}/mcp")
    assert set(with_agent(server, tools_of, path="/t/tone/mcp")) == {"status", "classify_tone", "classify-many_tone"}
    assert set(with_agent(server, tools_of, path="/t/spans/mcp")) == {"status"}


@pytest.mark.parametrize("ref", ["tone@1", "tone@live"])
def test_a_version_in_the_path_answers_by_the_tools_that_are_listed_there(server, ref):
    async def work(agent):
        return [await agent.call_tool(name, {"text": TEXT}) for name in ("classify_tone", "classify_amount")]

    answered, refused = with_agent(server, work, path=f"/t/{ref}/mcp")
    assert answered.structured_content["version"] == "tone@1"
    assert refused.is_error


@pytest.mark.parametrize("task", ["base:", "Tone", "tone@0"])
def test_what_is_no_task_has_no_tools(server, task):
    async def refused(agent):
        with pytest.raises(MCPError, match="the task in the path: "):
            await tools_of(agent)

    with_agent(server, refused, path=f"/t/{task}/mcp")


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("classify_tone", {"text": " "}, "must not be blank"),
        ("classify_tone", {"texts": [TEXT]}, "text"),
        ("classify_tone", {}, "text"),
        ("classify-many_tone", {"texts": []}, "must not be empty"),
        ("classify_spans", {"text": TEXT}, "spans@1 is a span task"),
        ("no-such-tool", {}, "no such tool"),
        ("classify_../keys", {"text": TEXT}, "is not a name"),
    ],
)
def test_a_refusal_is_a_result_that_says_why(server, tool, arguments, words):
    async def work(agent):
        return await agent.call_tool(tool, arguments)

    result = with_agent(server, work)
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


def test_answers_for_many_texts_are_within_the_bound_of_one_answer(server):
    words = Task(labels=["O", "a" * 200, "b" * 200, "c" * 200], task_type="token", pooling="none", seed=4)
    server.push({"words": words})

    async def work(agent):
        return [await agent.call_tool("classify-many_words", {"texts": ["a " * 40] * count}) for count in (2, 1024)]

    try:
        few, many = with_agent(server, work)
    finally:
        with server.client(api_key=KEY) as client:
            client.send("DELETE", "/v1/tasks/words")
    assert len(few.structured_content["results"]) == 2
    assert many.is_error
    assert "over 16777216 bytes" in many.content[0].text


def offered(tasks):
    """The tools of a caller who may ask these tasks."""
    call = SimpleNamespace(parameters={}, context=SimpleNamespace(request_id="a request"), edge=SimpleNamespace())
    call.edge.answerer = SimpleNamespace(live=AsyncMock(return_value=tasks))
    return asyncio.run(Tools(call).offered(None, None)).tools


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        (["O", "B-I-beam", "I-I-beam", "B-bolt"], ["I-beam", "bolt"]),
        (["O", "B-x", "other"], ["O", "B-x", "other"]),
        (["I-x", "O"], ["x"]),
    ],
)
def test_the_labels_of_a_token_tasks_schema_are_those_of_its_answers(labels, shown):
    [_, tool, _] = offered([Facts("tags", 1, "", "", "token", labels, 48, "none")])
    spans = tool.output_schema["properties"]["spans"]["items"]
    assert spans["properties"]["label"]["enum"] == shown


def test_tools_of_tasks_with_many_long_labels_are_within_the_bound_of_one_answer():
    labels = [f"{number:0256}" for number in range(MAX_LABELS)]
    tasks = [Facts(f"task-{number}", 1, "", "", "single_label", labels, 48, "mean") for number in range(80)]
    assert len(offered(tasks[:40])) == 81
    with pytest.raises(MCPError, match="one answer has no room for"):
        offered(tasks)
