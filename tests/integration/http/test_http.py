"""The native HTTP interface of a real server: every route, and every answer against the plain Hugging Face model."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from onebert_store.errors import (
    AliasConflict,
    AliasNotFound,
    GoldenMismatch,
    TaskNotFound,
    VersionInUse,
    VersionNotFound,
)
from servers import Task, assert_answers, both_layouts, spec, wait_until

pytestmark = both_layouts

TEXT = "please help my order is late and the parcel was broken"
OCTETS = "application/octet-stream"


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url) as made:
        yield made


@pytest.fixture(scope="module")
def mixed(client):
    """Tasks of every kind, pooling and several label counts, by name."""
    made = {}
    for i, (kind, pooling) in enumerate(
        [("bitfit", "mean"), ("layernorm", "cls"), ("lora", "pooler"), ("spafit", "mean"), ("everything", "cls")]
    ):
        name = f"mixed-{kind}"
        made[name] = Task(kind, pooling, labels=2 + i, seed=i)
        client.push(name, made[name].file)
    return made


def test_equal_content_is_the_same_version(client, http):
    task = Task("layernorm", "cls", labels=4, seed=15, training={"task": "x", "accuracy": 0.5})
    digest = _digest(task.file)
    answer = http.put("/v1/tasks/first/versions", content=task.file, headers={"Content-Type": OCTETS})
    assert (answer.status_code, answer.json()) == (201, {"task": "first", "version": 1, "digest": digest})
    assert client.push("first", task.file) == answer.json() | {"created": False}
    shown = client.task("first")
    assert (shown["aliases"], [response["version"] for response in shown["versions"]]) == ({"live": 1}, [1])
    version, delta = http.get(answer.headers["location"]), http.get("/v1/tasks/first/versions/1/delta")
    assert {response.headers["etag"] for response in (answer, version, delta)} == {f'"{digest}"'}
    assert (delta.headers["content-type"], delta.content) == (OCTETS, task.file)
    facts = version.json()
    assert (facts["status"], facts["size"], facts["digest"]) == ("resident", len(task.file), digest)
    waiting = {"url": "/v1/tasks/waiting/versions", "content": task.file, "headers": {"Content-Type": OCTETS}}
    assert http.put(**waiting, params={"live": "perhaps"}).status_code == 422
    assert http.put(**waiting, params={"live": "false"}).json()["version"] == 1
    assert client.task("waiting")["aliases"] == {}
    assert http.put(**waiting).status_code == 200
    assert client.task("waiting")["aliases"] == {}
    assert http.delete("/v1/tasks/waiting").status_code == 204
    assert facts["manifest"] == task.manifest | {"golden": None, "decision": None, "head": None, "reference": None}
    assert (facts["method"], facts["task_type"], facts["labels"]) == ("layernorm", "single_label", 4)


def test_base_says_which_deltas_fit_it(client):
    base, expected = client.base(), spec()
    assert (base["digest"], base["model_type"], base["hidden_size"]) == (expected.digest, "bert", 32)
    assert base["dtype"] == "float32"


def test_items_of_many_tasks_in_one_request(client, mixed):
    names = list(mixed)
    items = [(names[i % len(names)], f"parcel {i} was long " * (1 + i % 4)) for i in range(64)]
    results = client.classify_items(items)
    for (name, text), result in zip(items, results, strict=True):
        assert (result["task"], result["version"]) == (name, 1)
        assert_answers(result, mixed[name].scores(text))


def test_fanout_answers_every_task_as_if_alone(client, mixed):
    refs = [*mixed, "mixed-lora@1", "mixed-lora@live"]
    results = client.fanout(TEXT, refs)
    assert [result["task"] for result in results] == [ref.partition("@")[0] for ref in refs]
    for result in results:
        assert_answers(result, mixed[result["task"]].scores(TEXT))


def test_fanout_star_is_the_live_version_of_every_task(client, mixed):
    results = client.fanout((TEXT, "what now"))
    live = {task["name"]: task["aliases"]["live"] for task in client.tasks()}
    assert {result["task"]: result["version"] for result in results} == live
    for result in results:
        if result["task"] in mixed:
            assert_answers(result, mixed[result["task"]].scores(TEXT, "what now"))


def test_golden_logits_that_do_not_agree_are_refused(client):
    file = Task("everything", "pooler", seed=22).with_golden(shift=0.05).file
    with pytest.raises(GoldenMismatch):
        client.push("not-golden", file)
    with pytest.raises(TaskNotFound):
        client.task("not-golden")


def test_alias_moves_by_compare_and_set(client, http):
    first, two = Task(seed=24), Task(seed=25)
    client.push("moved", first.file)
    client.push("moved", two.file)
    assert client.classify("moved", TEXT)["version"] == 1
    assert http.get("/v1/tasks/moved/aliases/live").json()["previous"] is None
    assert client.move_alias("moved", "live", 2, expected=1)["previous"] == 1
    answer = client.classify("moved", TEXT)
    assert answer["version"] == 2
    assert_answers(answer["results"][0], two.scores(TEXT))
    with pytest.raises(AliasConflict):
        client.move_alias("moved", "live", 1, expected=1)
    with pytest.raises(AliasConflict):
        client.move_alias("moved", "live", 1, expected=None)
    shown = http.get("/v1/tasks/moved/aliases/live")
    place = {"task": "moved", "alias": "live", "version": 2, "previous": 1, "target": None, "previous_target": None}
    assert (shown.headers["etag"], shown.json()) == ('"2"', place | {"what": None, "gate": None})
    listed = next(task for task in client.tasks() if task["name"] == "moved")
    assert client.task("moved")["previous"] == listed["previous"] == {"live": 1}
    client.move_alias("moved", "live", 1, expected=2)
    assert_answers(client.classify("moved", TEXT)["results"][0], first.scores(TEXT))
    assert_answers(client.classify("moved@2", TEXT)["results"][0], two.scores(TEXT))


def test_delete_the_last_version_and_begin_again(client, http):
    file = Task(seed=39).file
    client.push("ended", file)
    answer = http.delete("/v1/tasks/ended/aliases/live", headers={"If-Match": '"1"'})
    assert (answer.status_code, answer.content) == (204, b"")
    with pytest.raises(AliasNotFound):
        client.classify("ended", TEXT)
    assert "ended" not in {result["task"] for result in client.fanout(TEXT)}
    assert client.classify("ended@1", TEXT)["version"] == 1
    client.delete_version("ended", 1)
    for call in (client.task, lambda name: client.classify(f"{name}@1", TEXT)):
        with pytest.raises(TaskNotFound):
            call("ended")
    assert "ended" not in {task["name"] for task in client.tasks()}
    assert client.push("ended", file)["version"] == 2
    assert client.classify("ended", TEXT)["version"] == 2


def test_delete_a_task(server, client, http):
    before = server.metric("onebert_bank_rows ")
    for seed in (43, 44):
        client.push("whole", Task(seed=seed).file)
    client.move_alias("whole", "canary", 2, expected=None)
    answer = http.delete("/v1/tasks/whole")
    assert (answer.status_code, answer.content) == (204, b"")
    assert server.metric("onebert_bank_rows ") == before
    for ref in ("whole", "whole@2", "whole@canary"):
        with pytest.raises(TaskNotFound):
            client.classify(ref, TEXT)
    assert http.delete("/v1/tasks/whole").status_code == 404
    assert http.delete("/v1/tasks/../etc").status_code == 404
    assert http.delete("/v1/tasks/NO").status_code == 422
    assert client.push("whole", Task(seed=43).file)["version"] == 3
    assert client.classify("whole", TEXT)["version"] == 3


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("DELETE", {}, 428),
        ("DELETE", {"If-Match": '"2"'}, 412),
        ("PUT", {}, 428),
        ("PUT", {"If-Match": '"7"'}, 412),
        ("PUT", {"If-Match": "*"}, 422),
        ("PUT", {"If-Match": '"1"', "If-None-Match": "*"}, 422),
        ("PUT", {"If-None-Match": "*"}, 412),
    ],
    ids=str,
)
def test_alias_needs_one_true_condition(client, http, method, headers, status):
    client.push("conditional", Task(seed=27).file)
    body = {"json": {"version": 1}} if method == "PUT" else {}
    answer = http.request(method, "/v1/tasks/conditional/aliases/live", headers=headers, **body)
    assert answer.status_code == status
    with pytest.raises(VersionNotFound):
        client.move_alias("conditional", "live", 2, expected=1)
    with pytest.raises(AliasNotFound):
        client.delete_alias("conditional", "other", 1)
    assert client.task("conditional")["aliases"] == {"live": 1}


def test_delete_a_version(server, client):
    before = server.metric("onebert_bank_rows ")
    client.push("deleted", Task(seed=29).file)
    client.push("deleted", Task(seed=30).file)
    assert server.metric("onebert_bank_rows ") == before + 2
    with pytest.raises(VersionInUse):
        client.delete_version("deleted", 1)
    client.delete_version("deleted", 2)
    assert server.metric("onebert_bank_rows ") == before + 1
    with pytest.raises(VersionNotFound):
        client.classify("deleted@2", TEXT)
    with pytest.raises(VersionNotFound):
        client.delete_version("deleted", 2)
    assert client.push("deleted", Task(seed=30).file)["version"] == 3
    assert client.classify("deleted", TEXT)["version"] == 1


def test_many_clients_push_the_same_file_at_once(server):
    file = Task(seed=34).file
    with ThreadPoolExecutor(12) as pool:

        def push(_):
            with server.client() as web:
                return web.push("raced", file)

        pushed = list(pool.map(push, range(24)))
    assert {answer["version"] for answer in pushed} == {1}
    assert sum(answer["created"] for answer in pushed) == 1


def test_metrics_count_what_happened(server, http, client):
    before = server.metric('onebert_uploads_total{result="created"}')
    client.push("measured", Task(seed=35).file)
    assert server.metric('onebert_uploads_total{result="created"}') == before + 1
    sequences = server.metric("onebert_batch_sequences_sum ")
    client.classify("measured", [TEXT] * 5)
    # The engine hands out answers first and counts then.
    wait_until(lambda: server.metric("onebert_batch_sequences_sum ") == sequences + 5)
    label = 'onebert_http_requests_total{method="POST",route="/v1/tasks/{task}/classify",status="200"}'
    assert server.metric(label) >= 1
    # Tasks have metrics of their own, bounded in their number; those of HTTP have the template of the path.
    of_http = [line for line in http.get("/metrics").text.splitlines() if line.startswith("onebert_http_")]
    assert not [line for line in of_http if "measured" in line]


def _digest(file: bytes) -> str:
    return "sha256:" + hashlib.sha256(file).hexdigest()
