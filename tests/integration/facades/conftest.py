"""Servers for the façades' clients, in one process and behind front ends: of tasks of each type, and of guards."""

import httpx
import pytest

from facade_tasks import KEY, guards
from servers import LAYOUTS, Server, Task

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


@pytest.fixture(scope="session", params=LAYOUTS["argvalues"], ids=LAYOUTS["ids"])
def url(request, tmp_path_factory, tasks):
    """Where the server is."""
    with Server(tmp_path_factory.mktemp("facades"), front_ends=request.param) as server:
        server.push(tasks)
        yield server.url
    assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="session", params=LAYOUTS["argvalues"], ids=LAYOUTS["ids"])
def web(request, tmp_path_factory):
    """A client of a server with what `guards` makes, which sends the key that this server wants."""
    with Server(tmp_path_factory.mktemp("gateways"), api_keys=KEY, front_ends=request.param) as server:
        server.push(guards())
        with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=180) as client:
            yield client
    assert "Traceback" not in server.log.read_text()
