"""Text Embeddings Inference: `/predict` for classifiers, `/embed` for vectors, `/info` and `/metrics`."""

import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from starlette.datastructures import Headers

from onebert_encoder.answering.asked import OBJECTS, Asked
from onebert_encoder.text.tokens import Text as OneText
from onebert_encoder.text.tokens import text_of
from onebert_server.access.principal import Action
from onebert_server.answering.answers import WORKERS
from onebert_server.answering.gateway import BARE, Wanted
from onebert_server.answering.reading import Answered
from onebert_server.answering.tokenizing import characters_of
from onebert_server.facades.facade import (
    Call,
    Facade,
    JsonParts,
    Listing,
    Question,
    ReadRequest,
    json_reply,
    predicted,
    ranked,
)
from onebert_server.facades.vectors import EMPTY, Dimensions, Inputs, vectors_of
from onebert_server.http.decoding import QuestionBody
from onebert_server.http.formats import Reply
from onebert_server.http.problems import Fault
from onebert_server.http.schemas.questions import Text
from onebert_server.limits import MAX_FANOUT, MAX_ITEMS, MAX_QUEUE_SEQUENCES
from onebert_server.observed import FORWARD, QUEUE, TOKENIZE
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput

VERSION = version("onebert")

One = Annotated[list[Text], Meta(min_length=1, max_length=2)]


class Predict(QuestionBody):
    """One text, a list of one text or of the two of a pair, or a batch of such lists."""

    inputs: Text | Annotated[list[Text | One], Meta(max_length=MAX_ITEMS)]
    raw_scores: bool | None = None
    truncate: bool | None = None
    # Texts are truncated at their ends, as in training.
    truncation_direction: Literal["Right", "right"] | None = None

    def __post_init__(self) -> None:
        texts = isinstance(self.inputs, list) and sum(isinstance(item, str) for item in self.inputs)
        if texts and (texts > 2 or texts < len(self.inputs)):
            raise ValueError("inputs: must have at most 2 items, where they are texts, or lists alone")


async def predict(call: Call[Predict]) -> Reply:
    """Classifies with the task's own activation, whatever its number of labels."""
    inputs = call.body.inputs
    batch = isinstance(inputs, list) and not all(isinstance(text, str) for text in inputs)
    if inputs == []:
        raise InvalidInput(EMPTY)
    items: list[Any] = inputs if batch and isinstance(inputs, list) else [inputs]
    texts = [item if isinstance(item, str) else text_of(*item) for item in items]
    options, parts = Asked(activation="none" if call.body.raw_scores else None, wording=OBJECTS), JsonParts()

    def show(_: int, answered: Answered) -> tuple[Any, int]:
        reading = answered.read()
        if reading.truncated and call.body.truncate is False:
            raise InvalidInput(f"inputs must have at most {answered.facts.max_length} tokens")
        return parts.encoded(ranked(predicted(answered))), reading.tokens

    rows = await call.ask(Wanted([call.task()] * len(texts), asked=options), texts, show)
    scores, tokens = zip(*rows, strict=True)
    return json_reply(scores if batch else scores[0], _headers(call, texts, sum(tokens)))


class Embed(QuestionBody):
    """Texts for the vectors of a base; a prompt stands in front of each text, and none has a name here."""

    inputs: Inputs
    normalize: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["Right", "right"] | None = None
    prompt_name: str | None = None
    dimensions: Dimensions = None
    encoding_format: Literal["float"] | None = None


async def embed(call: Call[Embed]) -> Reply:
    """Returns a list of vectors, also for a single text."""
    body, parts = call.body, JsonParts()
    if body.prompt_name is not None:
        raise InvalidInput("prompt_name: no prompt has a name here; put it in front of the text")
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs

    def write(_: int, numbers: NDArray[np.float32]) -> Any:
        return parts.encoded(numbers.tolist())

    truncate = body.truncate is not False
    vectors = await vectors_of(
        call, texts, write, body.dimensions, normalize=body.normalize is not False, truncate=truncate
    )
    tokens = sum(vector.tokens for vector in vectors)
    return json_reply([vector.written for vector in vectors], _headers(call, texts, tokens))


def _headers(call: Call[Any], texts: Sequence[OneText], tokens: int) -> Mapping[str, str]:
    characters = sum(characters_of(texts))
    seconds = call.context.observed.seconds
    total = _milliseconds(time.monotonic() - call.context.arrived)
    return {
        "x-compute-time": total,
        "x-compute-characters": str(characters),
        "x-compute-tokens": str(tokens),
        "x-total-time": total,
        "x-tokenization-time": _milliseconds(seconds.get(TOKENIZE, 0.0)),
        "x-queue-time": _milliseconds(seconds.get(QUEUE, 0.0)),
        "x-inference-time": _milliseconds(seconds.get(FORWARD, 0.0)),
    }


def _milliseconds(seconds: float) -> str:
    return str(int(1000 * seconds))


async def info(request: ReadRequest) -> Reply:
    """The type of the task, or of the base that makes vectors, and the limits of a request."""
    of_base, settings = await request.base(), request.runtime.settings
    facts = of_base or (await request.version()).facts
    base = request.runtime.host_of(facts.base).base
    return json_reply(
        {
            "model_id": base.spec.name,
            "model_sha": facts.digest,
            "model_dtype": base.dtype_name,
            "served_model_name": base.spec.name if of_base else facts.ref,
            "model_type": _model_type(facts),
            "max_concurrent_requests": MAX_QUEUE_SEQUENCES,
            "max_input_length": facts.max_length,
            "max_batch_tokens": settings.max_batch_tokens,
            "max_batch_requests": None,
            "max_client_batch_size": MAX_FANOUT if of_base else MAX_ITEMS,
            "auto_truncate": True,
            "tokenization_workers": WORKERS,
            "version": VERSION,
            "sha": None,
            "docker_label": None,
        }
    )


def _model_type(facts: Facts) -> Mapping[str, Any]:
    if facts.task.startswith(BARE):
        return {"embedding": {"pooling": facts.pooling}}
    labels = dict(enumerate(facts.labels))
    return {
        "classifier": {
            "id2label": {str(index): label for index, label in labels.items()},
            "label2id": {label: index for index, label in labels.items()},
        }
    }


async def metrics(request: ReadRequest) -> Reply:
    """The metrics of the whole server; see its own route."""
    request.context.principal.require_all(Action.MEASURE)
    accept = Headers(raw=list(request.headers)).get("accept", "")
    request.runtime.telemetry.flush()
    text, media_type = await request.runtime.metrics.exposition_for(accept)
    return Reply(text, {"Content-Type": media_type})


# Problem code -> TEI's status and error type; other codes keep their status.
_TYPES: Mapping[str, tuple[int, str]] = {
    **dict.fromkeys(("queue-full", "over-share", "over-quota", "too-many-attempts"), (429, "Overloaded")),
    **dict.fromkeys(("starting", "shutting-down", "unhealthy", "too-many-connections"), (503, "Unhealthy")),
    **dict.fromkeys(("internal", "engine-failed", "answer-not-finite"), (424, "Backend")),
}


def worded(fault: Fault) -> tuple[int, Any]:
    """The error form of TEI, with types spelled like its servers and not like its documentation."""
    status, kind = _TYPES.get(fault.code, (fault.status, "Validation" if fault.status < 500 else "Backend"))
    if fault.detail == EMPTY:
        status, kind = 400, "Empty"
    return status, {"error": fault.sentence, "error_type": kind}


FACADE = Facade(
    "TEI",
    worded,
    [Question("/predict", Predict, predict), Question("/embed", Embed, embed, list[list[float]])],
    # `/health` is in health.py, for all clients.
    [Listing("/info", info), Listing("/metrics", metrics, prefixed_alone=True)],
)
