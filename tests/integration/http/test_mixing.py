"""The night's run: every kind of question beside every kind of change; each answer is its version's own, to the bit.

Nothing is compared with a second implementation here: the exactness tests do that. An answer that was given while
nothing else went on is what the same version must give amid all else.
"""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

from bases import tiny_base, wide_base
from facade_tasks import HARMS
from forked import Forked
from servers import Server, Task
from ways import questions

pytestmark = pytest.mark.slow

SECONDS = 600
ASKERS = 6
TOKENS = ["O", "B-PER", "I-PER"]
TASKS = {
    "tone": [Task(seed=seed, labels=["bad", "good"], format=2, decision={"positives": ["bad"]}) for seed in (1, 2, 3)],
    "harms": [Task(seed=seed, labels=HARMS, task_type="multi_label") for seed in (4, 5, 6)],
    "stars": [Task(seed=seed, labels=1, task_type="regression") for seed in (7, 8, 9)],
    "names": [Task(seed=seed, labels=TOKENS, pooling="none", task_type="token") for seed in (10, 11, 12)],
    "lora": [Task("lora", "cls", seed=seed, folder=wide_base()) for seed in (13, 14, 15)],
}
TEXTS = ["please help", "my order is late and the parcel was broken", "the weather was fine " * 20, "no " * 1500]
# 503: over a bound, or a version that is away; 504: over the request's time; 404 and 409: deleted, or moved, meanwhile.
REFUSALS = {404, 409, 503, 504}
CODES = {"deadline-exceeded", "queue-full", "over-share", "version-unavailable", "version-not-found", "task-not-found"}
FACADES = ["/", "/predict", "/classify", "/v1/moderations", "/v2/models/{model}/infer", "/v1/models/{model}:predict"]
SETTINGS = {
    "bank_bytes": 2**20,
    "max_queue_seconds": 2.0,
    "samples_key": "oOZ1YFZ0wRuQ0V1Rrs3Bxv3QyIVmLoRrkwv9vnfK7rM=",
}


class OfBoth(Server):
    def launch(self, **options):
        return Forked("serve", "--base", str(tiny_base()), "--base", str(wide_base()), **options)


@pytest.fixture(params=[0, 1, 2], ids=["one process", "a front end", "two front ends"])
def server(request, tmp_path):
    with OfBoth(tmp_path, front_ends=request.param, **SETTINGS) as running:
        yield running
    assert "Traceback" not in running.log.read_text()


class Mixing:
    """Questions and changes of one run, and the answers of each version alone."""

    def __init__(self, web: httpx.Client) -> None:
        self.web = web
        self.statuses: dict[int, int] = {}
        self.compared = 0
        self.lock = threading.Lock()
        self.alone = {
            (f"{name}@{number}", text): self.told(f"/v1/tasks/{name}@{number}/classify", {"inputs": text})["results"][0]
            for name, versions in TASKS.items()
            for number in range(1, len(versions) + 1)
            for text in TEXTS
        }
        self.shown = {
            (path, number, text): self.facade(f"tone@{number}", path, text).json()
            for path in FACADES
            for number in (1, 2, 3)
            for text in TEXTS[:2]
        }

    def told(self, path: str, body: dict) -> dict:
        answer = self.web.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def facade(self, task: str, path: str, text: str) -> httpx.Response:
        return self.web.post(f"/t/{task}" + path.format(model=task), json=questions(text)[path])

    def send(self, method: str, path: str, **body) -> httpx.Response:
        headers = {"X-Request-Timeout": random.choice(["0.05", "1", "20"])}
        answer = self.web.request(method, path, headers=headers | body.pop("headers", {}), **body)
        with self.lock:
            self.statuses[answer.status_code] = self.statuses.get(answer.status_code, 0) + 1
        assert answer.status_code < 400 or answer.status_code in REFUSALS | {408, 412, 429}, answer.text
        return answer

    def compare(self, results: list[dict], texts: list[str]) -> None:
        for result, text in zip(results, texts, strict=True):
            if "error" in result:
                assert result["error"]["code"] in CODES, result
                continue
            alone = self.alone[f"{result['task']}@{result['version']}", text]
            assert {key: result[key] for key in alone} == alone
            with self.lock:
                self.compared += 1

    def ask(self, draw: random.Random) -> None:
        """One question of a kind that is drawn."""
        kind, name = draw.choice(["task", "items", "fanout", "facade", "leave"]), draw.choice([*TASKS])
        texts = draw.choices(TEXTS, k=draw.choice([1, 2, 20, 64]))
        partial = {"partial": draw.random() < 0.5}
        if kind == "task":
            answer = self.send("POST", f"/v1/tasks/{name}/classify", json={"inputs": texts})
            if answer.status_code == 200:
                answered = answer.json()
                about = {"task": answered["task"], "version": answered["version"]}
                self.compare([about | result for result in answered["results"]], texts)
        elif kind == "items":
            items = [{"task": draw.choice([*TASKS, f"{name}@1"]), "text": text} for text in texts]
            self.results(self.send("POST", "/v1/classify", json={"items": items} | partial), texts)
        elif kind == "fanout":
            body = {"text": texts[0], "tasks": [*TASKS]} | partial
            self.results(self.send("POST", "/v1/fanout", json=body), texts[:1] * len(TASKS))
        elif kind == "facade":
            path, text = draw.choice(FACADES), draw.choice(TEXTS[:2])
            answer = self.facade("tone", path, text)
            # In the form of Text Embeddings Inference a full queue is 429.
            assert answer.status_code == 200 or answer.status_code in {*REFUSALS, 429}, answer.text
            if answer.status_code == 200:
                assert any(_alike(answer.json(), self.shown[path, number, text]) for number in (1, 2, 3))
        else:
            # A client that leaves before its answer is there, unless this thread stood still meanwhile.
            with suppress(httpx.TimeoutException):
                self.web.post(f"/v1/tasks/{name}/classify", json={"inputs": TEXTS * 16}, timeout=1e-4)

    def results(self, answer: httpx.Response, texts: list[str]) -> None:
        if answer.status_code == 200:
            self.compare(answer.json()["results"], texts)

    def change(self, draw: random.Random) -> None:
        """One change of a kind that is drawn, or a look at what is there."""
        kind, name = (
            draw.choice(["move", "split", "shadow", "upload", "delete", "feedback", "look"]),
            draw.choice([*TASKS]),
        )
        if kind in ("move", "split", "shadow"):
            if kind == "shadow" and name == "stars":  # the labels of shadows are compared
                name = "tone"
            first, second = draw.sample(["1", "2", "3"], 2)
            live = f"/v1/tasks/{name}/aliases/live"
            body = {
                "move": {"version": int(first)},
                "split": {"split": {first: 60, second: 40}},
                "shadow": {"version": int(first), "shadow": [{"version": int(second)}]},
            }[kind]
            self.send("PUT", live, json=body, headers={"If-Match": self.web.get(live).headers.get("etag", "*")})
        elif kind == "upload":
            file = Task(seed=draw.randrange(100, 110), labels=2).file
            octets = {"Content-Type": "application/octet-stream"}
            self.send("PUT", f"/v1/tasks/other-{draw.randrange(4)}/versions", content=file, headers=octets)
        elif kind == "delete":
            self.send("DELETE", f"/v1/tasks/other-{draw.randrange(4)}", headers={"If-Match": "*"})
        elif kind == "feedback":
            row = {"task": "tone", "text": draw.choice(TEXTS), "label": "good"}
            self.send("POST", "/v1/feedback", json={"data": [row]})
        else:
            path = draw.choice(["/v1/status", "/v1/tasks", f"/v1/tasks/{name}/status", "/metrics", "/healthz"])
            self.send("GET", path)


def _alike(shown, alone) -> bool:
    """Whether two answers of a façade differ in names, times and ids alone."""
    if isinstance(shown, dict) and isinstance(alone, dict):
        return shown.keys() == alone.keys() and all(
            _alike(shown[key], alone[key])
            for key in shown
            if key not in ("id", "created", "model", "model_version", "model_name")
        )
    if isinstance(shown, list) and isinstance(alone, list):
        return len(shown) == len(alone) and all(map(_alike, shown, alone))
    return shown == alone


@pytest.mark.timeout(SECONDS + 900)
def test_every_answer_is_its_versions_beside_every_change(server):
    for of_number in zip(*TASKS.values(), strict=True):
        server.push(dict(zip(TASKS, of_number, strict=True)))
    limits = httpx.Limits(max_connections=ASKERS + 2)
    with httpx.Client(base_url=server.url, timeout=180, limits=limits) as web:
        mixing, ends = Mixing(web), time.monotonic() + SECONDS

        def again(what, seed):
            nonlocal ends
            draw = random.Random(seed)
            try:
                while time.monotonic() < ends:
                    what(draw)
            except BaseException:
                ends = 0.0
                raise

        with ThreadPoolExecutor(ASKERS + 2) as pool:
            asking = [pool.submit(again, mixing.ask, seed) for seed in range(ASKERS)]
            changing = [pool.submit(again, mixing.change, seed) for seed in range(2)]
            for worker in [*asking, *changing]:
                worker.result()
    print(mixing.compared, mixing.statuses)
    assert mixing.compared > SECONDS
