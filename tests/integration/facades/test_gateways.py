"""vLLM, OpenAI and KServe as bytes on the wire: what is answered, refused and how, in each kind of process."""

import numpy as np
import pytest

from facade_tasks import HARMS, TEXTS, moderating, sigmoids, telling


def post(web, path, **body):
    answer = web.post(path, json=body)
    return answer.status_code, answer.json()


def test_vllm_gives_scores_in_the_order_of_the_labels(web):
    status, answer = post(web, "/classify", model="harms@1", input=TEXTS, user="me", priority=0)
    assert status == 200
    assert (answer["object"], answer["model"], answer["id"][:9]) == ("list", "harms@1", "classify-")
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > len(TEXTS)
    for index, (row, text) in enumerate(zip(answer["data"], TEXTS, strict=True)):
        expected = sigmoids(moderating(), text)
        np.testing.assert_allclose(row["probs"], list(expected.values()), atol=1e-4, rtol=0)
        assert (row["index"], row["label"], row["num_classes"]) == (index, max(expected, key=expected.get), 4)


@pytest.mark.parametrize(
    "more",
    [
        *({name: True} for name in ("softmax", "normalize")),
        {"activation": False},
        {"truncate_prompt_tokens": 8},
        {"truncation_side": "left"},
        {"input": [1, 2, 3]},
    ],
    ids=str,
)
def test_vllm_refuses_what_would_change_the_answer(web, more):
    status, answer = post(web, "/classify", **{"model": "harms", "input": "a"} | more)
    assert (status, list(answer)) == (400, ["error"])
    assert next(iter(more)) in answer["error"]["message"]
    assert (answer["error"]["type"], answer["error"]["code"]) == ("invalid_request_error", "invalid-input")


def test_a_moderation_has_labels_over_their_thresholds(web):
    status, answer = post(web, "/v1/moderations", model="harms", input=TEXTS)
    assert (status, answer["model"]) == (200, "harms@1")
    thresholds = moderating().manifest["decision"]["thresholds"]
    for result, text in zip(answer["results"], TEXTS, strict=True):
        expected = sigmoids(moderating(), text)
        assert len(result["categories"]) == len(result["category_scores"]) == 14
        for name in result["categories"]:
            score = expected[name] if name in HARMS[:3] else 0.0
            assert result["category_scores"][name] == pytest.approx(score, abs=1e-4)
            assert result["categories"][name] is (name in HARMS[:3] and score > thresholds[name])
            assert result["category_applied_input_types"][name] == (["text"] if name in HARMS[:3] else [])
        assert result["flagged"] is any(result["categories"].values())
    assert len({result["flagged"] for result in answer["results"]}) == 2


def test_a_task_without_positive_labels_is_no_moderation(web):
    status, answer = post(web, "/v1/moderations", model="names", input="a")
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")


def test_predictions_are_by_label_and_entities_by_place(web):
    status, answer = post(web, "/v1/models/risk:predict", instances=[TEXTS[0], {"text": "a", "text_pair": "b"}])
    assert status == 200
    for prediction, expected in zip(answer["predictions"], [(TEXTS[0],), ("a", "b")], strict=True):
        assert prediction == pytest.approx(telling().scores(*expected), abs=1e-4)
    _, native = post(web, "/v1/tasks/names/classify", inputs=TEXTS[0])
    status, answer = post(web, "/v1/models/names@live:predict", instances=[TEXTS[0]])
    assert (status, answer) == (200, {"predictions": [native["results"][0]["entities"]]})


def test_models_are_the_live_tasks_and_each_is_ready(web):
    listed = web.get("/v1/models").json()
    assert (listed["object"], [model["id"] for model in listed["data"]]) == ("list", ["harms", "names", "risk"])
    assert all((model["object"], model["root"]) == ("model", f"{model['id']}@1") for model in listed["data"])
    assert [model["id"] for model in web.get("/t/risk@1/v1/models").json()["data"]] == ["risk@1"]
    model = web.get("/v1/models/risk@1").json()
    assert (model["id"], model["name"], model["ready"], model["object"]) == ("risk@1", "risk@1", True, "model")
    for name in ("nobody", "risk@7", "risk@next"):
        assert web.get(f"/v1/models/{name}").status_code == 404
    assert web.get("/t/risk/").json() == {"status": "alive"}
