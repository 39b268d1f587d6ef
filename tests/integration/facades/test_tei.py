"""Text Embeddings Inference's wire format, as its server's source has it: forms of inputs, headers, errors, /info."""

import httpx
import pytest

from facade_tasks import assert_best_first

TEXT, OTHER = "please help my order is late", "thank you it came today"


def predict(url, inputs, task="tone", **arguments):
    return httpx.post(f"{url}/t/{task}/predict", json={"inputs": inputs, **arguments}, timeout=180)


def assert_scores(scores, expected):
    assert len(scores) == len(expected)
    assert_best_first({entry["label"]: entry["score"] for entry in scores}, expected)


def test_a_list_of_two_texts_is_a_pair(url, tasks):
    for inputs, texts in ((TEXT, [TEXT]), ([TEXT], [TEXT]), ([TEXT, OTHER], [TEXT, OTHER])):
        assert_scores(predict(url, inputs).json(), tasks["tone"].scores(*texts))


def test_what_a_client_may_say_of_truncation(url, tasks):
    long = " ".join([TEXT] * 20)
    for arguments in ({}, {"truncate": True}, {"truncate": None, "truncation_direction": "Right"}):
        cut = predict(url, [[long], [TEXT], [long]], **arguments)
        assert_scores(cut.json()[0], tasks["tone"].scores(long))
        assert cut.headers["onebert-truncated"] == "2"
    assert "onebert-truncated" not in predict(url, TEXT).headers
    refused = predict(url, long, truncate=False)
    assert (refused.status_code, refused.json()["error_type"]) == (422, "Validation")
    assert "48 tokens" in refused.json()["error"]
    assert predict(url, TEXT, truncate=False).status_code == 200
    assert predict(url, TEXT, truncation_direction="left").status_code == 422


def test_the_reply_says_what_it_cost(url):
    headers = predict(url, [[TEXT], [OTHER, TEXT]]).headers
    assert int(headers["x-compute-characters"]) == 2 * len(TEXT) + len(OTHER)
    assert int(headers["x-compute-tokens"]) > 0
    parts = [int(headers[f"x-{name}-time"]) for name in ("tokenization", "queue", "inference")]
    assert min(parts) >= 0
    assert int(headers["x-total-time"]) >= max(parts)


@pytest.mark.parametrize(
    ("task", "body", "status", "kind"),
    [
        ("tone", {"inputs": [TEXT, TEXT, TEXT]}, 422, "Validation"),
        ("tone", {"inputs": []}, 400, "Empty"),
        ("tone", {"inputs": TEXT, "top_k": 2}, 422, "Validation"),
        ("nothing", {"inputs": TEXT}, 404, "Validation"),
    ],
)
def test_errors_have_teis_form(url, task, body, status, kind):
    answer = httpx.post(f"{url}/t/{task}/predict", json=body, timeout=180)
    assert (answer.status_code, answer.json()["error_type"]) == (status, kind)
    assert list(answer.json()) == ["error", "error_type"]
    assert TEXT not in answer.text


def test_info_says_what_the_task_is(url, tasks):
    info = httpx.get(f"{url}/t/tone/info", timeout=180).json()
    labels = tasks["tone"].manifest["labels"]
    assert info["model_type"]["classifier"]["id2label"] == {str(i): label for i, label in enumerate(labels)}
    assert info["model_type"]["classifier"]["label2id"] == {label: i for i, label in enumerate(labels)}
    assert (info["max_input_length"], info["served_model_name"]) == (48, "tone@1")
    assert info == httpx.get(f"{url}/info", headers={"detector-id": "tone@1"}, timeout=180).json()
    too_many = predict(url, [[TEXT]] * (info["max_client_batch_size"] + 1))
    assert too_many.status_code == 422
    assert httpx.get(f"{url}/t/nothing/info", timeout=180).json()["error_type"] == "Validation"
