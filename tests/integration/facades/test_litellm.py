"""LiteLLM's generic guardrail on the wire; docs/recipes/litellm.md has a real proxy in front, and a test follows it."""

import json

import pytest

from facade_tasks import LONG, TEXTS, telling

PATH = "/beta/litellm_basic_guardrail_api"


def judge(web, texts, path=PATH, more=None, **parameters):
    body = {"input_type": "request", "texts": texts, "request_data": {}, "model": "some-llm"} | (more or {})
    answer = web.post(path, json=body | {"additional_provider_specific_params": parameters or None})
    return answer.status_code, answer.json()


def risk(text):
    [positive] = telling().manifest["decision"]["positives"]
    return float(telling().scores(text)[positive])


def between():
    """A threshold that some of the texts are over, and some are not."""
    least, next_one, *_ = sorted(risk(text) for text in TEXTS)
    return (least + next_one) / 2


def test_it_blocks_what_is_over_a_threshold_alone(web):
    for text in TEXTS:
        risky = risk(text) > between()
        status, answer = judge(web, ["", text], tasks=["risk"], threshold=between())
        assert (status, answer["action"]) == (200, "BLOCKED" if risky else "NONE")
        assert ("risk@1" in answer.get("blocked_reason", "")) is risky
        assert text not in json.dumps(answer)
    assert judge(web, TEXTS, tasks=["risk"], threshold=1) == (200, {"action": "NONE"})
    assert judge(web, TEXTS, f"/t/risk{PATH}")[1]["action"] == "BLOCKED"
    assert judge(web, [], tasks=["risk"]) == judge(web, None, tasks=["risk"]) == (200, {"action": "NONE"})


def test_it_masks_entities(web):
    native = web.post("/v1/tasks/names/classify", json={"inputs": TEXTS}).json()["results"]
    expected = []
    for text, result in zip(TEXTS, native, strict=True):
        masked = text
        for entity in reversed(result["entities"]):
            masked = f"{masked[: entity['start']]}<{entity['label']}>{masked[entity['end'] :]}"
        expected.append(masked)
    assert expected != TEXTS
    assert judge(web, TEXTS, tasks=["names"]) == (200, {"action": "GUARDRAIL_INTERVENED", "texts": expected})
    assert judge(web, TEXTS, tasks=["names", "risk"])[1]["action"] == "BLOCKED"


def test_a_long_text_is_read_to_its_end(web):
    """Cut, the text would end before its last words, of which the mask is seen."""
    status, answer = judge(web, [LONG], tasks=["names"])
    assert (status, answer["action"]) == (200, "GUARDRAIL_INTERVENED")
    native = web.post("/v1/tasks/names/classify", json={"inputs": LONG}).json()["results"][0]
    assert native["truncated"]
    assert answer["texts"][0].count("<") > len(native["entities"])


def test_what_it_does_not_look_at_may_be_large(web):
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object"}}} for i in range(2000)]
    status, answer = judge(web, [], more={"tools": tools, "images": None, "not_known_yet": 1}, tasks=["risk"])
    assert (status, answer) == (200, {"action": "NONE"})


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"texts": ["a"], "additional_provider_specific_params": {"tasks": ["nobody"]}}),
        (422, {"texts": ["a"]}),
        (422, {"texts": ["a"] * 1025, "additional_provider_specific_params": {"tasks": ["risk"]}}),
        (422, {"texts": ["a"] * 600, "additional_provider_specific_params": {"tasks": ["risk", "harms"]}}),
    ],
)
def test_it_refuses_what_it_cannot_judge(web, status, body):
    answer = web.post(PATH, json=body)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
