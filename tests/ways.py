"""Every way to ask a server about texts: its own routes, and a façade's question each, with what a reply must say."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

MCP = {"Accept": "application/json, text/event-stream"}
# Whole texts, all or some of them pairs; and parts of texts.
OF_TEXTS, OF_WORDS, OF_PAIRS = frozenset({"single_label", "multi_label"}), frozenset({"token"}), frozenset({"span"})
NUMBER = frozenset({"regression"})


def same(text: str) -> Any:
    return text


def doubled(text: str) -> Any:
    """A native input of a text with itself."""
    return {"text": text, "text_pair": text}


class Way(NamedTuple):
    """One way to ask.

    Attributes:
        path: `{task}` stands for a reference.
        body: of a question about texts, and a task that it may name.
        scores: label -> score of each text, of a reply and all labels of the task in their order.
        shows: these are of `all` labels, of the `best`, or of the `positive` ones.
        every: what a body says, too, so that no score is left out.
        takes: the types of tasks that it is for.
        most: texts.
        whole: whether a text that is too long is read in windows, if the file cuts its end.
        blanks: whether a blank text has an answer, which finds nothing.
        as_input: the native input that a text is.
    """

    path: str
    body: Callable[[list[str], str], dict[str, Any]]
    scores: Callable[[Any, list[str]], list[dict[str, float]]]
    shows: str = "all"
    every: Mapping[str, Any] = MappingProxyType({})
    takes: frozenset[str] = OF_TEXTS
    most: int = 64
    whole: bool = True
    blanks: bool = False
    as_input: Callable[[str], Any] = same
    headers: Mapping[str, str] = MappingProxyType({})

    def url(self, ref: str) -> str:
        return self.path.format(task=ref)

    @property
    def template(self) -> str:
        """The path as the façades' tables of routes have it."""
        path = self.path.removeprefix("/t/{task}").replace("{task}", "{model}").replace("/1/", "/{version}/")
        return path or "/"


def native(results: Any, _: Any) -> list[dict[str, float]]:
    return [result["scores"] for result in results["results"]]


def labeled(rows: Any) -> dict[str, float]:
    return {row["label"]: row["score"] for row in rows}


def in_order(values: list[float], labels: list[str]) -> dict[str, float]:
    return dict(zip(labels, values, strict=True))


def tensors(reply: Any, labels: list[str]) -> list[dict[str, float]]:
    [flat] = [tensor["data"] for tensor in reply["outputs"] if tensor["name"] == "scores"]
    return [in_order(flat[at : at + len(labels)], labels) for at in range(0, len(flat), len(labels))]


def detected(rows: Any) -> dict[str, float]:
    return {row["detection_type"]: row["score"] for row in rows}


def moderated(reply: Any, labels: list[str]) -> list[dict[str, float]]:
    return [
        {name: score for name, score in result["category_scores"].items() if name in labels and score}
        for result in reply["results"]
    ]


def of_router(result: Any, labels: list[str]) -> dict[str, float]:
    return in_order(result["probabilities"] if "probabilities" in result else result["scores"], labels)


def tool(reply: Any, _: Any) -> list[dict[str, float]]:
    return [{row["label"]: row["score"]} for row in reply["result"]["structuredContent"]["results"]]


def reasons(reply: Any, labels: list[str]) -> list[dict[str, float]]:
    matches = re.findall(r"@\d+: (.+?) ([\d.]+)(?:; |$)", reply.get("blocked_reason", ""))
    return [{label: float(score)} for label, score in matches]


def tensor_of(texts: list[str], _: str) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}]}


def called(texts: list[str], _: str) -> dict[str, Any]:
    params = {"name": "classify", "arguments": {"texts": texts}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


def bundled(texts: list[str], _: str) -> dict[str, Any]:
    return {"tasks": [{"id": f"{at}", "classify": {"input": text}} for at, text in enumerate(texts)]}


_ANY = OF_TEXTS | OF_WORDS | NUMBER
_LEAST = {"detector_params": {"threshold": -1}}
OWN = {
    "native": Way("/v1/tasks/{task}/classify", lambda texts, _: {"inputs": texts}, native, takes=_ANY, whole=False),
    "native items": Way(
        "/v1/classify",
        lambda texts, task: {"items": [{"task": task, "text": text} for text in texts]},
        native,
        takes=_ANY,
        whole=False,
    ),
    "native fan-out": Way(
        "/v1/fanout",
        lambda texts, task: {"tasks": [task], "text": texts[0]},
        native,
        takes=_ANY,
        most=1,
        whole=False,
    ),
}
FACADES = {
    "Hugging Face": Way(
        "/t/{task}", lambda texts, _: {"inputs": texts}, lambda reply, _: [*map(labeled, reply)], takes=_ANY
    ),
    "Hugging Face's models": Way(
        "/models/{task}", lambda texts, _: {"inputs": texts}, lambda reply, _: [*map(labeled, reply)], takes=_ANY
    ),
    "TEI": Way(
        "/t/{task}/predict",
        lambda texts, _: {"inputs": [[text] for text in texts]},
        lambda reply, _: [*map(labeled, reply)],
        takes=OF_TEXTS | NUMBER,
        whole=False,
    ),
    "FMS": Way(
        "/t/{task}/api/v1/text/contents",
        lambda texts, _: {"contents": texts},
        lambda reply, _: [*map(detected, reply)],
        "positive",
        _LEAST,
        OF_TEXTS | OF_WORDS,
        1024,
        blanks=True,
    ),
    "FMS's generation": Way(
        "/t/{task}/api/v1/text/generation",
        lambda texts, _: {"prompt": texts[0], "generated_text": texts[0]},
        lambda reply, _: [detected(reply)],
        "positive",
        _LEAST,
        most=1,
        as_input=doubled,
    ),
    "FMS's chat": Way(
        "/t/{task}/api/v1/text/chat",
        lambda texts, _: {"messages": [{"role": "user", "content": texts[0]}]},
        lambda reply, _: [detected(reply)],
        "positive",
        _LEAST,
        OF_TEXTS | OF_WORDS,
        1,
    ),
    "vLLM": Way(
        "/t/{task}/classify",
        lambda texts, _: {"input": texts},
        lambda reply, labels: [in_order(row["probs"], labels) for row in reply["data"]],
        takes=OF_TEXTS | NUMBER,
    ),
    "OpenAI": Way("/t/{task}/v1/moderations", lambda texts, _: {"input": texts}, moderated, "positive"),
    "KServe": Way(
        "/v1/models/{task}:predict",
        lambda texts, _: {"instances": texts},
        lambda reply, _: reply["predictions"],
        takes=_ANY,
    ),
    "Open Inference": Way("/v2/models/{task}/infer", tensor_of, tensors, takes=_ANY, whole=False),
    "Open Inference of a version": Way(
        "/v2/models/{task}/versions/1/infer", tensor_of, tensors, takes=_ANY, whole=False
    ),
    "router": Way(
        "/t/{task}/v1/classify",
        lambda texts, _: {"input": texts},
        lambda reply, labels: [of_router(result, labels) for result in reply["results"]],
        takes=OF_TEXTS | OF_WORDS,
        whole=False,
    ),
    "router's bundle": Way(
        "/t/{task}/v1/bundle",
        bundled,
        lambda reply, labels: [of_router(each["classify"]["results"][0], labels) for each in reply["results"]],
        takes=OF_TEXTS | OF_WORDS,
        whole=False,
    ),
    "router over HTTP": Way(
        "/t/{task}/classify",
        lambda texts, _: {"inputs": texts[0]},
        lambda reply, _: [labeled(reply)],
        takes=frozenset({"single_label"}) | OF_WORDS,
        most=1,
    ),
    "MCP": Way("/t/{task}/mcp", called, tool, "best", takes=_ANY, most=1024, headers=MCP),
    "LiteLLM": Way(
        "/t/{task}/beta/litellm_basic_guardrail_api",
        lambda texts, _: {"texts": texts},
        reasons,
        "positive",
        {"additional_provider_specific_params": {"threshold": 0.0}},
        OF_TEXTS | OF_WORDS,
        1024,
        blanks=True,
    ),
    "GLiNER": Way(
        "/t/{task}/v1/extract",
        lambda texts, _: {"text": texts[0]},
        lambda reply, _: [],
        takes=OF_WORDS,
        most=1,
        blanks=True,
    ),
}
WAYS = OWN | FACADES
# Texts to vectors, by a base.
VECTORS = {
    "TEI's embed": Way(
        "/t/{task}/embed", lambda texts, _: {"inputs": texts}, lambda reply, _: reply, "vector", most=1024
    ),
    "OpenAI's embeddings": Way(
        "/t/{task}/v1/embeddings",
        lambda texts, _: {"input": texts},
        lambda reply, _: [row["embedding"] for row in reply["data"]],
        "vector",
        most=1024,
    ),
}


def questions(text: str) -> dict[str, dict[str, Any]]:
    """A body of a question about one text for each path of a façade, without a task in front."""
    return {way.template: way.body([text], "") for way in (FACADES | VECTORS).values()}
