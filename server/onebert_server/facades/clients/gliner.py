"""GLiNER as NeMo Guardrails asks its server: `POST /v1/extract` finds the entities of a text."""

from typing import Annotated, Any

from msgspec import Meta

from onebert_encoder.answering.results import Labeling
from onebert_server.answering.reading import Answered, Unanswered
from onebert_server.facades.clients.detections import FOUND, detections, replaced
from onebert_server.facades.clients.hugging_face import worded
from onebert_server.facades.facade import Call, Facade, Question, answer_as, json_reply, read_whole
from onebert_server.http.decoding import QuestionBody, Share
from onebert_server.http.formats import Reply
from onebert_server.http.schemas.questions import AnyText
from onebert_server.limits import MAX_FANOUT
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput


class Extract(QuestionBody):
    """A text, and the labels to find in it."""

    text: AnyText
    # Null or none: every label that the task finds.
    labels: Annotated[list[str], Meta(max_length=MAX_FANOUT)] | None = None
    threshold: Annotated[Share | None, Meta(description="score over which an entity counts (null: every entity)")] = (
        None
    )
    # The task's windows and its labels, which never overlap, take the place of the three.
    chunk_length: Any = None
    overlap: Any = None
    flat_ner: Any = None


async def extract(call: Call[Extract]) -> Reply:
    """Returns the entities, or words if the labels are not BIO, with offsets in code points, the end excluded."""
    text, labels, threshold = call.body.text, call.body.labels or [], call.body.threshold

    def show(_: int, answered: Answered | Unanswered) -> Reply:
        if isinstance(answered, Unanswered):
            return json_reply({"entities": [], "total_entities": 0, "tagged_text": text})
        bio = answer_as(answered, Labeling, "labels the words of a text").entities is not None
        wanted = _wanted(labels, answered.facts, bio)
        spans = [span for span in detections(answered, len(text), threshold) if span.label in wanted]
        entities = [
            {
                "value": text[span.start : span.end],
                "suggested_label": span.label,
                "start_position": span.start,
                "end_position": span.end,
                "score": span.score,
            }
            for span in spans
        ]
        tagged = replaced(text, spans, lambda span: f"[{text[span.start : span.end]}]({span.label})")
        return json_reply({"entities": entities, "total_entities": len(entities), "tagged_text": tagged})

    [reply] = await read_whole(call, [call.task()], [text], show, FOUND, blanks=True)
    return reply


def _wanted(labels: list[str], facts: Facts, bio: bool) -> set[str]:
    """The labels to find; one that the task never finds is refused, or a misspelled rail would let everything pass."""
    positives = facts.decision.positives if facts.decision is not None else None
    findable = {label[2:] if bio else label for label in positives or facts.labels if label != "O"}
    for index, label in enumerate(labels):
        if label not in findable:
            raise InvalidInput(f"labels.{index}: {facts.ref} finds no such label")
    return set(labels) or findable


FACADE = Facade("GLiNER", worded, [Question("/v1/extract", Extract, extract, dict[str, Any])])
