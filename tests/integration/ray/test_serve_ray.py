"""`onebert serve --ray` on a real cluster of two nodes: answers, keys, a node that dies, replicas by load."""

import json
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from bases import tiny_base
from otlp_receiver import Received, receiving
from ray_clusters import Nodes, environment
from servers import ONEBERT, Task, assert_answers, clean_env, run_onebert, wait_until

pytestmark = pytest.mark.slow

KEY = "a-root-key-of-the-environment"
KEY_OF_COLLECTOR = "a-key-of-the-collector"
TEXT = "the screen was broken"
OCTETS = {"Content-Type": "application/octet-stream"}
SERVED_ON_RAY = Path(__file__).parents[2] / "served_on_ray.py"
# Each node has room for one replica of two processors, its front end, and no second replica.
NODE = 3


def settings(postgres_url, folder, **more):
    """The environment of a command that serves on a cluster."""
    of_server = {
        "registry": postgres_url,
        "base": tiny_base(),
        "dtype": "float32",
        "port": 0,
        "data_dir": folder / "data",
    }
    return environment() | clean_env(**of_server, max_queue_seconds=600, **more)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    nodes = Nodes(NODE, NODE)
    yield nodes
    nodes.close()


@contextmanager
def serving(command, env):
    """A process that says where it listens, until the block ends; gives its lines."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*map(str, command)], stdin=pipe, stdout=pipe, text=True, env=env) as process:
        try:
            yield process, (line.split()[-1] for line in process.stdout if line.startswith("Listening on"))
        finally:
            process.terminate()
            process.wait(300)


@pytest.fixture(scope="module")
def received() -> Iterator[Received]:
    with receiving() as received:
        yield received


@pytest.fixture(scope="module")
def server(nodes, postgres, received, tmp_path_factory):
    """Where its front ends listen, one after the other; it serves until the last test has ended."""
    traces = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": received.url,
        "OTEL_EXPORTER_OTLP_HEADERS": f"x-api-key={KEY_OF_COLLECTOR}",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    command = [ONEBERT, "serve", "--ray", nodes.address, "--replicas", "2", "--cpus", "2"]
    env = settings(postgres.url(postgres.create()), tmp_path_factory.mktemp("cluster"), api_keys=KEY)
    with serving(command, env | traces) as (_, listening):
        yield listening


def client(url, key=KEY):
    """A client that waits longer than a loaded machine takes."""
    headers = {"Authorization": f"Bearer {key}", "X-Request-Timeout": "600"}
    return httpx.Client(base_url=url, headers=headers, timeout=600)


class Load:
    """Clients that never ask again: each classifies one text after the other until that fails, and notes what came."""

    def __init__(self, url, tasks, clients=4, texts=1):
        self.url, self.tasks, self.texts = url, tasks, texts
        self.ended, self.statuses, self.errors = threading.Event(), [], []
        self.pool = ThreadPoolExecutor(clients)
        for number in range(clients):
            self.pool.submit(self.run, number)

    def run(self, number):
        inputs = TEXT if self.texts == 1 else [f"{TEXT} {'again ' * 40}{index}" for index in range(self.texts)]
        try:
            with client(self.url) as web:
                while not self.ended.is_set():
                    task = self.tasks[(len(self.statuses) + number) % len(self.tasks)]
                    answer = web.post(f"/v1/tasks/{task}/classify", json={"inputs": inputs})
                    answer.raise_for_status()
                    self.statuses.append(answer.status_code)
        except httpx.HTTPStatusError as error:
            self.errors.append(error.response.text)
        except httpx.HTTPError as error:
            self.errors.append(error)

    def close(self):
        self.ended.set()
        self.pool.shutdown()


@pytest.fixture(scope="module")
def front_ends(server):
    """A client of each of the two front ends."""
    with ExitStack() as stack:
        yield [stack.enter_context(client(next(server))) for _ in range(2)]


@pytest.fixture(scope="module")
def tasks(front_ends):
    """Tasks by name; each was uploaded through one front end and at once answered through the other."""
    tasks = {f"task-{seed}": Task(seed=seed) for seed in range(6)}
    for number, (name, task) in enumerate(tasks.items()):
        first, other = front_ends if number % 2 else reversed(front_ends)
        taken = first.put(f"/v1/tasks/{name}/versions", content=task.file, headers=OCTETS)
        assert taken.status_code == 201, taken.text
        seen = {"OneBERT-Min-Seq": taken.headers["OneBERT-Seq"]}
        answer = other.post(f"/v1/tasks/{name}/classify", json={"inputs": TEXT}, headers=seen)
        assert_answers(answer.json()["results"][0], task.scores(TEXT))
    return tasks


def test_replicas_come_with_work_and_go_when_it_is_done(nodes, postgres_url, tmp_path):
    layout = {"replicas": "1-3", "busy": 0.2, "grow_after": 0.5, "shrink_after": 2}
    command = [sys.executable, SERVED_ON_RAY, nodes.address, json.dumps(layout)]
    with serving(command, settings(postgres_url, tmp_path, api_keys=KEY)) as (process, listening):
        url = next(listening)

        def replicas():
            print(file=process.stdin, flush=True)
            return int(process.stdout.readline())

        with client(url) as web:
            assert web.put("/v1/tasks/task/versions", content=Task().file, headers=OCTETS).status_code == 201
        assert replicas() == 1
        load = Load(url, ["task"], clients=8, texts=64)
        wait_until(lambda: load.errors or replicas() == 3, seconds=300)
        load.close()
        wait_until(lambda: replicas() == 1, seconds=300)
        assert not load.errors
        assert {*load.statuses} == {200}
        process.stdin.close()


def test_requests_that_come_while_it_ends_are_answered(nodes, postgres_url, tmp_path):
    command = [ONEBERT, "serve", "--ray", nodes.address, "--cpus", "2"]
    env = settings(postgres_url, tmp_path, api_keys=KEY, drain_delay=4)
    with serving(command, env) as (process, listening):
        url = next(listening)
        with client(url) as web:
            assert web.put("/v1/tasks/task/versions", content=Task().file, headers=OCTETS).status_code == 201
            load = Load(url, ["task"])
            wait_until(lambda: load.errors or len(load.statuses) > 20)
            process.terminate()
            wait_until(lambda: web.get("/metrics").headers.get("connection") == "close")
            assert web.get("/readyz").status_code == 503
        wait_until(lambda: len(load.errors) == 4, seconds=300)
        load.close()
        # Nobody listens; a connection that had not been accepted by then is reset.
        assert {type(error) for error in load.errors} <= {httpx.ConnectError, httpx.ReadError}
        assert {*load.statuses} == {200}
        assert process.wait(300) == 0


def test_what_a_cluster_cannot_serve_is_one_line(nodes, postgres_url, tmp_path):
    on_it = ["serve", "--ray", nodes.address]
    env = environment()
    refusals = {
        "ONEBERT_REGISTRY=postgresql": run_onebert(*on_it, env=env, data_dir=tmp_path),
        "replicas": run_onebert(*on_it, "--replicas", "3-1", env=env, registry=postgres_url),
        "--ray ADDRESS": run_onebert("serve", "--replicas", "2", env=env, data_dir=tmp_path),
        "no Ray cluster answers": run_onebert("serve", "--ray", "127.0.0.1:9", env=env, registry=postgres_url),
        "config.json of": run_onebert(*on_it, env=env, registry=postgres_url, base=tmp_path, port=0),
    }
    for message, done in refusals.items():
        assert done.returncode == 1, done.stderr
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_a_cluster_answers_as_one_server_does(front_ends, tasks):
    web, _ = front_ends
    every = web.post("/v1/fanout", json={"text": TEXT, "tasks": ["*"]})
    many = web.post("/v1/classify", json={"items": [{"task": name, "text": TEXT} for name in tasks]})
    for answer in (every, many):
        by_task = {result["task"]: result for result in answer.json()["results"]}
        assert by_task.keys() == tasks.keys()
        for name, task in tasks.items():
            assert_answers(by_task[name], task.scores(TEXT))
    refused = [
        web.post("/v1/tasks/nobody/classify", json={"inputs": TEXT}),
        web.post("/v1/tasks/task-1/classify", json={"inputs": []}),
        web.put("/v1/tasks/task-1/versions", content=b"no file", headers=OCTETS),
        web.get("/v1/nothing"),
        web.get("/v1/tasks/task-1/classify"),
        httpx.get(f"{web.base_url}/v1/tasks"),
        httpx.post(f"{web.base_url}/v1/tasks/task-1/classify", json={"inputs": TEXT}),
    ]
    assert [answer.status_code for answer in refused] == [404, 422, 422, 404, 405, 401, 401]
    for answer in refused:
        assert answer.headers["content-type"] == "application/problem+json"
        assert len(answer.headers.get_list("x-request-id")) == 1
    assert web.get("/v1/tasks/task-1/versions/1/delta").content == tasks["task-1"].file
    assert web.get("/readyz").json() == {"status": "ready", "storage": "ok"}
    assert {by_task["name"] for by_task in web.get("/v1/tasks").json()["tasks"]} == tasks.keys()


def test_a_key_of_the_registry_is_taken_and_revoked_on_every_node(front_ends, tasks):
    first, other = front_ends
    made = first.post("/v1/keys", json={"name": "ci", "scopes": ["classify"], "tasks": ["task-1"]}).json()

    def asked(web, task="task-1"):
        headers = {"Authorization": f"Bearer {made['key']}"}
        return web.post(f"/v1/tasks/{task}/classify", json={"inputs": TEXT}, headers=headers).status_code

    for web in front_ends:
        wait_until(lambda web=web: asked(web) == 200)
        assert asked(web, "task-2") == 404
    assert other.delete(f"/v1/keys/{made['id']}").status_code == 204
    for web in front_ends:
        wait_until(lambda web=web: asked(web) == 401)


def test_a_request_is_one_trace_across_nodes(front_ends, received):
    caller, trace_id = secrets.token_hex(8), secrets.token_hex(16)
    answer = front_ends[0].get("/v1/tasks", headers={"traceparent": f"00-{trace_id}-{caller}-01"})

    def spans_of_it(spans):
        return [span for span in spans if span.trace_id.hex() == trace_id]

    [front_end] = received.until(spans_of_it)
    assert (front_end.parent_span_id.hex(), front_end.name) == (caller, "GET /v1/tasks")
    named = f'traceparent;desc="00-{trace_id}-{front_end.span_id.hex()}-01"'
    assert answer.headers.get_list("server-timing") == [named]
    assert received.keys == {KEY_OF_COLLECTOR}


def test_a_node_that_dies_fails_no_request_of_another(server, front_ends, tasks, nodes):
    loads = [Load(str(web.base_url), [*tasks]) for web in front_ends]
    wait_until(lambda: all(len(load.statuses) > 50 for load in loads))
    nodes.kill()
    counted = set()

    def measured():
        """What the front ends that are there say when they are asked for metrics."""
        for web in front_ends:
            with suppress(httpx.TransportError):
                counted.add(web.get("/metrics").status_code)

    # Whoever had come to the node that is gone has lost its connection, and would ask the other.
    wait_until(lambda: measured() or any(len(load.errors) == 4 for load in loads), seconds=300)
    [stays] = [load for load in loads if not load.errors]
    before = len(stays.statuses)
    wait_until(lambda: len(stays.statuses) > before + 200, seconds=300)
    for load in loads:
        load.close()
    assert not stays.errors
    assert {*stays.statuses} == counted == {200}
    nodes.add(NODE)
    with client(next(server)) as web:
        assert web.post("/v1/tasks/task-1/classify", json={"inputs": TEXT}).status_code == 200
