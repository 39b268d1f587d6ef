"""vLLM: `/classify`, for its clients and NeMo Guardrails' engine `vllm`."""

from time import time
from typing import Annotated, Any, Literal

from msgspec import Meta

from onebert_encoder.answering.asked import NUMBERS, Asked
from onebert_encoder.answering.results import Prediction
from onebert_server.answering.gateway import Wanted
from onebert_server.answering.reading import Answered
from onebert_server.facades.clients.openai import worded
from onebert_server.facades.facade import Call, Facade, JsonParts, Question, json_reply, predicted, read_whole
from onebert_server.http.decoding import QuestionBody, Ref, only
from onebert_server.http.formats import Reply
from onebert_server.http.schemas.questions import Texts


class Classify(QuestionBody):
    """Texts for one task; of what would change the answer in vLLM, the values that change nothing here are taken."""

    input: Texts
    model: Ref | None = None
    use_activation: Annotated[
        bool | None, Meta(description="false: the logits themselves, else as the task makes scores of them")
    ] = None
    truncate_prompt_tokens: Annotated[
        Literal[-1] | None, Meta(description="-1: texts are cut to the task's length, else they are read in windows")
    ] = None
    truncation_side: Literal["right"] | None = None
    add_special_tokens: Annotated[bool, Meta(extra_json_schema={"const": True})] | None = None
    padding: Literal["do_not_pad"] | None = None
    mm_processor_kwargs: None = None
    request_id: Annotated[str, Meta(max_length=128)] | None = None
    user: Any = None
    priority: Any = None
    cache_salt: Any = None

    def __post_init__(self) -> None:
        only(True, add_special_tokens=self.add_special_tokens)


async def classify(call: Call[Classify]) -> Reply:
    """Returns the scores of each text in the order of the labels."""
    body = call.body
    texts = [body.input] if isinstance(body.input, str) else body.input
    refs = [call.task(body.model)] * len(texts)
    options = Asked(activation="none" if body.use_activation is False else None, wording=NUMBERS)
    parts = JsonParts()

    def show(index: int, answered: Answered) -> tuple[str, int, Any]:
        shown = parts.encoded({"index": index, **_shown(answered)})
        return answered.facts.ref, answered.read().tokens, shown

    if body.truncate_prompt_tokens is None:
        shown = await read_whole(call, refs, texts, show, options)
    else:
        shown = await call.ask(Wanted(refs, asked=options), texts, show)
    [(model, _, _), *_] = shown
    tokens = sum(count for _, count, _ in shown)
    return json_reply(
        {
            "id": f"classify-{body.request_id or call.context.request_id}",
            "object": "list",
            "created": int(time()),
            "model": model,
            "data": [result for _, _, result in shown],
            "usage": {
                "prompt_tokens": tokens,
                "total_tokens": tokens,
                "completion_tokens": 0,
                "prompt_tokens_details": None,
            },
        }
    )


def _shown(answered: Answered) -> dict[str, Any]:
    prediction: Prediction = predicted(answered)
    return {"label": prediction.label, "probs": prediction.scores, "num_classes": len(prediction.names)}


FACADE = Facade(
    "vLLM",
    worded,
    [
        Question(
            "/classify",
            Classify,
            classify,
            dict[str, Any],
            claims=lambda body: isinstance(body, dict) and "input" in body,
        )
    ],
)
