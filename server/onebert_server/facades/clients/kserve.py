"""KServe's V1 protocol: `/v1/models/{task}:predict`, for its clients and NeMo Guardrails' engine `kserve`."""

from typing import Annotated, Any

from msgspec import Meta

from onebert_encoder.answering.results import Labeling, Prediction
from onebert_server.answering.reading import Answered
from onebert_server.facades.facade import (
    Call,
    Facade,
    JsonParts,
    Listing,
    Question,
    ReadRequest,
    json_reply,
    read_whole,
)
from onebert_server.http.decoding import QuestionBody
from onebert_server.http.formats import Reply
from onebert_server.http.problems import Fault
from onebert_server.http.schemas.questions import Text, TextPair, inputs_of
from onebert_server.limits import MAX_ITEMS


class Predict(QuestionBody):
    """Texts, or pairs as objects with `text` and `text_pair`."""

    instances: Annotated[list[Text | TextPair], Meta(min_length=1, max_length=MAX_ITEMS)]


async def predict(call: Call[Predict]) -> Reply:
    """Returns one prediction per instance, by the type of the task."""
    texts, parts = inputs_of(call.body.instances), JsonParts()

    def show(_: int, answered: Answered) -> Any:
        return parts.encoded(prediction(answered))

    return json_reply({"predictions": await read_whole(call, [call.task()] * len(texts), texts, show)})


def prediction(answered: Answered) -> Any:
    """An answer as JSON values: label -> score, or the spans of a text with their scores."""
    answer = answered.read().answer
    if isinstance(answer, Prediction):
        return answer.top()
    if isinstance(answer, Labeling):
        return [vars(span) for span in (answer.words if answer.entities is None else answer.entities)]
    return [vars(span) for span in answer.answers]


async def live(request: ReadRequest) -> Reply:
    """The reply at `/`, which some clients use as a liveness check."""
    return json_reply({"status": "alive"})


def worded(fault: Fault) -> tuple[int, Any]:
    """The error form of KServe and Triton, which use 400 for an invalid body."""
    return 400 if fault.status == 422 else fault.status, {"error": fault.sentence}


FACADE = Facade(
    "KServe",
    worded,
    [Question("/v1/models/{model}:predict", Predict, predict, dict[str, Any])],
    [Listing("/", live, prefixed_alone=True)],
)
