"""Many clients at once on a real server: every answer is by the version it names, whatever else goes on."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from servers import Task, assert_answers, layouts

TEXTS = [f"my order {i} is late " + "and the parcel was broken " * (i % 4) for i in range(8)]
KINDS = [("bitfit", "mean"), ("layernorm", "cls"), ("lora", "pooler"), ("spafit", "mean"), ("gains", "cls")]


@pytest.fixture(scope="module")
def expected(client):
    """(task, text) -> scores, for tasks of several kinds and label counts."""
    scores = {}
    for i in range(10):
        task = Task(*KINDS[i % len(KINDS)], labels=2 + i % 3, seed=i)
        client.push(f"task-{i}", task.file)
        scores |= {(f"task-{i}", text): task.scores(text) for text in TEXTS}
    return scores


@layouts
def test_every_client_gets_its_own_tasks_answers(server, expected):
    asked = list(expected)

    def ask(seed):
        rng = np.random.default_rng(seed)
        with server.client() as web:
            for _ in range(12):
                chosen = [asked[i] for i in rng.integers(0, len(asked), rng.integers(1, 20))]
                for (task, text), result in zip(chosen, web.classify_items(chosen), strict=True):
                    assert result["task"] == task
                    assert_answers(result, expected[task, text])
        return seed

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == list(range(16))
