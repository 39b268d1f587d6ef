"""The access log: a line of JSON for each request, whichever process answers it; never a text and never a key."""

import json
import threading

import httpx
import pytest

from servers import LAYOUTS, Server, Task, overflowing_on, wait_until

KEY = "a-key-of-the-access-log"
TEXT = "a secret that no line may hold"
PATH = "/v1/tasks/{task}/classify"


@pytest.fixture(scope="module", params=LAYOUTS["argvalues"], ids=LAYOUTS["ids"])
def logged(request, tmp_path_factory):
    """Lines of a server's standard output as they come, and a client."""
    settings = {"front_ends": request.param, "api_keys": KEY, "access_log": "json"}
    with Server(tmp_path_factory.mktemp("log"), **settings) as server:
        lines = []
        reading = threading.Thread(target=_read, args=(server.process.stdout, lines), daemon=True)
        reading.start()
        server.push({"first": Task(seed=1), "second": Task(seed=2)})
        headers = {"Authorization": f"Bearer {KEY}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=180) as client:
            yield lines, client


def _read(stream, lines):
    for line in stream:
        lines.append(line)


def line_of(lines, answer):
    """The one line of an answer, once it is there."""
    request_id = answer.headers["x-request-id"]
    wait_until(lambda: any(request_id in line for line in list(lines)), 180)
    [line] = [json.loads(line) for line in list(lines) if request_id in line]
    assert line.pop("id") == request_id
    assert line.pop("ms") > 0
    assert line.pop("time").endswith("Z")
    return line


def test_a_question_says_who_asked_which_task_and_how_many_tokens(logged):
    lines, client = logged
    answer = client.post("/v1/tasks/first/classify", json={"inputs": [TEXT, f"{TEXT} {TEXT}"]})
    tokens = sum(result["tokens"] for result in answer.json()["results"])
    line = line_of(lines, answer)
    assert line.pop("principal").startswith("key:")
    assert line == {
        "method": "POST", "route": PATH, "status": 200, "task": "first", "answers": 2, "tokens": tokens
    }  # fmt: skip


def test_a_path_names_the_task_where_none_answers(logged):
    lines, client = logged
    paths = {"/v1/tasks/first/status": "first", "/v1/tasks/first/aliases/live": "first", "/v2/models/first@1": "first"}
    for path, task in (paths | {f"/v1/tasks/{TEXT}/status": None, "/v1/tasks": None}).items():
        assert line_of(lines, client.get(path)).get("task") == task
    assert TEXT not in "".join(lines)


def test_an_answer_that_is_not_finite_is_not_counted(logged):
    lines, client = logged
    octets = {"Content-Type": "application/octet-stream"}
    both = client.post("/v1/fanout", json={"tasks": ["first", "second"], "text": TEXT})
    assert line_of(lines, both)["tasks"] == 2
    # Without `live`, so that no fan-out to all tasks asks it.
    client.put("/v1/tasks/odd/versions?live=false", content=overflowing_on(TEXT).file, headers=octets)
    answer = client.post("/v1/fanout", json={"tasks": ["first", "odd@1"], "text": TEXT})
    assert answer.json()["results"][1]["error"]["code"] == "answer-not-finite"
    line = line_of(lines, answer)
    assert (line.get("task"), line["answers"]) == ("first", 1)
    assert 'onebert_task_request_seconds_count{task="odd"' not in client.get("/metrics").text


def test_refusals_have_their_code(logged):
    lines, client = logged
    missing = line_of(lines, client.post("/v1/tasks/nobody/classify", json={"inputs": TEXT}))
    assert (missing["status"], missing["problem"], missing["route"]) == (404, "task-not-found", PATH)
    assert missing["task"] == "nobody"
    refused = line_of(lines, client.post("/v1/classify", json={}, headers={"Authorization": "Bearer wrong"}))
    assert (refused["status"], refused["problem"]) == (401, "unauthorized")
    assert refused["principal"] == "127.0.0.1"
    nowhere = line_of(lines, client.get(f"/nowhere/{TEXT}"))
    assert (nowhere["status"], nowhere["route"]) == (404, "unmatched")
    unreadable = line_of(lines, client.request("BREW", "/v1/tasks"))
    assert (unreadable["status"], unreadable["method"]) == (400, "other")


def test_every_request_is_one_line_and_none_holds_a_text_or_a_key(logged):
    lines, client = logged
    answers = [
        client.get("/v1/tasks"),
        *(client.post("/v1/tasks/first/classify", json={"inputs": TEXT}) for _ in "abc"),
    ]
    assert [line_of(lines, answer)["status"] for answer in answers] == [200] * 4
    whole = "".join(lines)
    assert TEXT not in whole
    assert KEY not in whole


def test_a_reader_that_stands_still_holds_up_nobody(tmp_path):
    """More lines than its pipe holds and the log keeps, read by nobody: all is answered, and the server ends."""
    with Server(tmp_path, access_log="json") as server:
        with httpx.Client(base_url=server.url, timeout=180) as client:
            for _ in range(400):
                headers = {"X-Request-Id": "x" * 64}
                assert client.post("/v1/classify", json={}, headers=headers).status_code == 422
        assert server.stop() == 0
