"""Switches of a server, each pair of them in one of eight servers: a switch changes what it names and nothing else."""

from dataclasses import dataclass
from itertools import combinations, count, product

import httpx
import numpy as np
import pytest
from cryptography.fernet import Fernet

from bases import tiny_base, wide_base
from forked import Forked
from onebert_server.client import Client
from onebert_server.contract.tasks import ShadowShare, TargetFacts
from servers import Server, Task, assert_answers, wait_until

# The columns of ROWS: what stands for 1.
SWITCHES = ("no watching", "no task metrics", "no samples key", "two bases", "front ends", "quota", "windows")
# An orthogonal array of strength two: in every two columns each pair of values stands twice.
ROWS = ("0000000", "0001111", "0110011", "0111100", "1010101", "1011010", "1100110", "1101001")
ROOT = "the-key-of-the-environment"
WORDS = "late broken lovely bad good great parcel invoice screen refund help password".split()
HUNDRED = [" ".join(words) for words in product(WORDS, WORDS)][:100]
# A token a letter: some 80 windows of 16 tokens, so that 64 of these have more of them than the 4,096 sequences of a
# request; and a text of more windows than one question may have.
LONG = [" ".join(f"{letter} b c d e" for _ in range(160)) for letter in "fghijklm"]
ENDLESS = " ".join("abcdefghij" * 400)
WINDOW = {"tokens": 16, "overlap": 4, "reduction": "mean"}
# Of one request: a caller with it is answered once, however large the request, and then refused.
ONE_REQUEST = {"requests": 1e-6, "tokens": 1e-6}


class OfBoth(Server):
    def launch(self, **options):
        bases = [word for path in (tiny_base(), wide_base()) for word in ("--base", str(path))]
        return Forked("serve", *bases, **options)


@dataclass
class Place:
    """A server with some switches, and its administrator."""

    server: Server
    root: Client
    on: frozenset[str]
    tasks: dict[str, Task]
    names: count

    def caller(self, quotas=ONE_REQUEST):
        """A client with a key of its own, which the quota lets ask once."""
        quotas = {"quotas": quotas} if "quota" in self.on else {}
        scopes = ["classify", "promote", "feedback", "review"]
        body = {"name": f"caller-{next(self.names)}", "scopes": scopes, "tasks": ["*"]} | quotas
        with self.http(ROOT) as http:
            key = http.post("/v1/keys", json=body).raise_for_status().json()["key"]
        return self.http(key)

    def http(self, key):
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.server.url, headers=headers, timeout=180)

    def ask(self, method, path, body=None, **headers):
        """The answer to a new caller's first request, and its second one, which only a quota refuses."""
        with self.caller() as http:
            answer = http.request(method, path, json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            if "quota" in self.on:
                assert http.post("/v1/tasks/tone/classify", json={"inputs": "late"}).status_code == 429
        return answer.json()


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_a_switch_changes_what_it_names_alone(tmp_path, row, subtests):
    on = frozenset(name for name, value in zip(SWITCHES, row, strict=True) if value == "1")
    windows = {"format": 2, "decision": {"window": WINDOW, "positives": ["label 0"]}}
    read_by = windows if "windows" in on else {"format": 2, "decision": {"positives": ["label 0"]}}
    tasks = {
        "tone": Task(seed=1, **read_by),
        # Its shadow reads windows where it does not.
        "watched": Task(seed=2, **read_by),
    }
    settings = {
        "api_keys": ROOT,
        "front_ends": 2 if "front ends" in on else 0,
        **({"false_alarms": 0} if "no watching" in on else {}),
        **({"task_metrics": 0} if "no task metrics" in on else {}),
        **({} if "no samples key" in on else {"samples_key": Fernet.generate_key().decode()}),
    }
    kind = OfBoth if "two bases" in on else Server
    with kind(tmp_path, **settings) as server, Client(server.url, api_key=ROOT) as root:
        server.push(tasks)
        root.push("tone", Task(seed=3, **read_by).file)
        root.push("watched", Task(seed=3, **({} if "windows" in on else windows)).file)
        target = TargetFacts({"1": 100}, shadow=[ShadowShare(2)])
        root.move_alias("watched", "live", target, expected=1)
        place = Place(server, root, on, tasks, count())
        for use in USES:
            with subtests.test(use.__name__):
                use(place)


def test_every_two_switches_meet_in_every_way():
    for first, other in combinations(range(len(SWITCHES)), 2):
        assert {(row[first], row[other]) for row in ROWS} == {*product("01", "01")}


def right(place, text):
    return f"label {np.argmax(place.tasks['tone'].logits(text))}"


def one_text(place):
    answer = place.ask("POST", "/v1/tasks/tone/classify", {"inputs": HUNDRED[0]})
    assert_answers(answer["results"][0], place.tasks["tone"].scores(HUNDRED[0]))


def sixty_four_items(place):
    items = [{"task": "tone", "text": text} for text in HUNDRED[:64]]
    answers = place.ask("POST", "/v1/classify", {"items": items})["results"]
    assert [answer["label"] for answer in answers] == [right(place, text) for text in HUNDRED[:64]]


def every_task(place):
    answers = place.ask("POST", "/v1/fanout", {"text": HUNDRED[1], "tasks": ["*"]})["results"]
    by_task = {answer["task"]: answer for answer in answers}
    assert by_task.keys() == place.tasks.keys()
    assert_answers(by_task["tone"], place.tasks["tone"].scores(HUNDRED[1]))


def explained(place):
    answer = place.ask("POST", "/v1/tasks/tone/classify", {"inputs": HUNDRED[:8], "explain": True})
    assert [result["label"] for result in answer["results"]] == [right(place, text) for text in HUNDRED[:8]]


def a_long_text(place):
    [result] = place.ask("POST", "/v1/tasks/tone/classify", {"inputs": LONG[0]})["results"]
    assert result["truncated"] is ("windows" not in place.on)


def kept_answers_of_a_facade_over_64_texts(place):
    if "no samples key" in place.on:
        return
    place.root.set_samples("tone", 1.0)
    body = {"input_type": "request", "texts": HUNDRED, "request_data": {}, "model": "some-llm"}
    place.ask("POST", "/t/tone/beta/litellm_basic_guardrail_api", body)
    wait_until(lambda: place.root.samples("tone").kept == len(HUNDRED))
    page = place.root.sample_rows("tone")
    rows = page.samples + place.root.sample_rows("tone", page.next).samples
    assert sorted(row.text for row in rows) == sorted(HUNDRED)
    given = [{"id": row.id, "label": right(place, row.text)} for row in rows[:32]]
    recorded = place.ask("POST", "/v1/feedback", {"data": given})["data"]
    assert [row["identifier"] for row in recorded] == [row["id"] for row in given]


def blank_texts_before_others(place):
    """A part of blank texts alone asks no version, and the request counts all the same."""
    body = {"input_type": "request", "texts": [""] * 64 + HUNDRED[:2], "request_data": {}, "model": "some-llm"}
    with place.caller({"requests": 1e-6}) as http:
        answers = [http.post("/t/watched/beta/litellm_basic_guardrail_api", json=body) for _ in range(3)]
    # Something is left after the first one: what has come since.
    assert [answer.status_code for answer in answers] == [200, 200, 429 if "quota" in place.on else 200]


def the_review_queue(place):
    if "no samples key" in place.on:
        return
    for order in ("margin", "disagreement"):
        queue = place.ask("GET", f"/v1/tasks/tone/review?by={order}&limit=100")
        assert len(queue["items"]) == len(HUNDRED) - 32


def feedback_on_the_answers_of_a_version_and_its_shadow(place):
    items = [
        {"task": "watched", "text": text, "label": "label 0", "identifier": f"row {at}"}
        for at, text in enumerate(HUNDRED[:64])
    ]
    recorded = place.ask("POST", "/v1/feedback", {"data": items})["data"]
    assert [row["identifier"] for row in recorded] == [row["identifier"] for row in items]


def a_gate_with_long_rows(place):
    rows = [{"text": text, "label": right(place, text)} for text in HUNDRED]
    rows += [{"text": f"{LONG[at % len(LONG)]} {at}", "label": "label 0"} for at in range(64)]
    place.root.set_gate("tone", {"max": {"flips": 1.0}, "min": {"accuracy": 0.0}}, rows)
    path = "/v1/tasks/tone/aliases/live"
    assert place.ask("PUT", path, {"version": 2}, **{"If-Match": '"1"'})["version"] == 2
    place.root.delete_gate("tone")
    place.root.move_alias("tone", "live", 1, expected=2)


def a_shadow_that_reads_otherwise(place):
    def counts():
        [agreement] = place.root.shadows("watched", "live")
        return agreement

    endless = [] if "windows" in place.on else [ENDLESS]
    texts = [*HUNDRED[:8], *LONG, *endless]
    before = counts()
    place.ask("POST", "/v1/tasks/watched/classify", {"inputs": texts})
    wait_until(lambda: counts().answers + counts().left_out >= before.answers + before.left_out + len(texts))
    assert counts().left_out == before.left_out + len(endless)


def what_operators_read(place):
    with place.http(ROOT) as http:
        for path in ("/metrics", "/v1/status", "/v1/tasks/tone/watch", "/v1/tasks/tone", "/healthz", "/readyz"):
            assert http.get(path).status_code == 200, path


USES = (
    one_text,
    sixty_four_items,
    every_task,
    explained,
    a_long_text,
    kept_answers_of_a_facade_over_64_texts,
    blank_texts_before_others,
    the_review_queue,
    feedback_on_the_answers_of_a_version_and_its_shadow,
    a_gate_with_long_rows,
    a_shadow_that_reads_otherwise,
    what_operators_read,
)
