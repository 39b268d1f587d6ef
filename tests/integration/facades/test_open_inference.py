"""The Open Inference Protocol: on the wire, and by the real clients of Triton and KServe."""

import json

import httpx
import numpy as np
import pytest

from environments import python_environment
from facade_tasks import KEY, TEXTS, telling

INFER = "/v2/models/risk/infer"
LABELS = ["fine", "risky"]


def tensor(data=TEXTS, **more):
    return {"name": "text", "shape": [len(data)], "datatype": "BYTES", "data": data} | more


def expected(texts=TEXTS, pairs=None):
    rows = [
        telling().scores(*halves) for halves in (zip(texts, pairs, strict=True) if pairs else zip(texts, strict=True))
    ]
    return np.array([[row[label] for label in LABELS] for row in rows])


def test_tensors_in_json(web):
    answer = web.post(INFER, json={"id": "mine", "inputs": [tensor()]}).json()
    scores, label, truncated = answer.pop("outputs")
    assert answer == {"model_name": "risk", "model_version": "1", "id": "mine"}
    assert (scores["name"], scores["datatype"], scores["shape"]) == ("scores", "FP32", [3, 2])
    np.testing.assert_allclose(np.array(scores["data"]).reshape(3, 2), expected(), atol=1e-4, rtol=0)
    assert label["data"] == [LABELS[index] for index in expected().argmax(-1)]
    assert (truncated["datatype"], truncated["data"]) == ("BOOL", [False] * 3)


def test_stretches_are_json_in_a_tensor(web):
    answer = web.post("/v2/models/names/infer", json={"inputs": [tensor()]}).json()
    native = web.post("/v1/tasks/names/classify", json={"inputs": TEXTS}).json()["results"]
    assert [json.loads(cell) for cell in answer["outputs"][0]["data"]] == [cell["entities"] for cell in native]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"inputs": [tensor(shape=[2])]},
        {"inputs": [tensor(datatype="INT64", data=[1, 2, 3])]},
        {"inputs": [tensor(), tensor(["a"], name="text_pair")]},
        {"inputs": [tensor(parameters={"shared_memory_region": "a"})]},
        {"inputs": [tensor()], "outputs": [{"name": "logits"}]},
        {"inputs": [tensor()], "parameters": {"temperature": 2}},
    ],
)
def test_what_is_no_question_is_refused(web, body):
    answer = web.post(INFER, json=body)
    assert (answer.status_code, list(answer.json())) == (400, ["error"]), answer.text


@pytest.mark.parametrize("where", [{}, {"Inference-Header-Content-Length": str(10**8)}], ids=["not said", "beyond"])
def test_bytes_that_are_no_tensor_are_refused(web, where):
    """More are in tests/unit/server/test_client_bodies.py; here no header, or a wrong one, says where they begin."""
    given = {"name": "text", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 5}}
    content = json.dumps({"inputs": [given]}).encode() + b"\1\0\0\0a"
    answer = web.post(INFER, content=content, headers={"content-type": "application/octet-stream"} | where)
    assert (answer.status_code, list(answer.json())) == (400, ["error"]), answer.text


def test_health_needs_no_key_and_all_else_does(web):
    for path, status in (
        ("/v2/health/live", 200),
        ("/v2/health/ready", 200),
        ("/v2", 401),
        ("/v2/models/risk", 401),
        ("/v2/models/risk/ready", 401),
    ):
        assert httpx.get(web.base_url.join(path), timeout=180).status_code == status
    assert web.get("/v2/models/risk/versions/7/ready").status_code == 404
    assert web.get("/v2/models/risk@1/versions/1").status_code == 400


@pytest.mark.slow
def test_triton(web):
    url = str(web.base_url).rstrip("/")
    seen = python_environment("tritonclient").run("tritonclient.py", url, KEY, "risk", "1", json.dumps(TEXTS))
    assert (seen["live"], seen["ready"]) == (True, True)
    assert seen["model"]["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert seen["model"]["outputs"][0] == {"name": "scores", "datatype": "FP32", "shape": [-1, 2]}
    for name in ("binary", "json", "async"):
        np.testing.assert_allclose(seen[name]["scores"], expected(), atol=1e-4, rtol=0)
        assert seen[name]["labels"] == [LABELS[index] for index in expected().argmax(-1)]
        assert seen[name]["truncated"] == [False] * 3
    assert seen["async"]["head"] == {"model_name": "risk", "model_version": "1", "id": "seven"}
    np.testing.assert_allclose(seen["pairs"]["scores"], expected(TEXTS, TEXTS[::-1]), atol=1e-4, rtol=0)
    best = [ranked.split(":") for ranked in seen["top"][::2]]
    assert [(int(index), label) for _, index, label in best] == [(int(i), LABELS[i]) for i in expected().argmax(-1)]
    np.testing.assert_allclose([float(score) for score, *_ in best], expected().max(-1), atol=1e-4, rtol=0)
    assert [seen[name]["status"] for name in ("late", "no_task", "parameter")] == ["504", "404", "400"]
    assert "temperature" in seen["parameter"]["message"]


@pytest.mark.slow
def test_kserve(web):
    url = str(web.base_url).rstrip("/")
    seen = python_environment("kserve").run("kserve.py", url, KEY, "risk", json.dumps(TEXTS))
    assert (seen["ready"], seen["v2_ready"], seen["no_task"]) == (True, [True] * 3, 404)
    for prediction, text in zip(seen["predictions"]["predictions"], TEXTS, strict=True):
        assert prediction == pytest.approx(telling().scores(text), abs=1e-4)
    for form in ("json", "binary"):
        assert seen[form]["model"] == "risk"
        np.testing.assert_allclose(seen[form]["outputs"]["scores"], expected(), atol=1e-4, rtol=0)
