"""`POST /v1/classify` with an `input`: one result per text, in the form of the task's head."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from onebert_encoder.answering.asked import NUMBERS, Asked, AskedWindow
from onebert_encoder.answering.results import Labeling, Prediction
from onebert_encoder.text.tokens import Text
from onebert_semantic_router.bodies import Classify, Options
from onebert_semantic_router.heads import NAME, require_kind
from onebert_server.access.context import Context
from onebert_server.answering.gateway import Wanted
from onebert_server.answering.reading import Answered, Reading
from onebert_server.facades.clients.detections import parts_of
from onebert_server.facades.facade import Call, JsonParts, json_reply, read_whole
from onebert_server.http.formats import Reply
from onebert_server.http.schemas.questions import inputs_of
from onebert_server.observed import FORWARD, QUEUE
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput

T = TypeVar("T")


async def classify(call: Call[Classify]) -> Reply:
    """Answers one request."""
    return json_reply(await classified(call, JsonParts()))


async def classified(call: Call[Classify], parts: JsonParts) -> dict[str, Any]:
    """Classifies and returns the reply as JSON values; `parts` limits the total size, also over several replies."""
    body, ref, options = call.body, call.task(call.body.model), call.body.options or Options()
    if body.head not in (None, NAME):
        raise InvalidInput(f"head: the one head of a task is {NAME}")
    texts = inputs_of(body.input)

    def show(index: int, answered: Answered) -> tuple[Facts, int, Any]:
        tokens = answered.reading.tokens if isinstance(answered.reading, Reading) else 0
        return answered.facts, tokens, parts.encoded({"index": index, **_result(answered, texts[index], options)})

    async with call.in_time(options.deadline_ms) as timed:
        shown = await _read(timed, [ref] * len(texts), texts, options, show)
    [(facts, *_), *_] = shown
    answer = {
        "model": ref,
        "head": NAME,
        "kind": require_kind(facts),
        "labels": facts.labels,
        "results": [result for _, _, result in shown],
        "usage": {"input_tokens": sum(tokens for _, tokens, _ in shown), "output_tokens": 0},
    }
    return answer | {"meta": _meta(facts, call.context)} if options.return_meta else answer


async def _read(
    call: Call[Classify],
    refs: Sequence[str],
    texts: Sequence[Text],
    options: Options,
    show: Callable[[int, Answered], T],
) -> list[T]:
    if options.overflow == "window" and options.window is None:
        return await read_whole(call, refs, texts, show, Asked(wording=NUMBERS))
    window = None if options.window is None else AskedWindow(options.window.tokens, options.window.overlap or 0)
    return await call.ask(Wanted(refs, asked=Asked(window=window, wording=NUMBERS)), texts, show)


def _result(answered: Answered, text: Text, options: Options) -> dict[str, Any]:
    kind, reading = require_kind(answered.facts), answered.reading
    if options.threshold is not None and kind != "token":
        raise InvalidInput("options.threshold: it is for token tasks")
    if not isinstance(reading, Reading):
        return {"error": "invalid_model_output"}
    if error := _too_long(reading, answered.facts, options):
        return {"error": error}
    answer = reading.answer
    shown: dict[str, Any] = {}
    if isinstance(answer, Labeling):
        shown["spans"] = _spans(answer, text, options.threshold)
    elif isinstance(answer, Prediction) and kind == "sequence":
        shown = {"label": answer.label, "probabilities": answer.scores}
    elif isinstance(answer, Prediction):
        shown = {"scores": answer.scores}
        if answer.labels is not None:
            shown["selected"] = answer.labels
    return {**shown, "input": _usage(reading)}


def _spans(labeling: Labeling, text: Text, threshold: float | None) -> list[dict[str, Any]]:
    return [
        {"label": span.label, "start": span.start, "end": span.end, "text": text[span.start : span.end]}
        | {"probability": span.score}
        for span in parts_of(labeling)
        if threshold is None or span.score > threshold
    ]


def _too_long(reading: Reading, facts: Facts, options: Options) -> str | None:
    """The error code for an input that is too long, else None."""
    max_tokens, windows = options.max_tokens, reading.windows
    if options.overflow == "reject":
        longest = facts.max_length if max_tokens is None else min(max_tokens, facts.max_length)
        return "max_length_exceeded" if reading.truncated or reading.tokens > longest else None
    if options.overflow == "truncate" and (windows or 1) > 1:
        raise InvalidInput(f"options.overflow: {facts.ref} reads long texts in windows, and truncates none")
    if max_tokens is None or reading.tokens <= max_tokens:
        return None
    # A text that fits one sequence uses no windows, whatever the task does with long texts.
    if options.overflow == "window" or windows is not None:
        return "scan_budget_exceeded"
    raise InvalidInput(f"options.max_tokens: {facts.ref} truncates texts to {facts.max_length} tokens only")


def _usage(reading: Reading) -> dict[str, Any]:
    if reading.truncated:
        # The truncated rest is not counted, so this is a lower bound.
        count = {"tokens": reading.tokens + 1, "tokens_lower_bound": True}
    else:
        count = {"tokens": reading.tokens}
    used = {**count, "processed_tokens": reading.tokens, "truncated": reading.truncated}
    return used if reading.windows is None else {**used, "windows": reading.windows}


def _meta(facts: Facts, context: Context) -> dict[str, Any]:
    seconds = context.observed.seconds
    return {
        "model_id": facts.task,
        "revision": str(facts.version),
        "model_sha256": facts.digest.removeprefix("sha256:"),
        "profile": "exact",
        "engine": "onebert",
        "queue_ms": 1000 * seconds.get(QUEUE, 0.0),
        "compute_ms": 1000 * seconds.get(FORWARD, 0.0),
        "head": NAME,
    }
