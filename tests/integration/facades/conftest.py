"""One server with a task of each type for the façades' clients, in one process and behind front ends."""

import httpx
import pytest

from servers import LAYOUTS, Server, Task

OCTETS = {"Content-Type": "application/octet-stream"}
NLI = ["entailment", "neutral", "contradiction"]


@pytest.fixture(scope="session")
def tasks():
    """Name -> task."""
    return {
        "tone": Task(seed=1),
        "several": Task(task_type="multi_label", labels=["spam", "rude", "off topic"], seed=2),
        "amount": Task(task_type="regression", labels=["amount"], seed=3),
        "tags": Task(labels=["O", "B-x", "I-x", "B-y", "I-y"], task_type="token", pooling="none", seed=4),
        "spans": Task(labels=["start", "end"], task_type="span", pooling="none", seed=5),
        "nli": Task(labels=NLI, seed=6),
        "rte": Task(labels=["not_entailment", "entailment"], seed=7),
    }


@pytest.fixture(scope="session", **{"params": LAYOUTS["argvalues"], "ids": LAYOUTS["ids"]})
def url(request, tmp_path_factory, tasks):
    """Where the server is."""
    folder = tmp_path_factory.mktemp("facades")
    with Server(folder, front_ends=request.param) as server:
        for name, task in tasks.items():
            answer = httpx.put(f"{server.url}/v1/tasks/{name}/versions", content=task.file, headers=OCTETS, timeout=180)
            assert answer.status_code == 201, answer.text
        yield server.url
    assert "Traceback" not in server.log.read_text()
