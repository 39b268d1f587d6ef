"""An answer says where its time went, whichever process took it."""

import re
import time

import pytest

from servers import Task, layouts

pytestmark = layouts

PHASES = ["parse", "tokenize", "queue", "forward", "answer"]
STORED = {"first": Task(seed=1), "second": Task(seed=2)}
TEXT = "the screen was broken"


def timing(answer):
    """The phases in milliseconds, by the grammar of the header field."""
    entries = [
        re.fullmatch(r"([a-z]+);dur=([0-9]+\.[0-9]{3})", phase) for phase in answer.headers["server-timing"].split(", ")
    ]
    return {entry[1]: float(entry[2]) for entry in entries}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/tasks/first/classify", {"inputs": TEXT}),
        ("/v1/classify", {"items": [{"task": task, "text": f"{TEXT} {task}"} for task in ("first", "second")]}),
        ("/v1/fanout", {"tasks": ["*"], "text": TEXT}),
        # More than the event loop reads itself: FastAPI's path, a thread that reads the body, a tokenizer in turns.
        ("/v1/tasks/first/classify", {"inputs": [f"{number} " * 1000 for number in range(20)]}),
    ],
    ids=["one", "mixed", "fan-out", "large"],
)
def test_phases_take_no_longer_than_the_request(web, path, body):
    began = time.perf_counter()
    answer = web.post(path, json=body)
    whole = 1000 * (time.perf_counter() - began)
    phases = timing(answer)
    assert answer.status_code == 200
    assert list(phases) == PHASES
    assert phases["forward"] > 0
    # Each is rounded to a microsecond.
    assert sum(phases.values()) <= whole + 0.001 * len(phases)


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/tasks/nobody/classify", {"inputs": TEXT}), ("/v1/classify", {"items": []}), ("/v1/classify", {"item": 1})],
)
def test_what_is_refused_has_no_phases(web, path, body):
    answer = web.post(path, json=body)
    assert answer.status_code in {404, 422}
    assert "server-timing" not in answer.headers
