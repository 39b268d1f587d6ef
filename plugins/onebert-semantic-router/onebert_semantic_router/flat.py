"""`POST /classify` with `inputs`: one text, as the router calls a service over HTTP; it cannot name a model."""

from typing import Any

from onebert_encoder.answering.asked import OBJECTS, Asked
from onebert_encoder.answering.positives import positives_of
from onebert_encoder.answering.results import Labeled, Labeling
from onebert_semantic_router.bodies import Flat
from onebert_semantic_router.heads import require_kind
from onebert_server.answering.reading import Answered
from onebert_server.facades.clients.detections import FOUND, detections, parts_of
from onebert_server.facades.facade import Call, JsonParts, json_reply, predicted, ranked, read_whole
from onebert_server.http.formats import Reply
from onebert_store.errors import TooLarge, UnsupportedTask


async def flat(call: Call[Flat]) -> Reply:
    """Returns all labels with probabilities, or the labeled spans of a text or of a grounded answer."""
    task, text, grounds = call.task(), call.body.inputs, call.body.parameters
    if grounds is None:
        options = Asked(wording=OBJECTS)
        [reply] = await read_whole(
            call, [task], [text], lambda _, answered: json_reply(_of_text(answered, text)), options
        )
        return reply
    pair = (grounds.text, text)
    [reply] = await read_whole(call, [task], [pair], lambda _, answered: json_reply(_grounded(answered, text)), FOUND)
    return reply


def _grounded(answered: Answered, text: str) -> dict[str, Any]:
    positives_of(answered.facts)
    spans = detections(answered, len(text))
    JsonParts().require(sum(span.end - span.start for span in spans))
    return _spans(answered, text, spans)


def _of_text(answered: Answered, text: str) -> Any:
    reading, facts = answered.read(), answered.facts
    if isinstance(reading.answer, Labeling):
        return _spans(answered, text, list(parts_of(reading.answer)))
    if require_kind(facts) != "sequence":
        raise UnsupportedTask(f"the labels of {facts.ref} do not exclude each other; this form is for those that do")
    window = facts.decision.window if facts.decision is not None else None
    # The router rejects probabilities that do not sum to one, and maxima over windows do not.
    if (reading.windows or 1) > 1 and (window is None or window.reduction != "mean"):
        raise TooLarge(f"{facts.ref} takes {facts.max_length} tokens, and this form cannot report truncation")
    return ranked(predicted(answered))


def _spans(answered: Answered, text: str, labeled: list[Labeled]) -> dict[str, Any]:
    spans = [
        {
            "label": part.label,
            "score": part.score,
            "text": text[part.start : part.end],
            "start": part.start,
            "end": part.end,
        }
        for part in labeled
    ]
    return {"spans": spans, "model": answered.facts.task}
