"""What a native answer says of a cut text and of abstaining, in the headers of every façade."""

import httpx
import pytest

from facade_tasks import LONG, questions
from onebert_server.facades.routes import facade_paths
from servers import LAYOUTS, Server, Task

TEXT = "please help my order is late"
SHORT_AND_LONG = [[TEXT], [LONG], [LONG]]
# Abstains whatever it is asked.
UNSURE = {"positives": ["risky"], "abstain": {"below": 1.0}}
BUNDLE = {"tasks": [{"id": f"{at}", "classify": {"model": "unsure", "input": TEXT}} for at in range(2)]}
# The routes beside those that take the one body: a bundle, a version in the path, the router's own call over HTTP.
OTHERS = {
    "/v1/bundle": BUNDLE,
    "/v2/models/{model}/versions/{version}/infer": questions(TEXT)["/v2/models/{model}/infer"],
}
# It finds words, and no task on words abstains.
OF_WORDS = "/v1/extract"


@pytest.fixture(scope="module", params=LAYOUTS["argvalues"], ids=LAYOUTS["ids"])
def web(request, tmp_path_factory):
    """A client of a server with a task that always abstains, and one that never does."""
    labels = ["fine", "risky"]
    with Server(tmp_path_factory.mktemp("marks"), front_ends=request.param) as server:
        unsure = Task(labels=labels, seed=2, format=2, decision=UNSURE)
        sure = Task(labels=labels, seed=2, format=2, decision=UNSURE | {"abstain": {"below": 1e-9}})
        server.push({"unsure": unsure, "sure": sure})
        with httpx.Client(base_url=server.url, timeout=180) as client:
            yield client


def ask(web, path, body, task):
    headers = {} if "{" in path or path == "/v1/bundle" else {"detector-id": task}
    answer = web.post(path.format(model=task, version=1), json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return {name: value for name, value in answer.headers.items() if name in ("onebert-truncated", "onebert-abstained")}


def native(web, task, texts):
    results = web.post(f"/v1/tasks/{task}/classify", json={"inputs": texts}).json()["results"]
    return sum(result["truncated"] for result in results), sum(result["abstained"] for result in results)


def test_every_facade_says_that_the_answer_abstains(web):
    asked = questions(TEXT) | OTHERS
    assert {path for path in facade_paths() if "{task}" not in path} >= asked.keys()
    assert native(web, "unsure", [TEXT]) == (0, 1)
    assert native(web, "sure", [TEXT]) == (0, 0)
    for path, body in asked.items():
        if path != OF_WORDS:
            assert ask(web, path, body, "unsure") == {"onebert-abstained": "2" if path == "/v1/bundle" else "1"}, path
        if path not in (OF_WORDS, "/v1/bundle"):
            assert ask(web, path, body, "sure") == {}, path
    assert ask(web, "/classify", {"inputs": TEXT}, "unsure") == {"onebert-abstained": "1"}


def test_each_facade_that_cuts_counts_the_cut_texts(web):
    assert native(web, "sure", [TEXT, LONG, LONG]) == (2, 0)
    texts = [TEXT, LONG, LONG]
    tensor = {"inputs": [{"name": "text", "shape": [3], "datatype": "BYTES", "data": texts}]}
    for path, body in {
        "/predict": {"inputs": SHORT_AND_LONG},
        "/v2/models/{model}/infer": tensor,
        "/classify": {"input": texts, "truncate_prompt_tokens": -1},
        "/v1/classify": {"input": texts},
    }.items():
        assert ask(web, path, body, "sure") == {"onebert-truncated": "2"}, path
        assert ask(web, path, body, "unsure") == {"onebert-truncated": "2", "onebert-abstained": "3"}, path
    # These read to the end.
    for path in ("/", "/classify", "/v1/moderations", "/v1/models/{model}:predict", "/api/v1/text/contents"):
        assert ask(web, path, questions(LONG)[path], "sure") == {}, path
