"""OpenAI: `/v1/moderations`, `/v1/embeddings` and `/v1/models`, for its SDKs."""

from base64 import b64encode
from http import HTTPStatus
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from onebert_encoder.answering.asked import Asked, Wording
from onebert_encoder.answering.positives import flagged, positives_of
from onebert_server.answering.reading import Answered
from onebert_server.facades.clients import models
from onebert_server.facades.facade import Call, Facade, JsonParts, Listing, Question, json_reply, predicted, read_whole
from onebert_server.facades.vectors import Dimensions, Inputs, vectors_of
from onebert_server.http.decoding import QuestionBody, Ref
from onebert_server.http.formats import Reply
from onebert_server.http.problems import Fault
from onebert_server.http.schemas.questions import Text
from onebert_server.limits import MAX_ITEMS, MAX_REF

# The categories in the SDKs' types, which must be present; a task may add others.
CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class Part(QuestionBody):
    """A text among the kinds of input that a moderation may have; no task reads pictures."""

    type: Literal["text"]
    text: Text


class Moderate(QuestionBody):
    """One text, or several, for a task that says which of its labels are positive."""

    input: Text | Annotated[list[Text | Part], Meta(min_length=1, max_length=MAX_ITEMS)]
    model: Ref | None = None

    def __post_init__(self) -> None:
        if len(self.input) > 1 and any(isinstance(text, Part) for text in self.input):
            raise ValueError("input: must have at most 1 items, where they are parts of one input")

    @property
    def texts(self) -> list[str]:
        parts = [self.input] if isinstance(self.input, str) else self.input
        return [part.text if isinstance(part, Part) else part for part in parts]


async def moderate(call: Call[Moderate]) -> Reply:
    """Returns the positive labels as categories, flagged over their thresholds."""
    texts, parts = call.body.texts, JsonParts()
    options = Asked(wording=Wording(names=3, beside=48))

    def show(_: int, answered: Answered) -> tuple[str, Any]:
        return answered.facts.ref, parts.encoded(_moderated(answered))

    shown = await read_whole(call, [call.task(call.body.model)] * len(texts), texts, show, options)
    [(model, _), *_] = shown
    return json_reply(
        {"id": f"modr-{call.context.request_id}", "model": model, "results": [result for _, result in shown]}
    )


def _moderated(answered: Answered) -> dict[str, Any]:
    prediction = predicted(answered)
    over, positives = set(flagged(prediction, answered.facts)), set(positives_of(answered.facts))
    scores = dict(zip(prediction.names, prediction.scores, strict=True))
    names = dict.fromkeys((*CATEGORIES, *positives_of(answered.facts)))
    return {
        "flagged": bool(over),
        "categories": {name: name in over for name in names},
        "category_scores": {name: scores[name] if name in positives else 0.0 for name in names},
        "category_applied_input_types": {name: ["text"] if name in positives else [] for name in names},
    }


class Embed(QuestionBody):
    """Texts for the vectors of a base, which `model` names; without one, of the only base."""

    input: Inputs
    model: Annotated[str, Meta(max_length=MAX_REF)] | None = None
    dimensions: Dimensions = None
    encoding_format: Literal["float", "base64"] | None = None
    user: Any = None


async def embed(call: Call[Embed]) -> Reply:
    """Returns vectors as numbers or as little-endian float32 in base64; the base's files decide on normalization."""
    body, parts = call.body, JsonParts()
    texts = [body.input] if isinstance(body.input, str) else body.input

    def write(index: int, numbers: NDArray[np.float32]) -> Any:
        coded = body.encoding_format == "base64"
        vector: Any = b64encode(numbers.astype("<f4").tobytes()).decode() if coded else numbers.tolist()
        return parts.encoded({"object": "embedding", "index": index, "embedding": vector})

    vectors = await vectors_of(call, texts, write, body.dimensions, body.model or "")
    tokens = sum(vector.tokens for vector in vectors)
    reply = {
        "object": "list",
        "data": [vector.written for vector in vectors],
        "model": vectors[0].base,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return json_reply(reply)


def worded(fault: Fault) -> tuple[int, Any]:
    """The error form of OpenAI and vLLM, which use 400 for an invalid body."""
    status = 400 if fault.status == HTTPStatus.UNPROCESSABLE_ENTITY else fault.status
    kind = KINDS.get(status, "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error")
    return status, {"error": {"message": fault.sentence, "type": kind, "param": None, "code": fault.code}}


FACADE = Facade(
    "OpenAI",
    worded,
    [
        Question("/v1/moderations", Moderate, moderate, dict[str, Any]),
        Question("/v1/embeddings", Embed, embed, dict[str, Any]),
    ],
    [
        Listing("/v1/models", models.models),
        # Bases of the Hub have an owner in their names.
        *(Listing(f"/v1/models/{name}", models.model) for name in ("{model}", "{owner}/{model}")),
    ],
)
