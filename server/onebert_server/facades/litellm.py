"""LiteLLM's generic guardrail: what a gateway is about to send on is let through, blocked, or masked in parts."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from pydantic import Field
from starlette.exceptions import HTTPException

from onebert_encoder.answering.positives import flagged, positives_of
from onebert_encoder.answering.results import Labeled, Labeling, Prediction
from onebert_server.answering.answers import Answered
from onebert_server.facades.facade import Call, Facade, Question, json_reply
from onebert_server.facades.whole import read_whole
from onebert_server.http.lean.formats import Reply
from onebert_server.http.problems import Fault
from onebert_server.http.schemas.common import Ref, RequestBody
from onebert_server.http.strict import parsed
from onebert_server.limits import MAX_TEXT
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput

# Texts of one call, which are those of a whole conversation, and questions: texts by tasks.
MAX_TEXTS = 1024


class Parameters(RequestBody):
    """What the gateway's configuration says, and a request to it may add."""

    tasks: Annotated[list[Ref], Field(min_length=1, max_length=16)] | None = None
    threshold: Annotated[float | None, Field(ge=0, le=1, description="in place of those of the tasks")] = None


class Check(RequestBody):
    """Texts of a prompt or of a model's answer; the rest of what LiteLLM says of its call is not looked at."""

    texts: Annotated[list[Annotated[str, Field(max_length=MAX_TEXT)]], Field(max_length=MAX_TEXTS)] | None = None
    additional_provider_specific_params: Parameters | None = None


class _Sent(msgspec.Struct):
    """The same as it comes: all else, tools and messages of any size, is skipped without making objects of it."""

    texts: list[str] | None = None
    additional_provider_specific_params: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Sent).decode


class Found(NamedTuple):
    """A label that a task found in a text; where, unless it is about the whole."""

    label: str
    score: float
    start: int | None = None
    end: int | None = None


def read(body: bytes, _: Any) -> Any:
    """The part of a body that is looked at.

    Raises:
        HTTPException: it is not JSON.
        InvalidInput: a field is of another kind.
    """
    try:
        sent = _decode(body)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the body: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HTTPException(400, "the body is not one JSON value in UTF-8") from None
    given = parsed(bytes(sent.additional_provider_specific_params))
    return {"texts": sent.texts, "additional_provider_specific_params": given}


async def check(call: Call[Check]) -> Reply:
    """Blocks what a task on whole texts finds, and masks what a token task finds."""
    texts = call.body.texts or []
    parameters = call.body.additional_provider_specific_params or Parameters()
    refs = [call.task(ref) for ref in parameters.tasks] if parameters.tasks else [call.task()]
    # A message may be empty: nothing is found in it.
    at = [index for index, text in enumerate(texts) if text.strip()]
    if len(at) * len(refs) > MAX_TEXTS:
        raise InvalidInput(f"texts by tasks are more than {MAX_TEXTS}")
    judged = [texts[index] for _ in refs for index in at]

    def show(_: int, answered: Answered) -> tuple[str, list[Found]]:
        return answered.facts.ref, list(_findings(answered, parameters.threshold))

    shown = await read_whole(call, [ref for ref in refs for _ in at], judged, show)
    stretches: dict[int, list[Found]] = {}
    reasons: dict[str, None] = {}
    for index, (ref, findings) in zip(at * len(refs), shown, strict=True):
        for found in findings:
            if found.start is None:
                reasons[f"{ref}: {found.label} {found.score:.2f}"] = None
            else:
                stretches.setdefault(index, []).append(found)
    if reasons:
        return json_reply({"action": "BLOCKED", "blocked_reason": "; ".join(reasons)})
    if stretches:
        masked = [_masked(text, stretches.get(index, [])) for index, text in enumerate(texts)]
        return json_reply({"action": "GUARDRAIL_INTERVENED", "texts": masked})
    return json_reply({"action": "NONE"})


def _findings(answered: Answered, threshold: float | None) -> Iterator[Found]:
    """What a task found in a text.

    Raises:
        InvalidInput: it does not say which labels are positive, or is not for one text.
    """
    found, facts = answered.read().answer, answered.facts
    if isinstance(found, Prediction):
        scores = dict(zip(found.names, found.scores.tolist(), strict=True))
        over = flagged(found, facts) if threshold is None else positives_of(facts)
        for label in over:
            if threshold is None or scores[label] > threshold:
                yield Found(label, scores[label])
    elif isinstance(found, Labeling):
        for one in _positive(found, facts):
            if threshold is None or one.score > threshold:
                yield Found(one.label, one.score, one.start, one.end)
    else:
        raise InvalidInput(f"{facts.ref} answers questions about texts, and judges none")


def _positive(found: Labeling, facts: Facts) -> Iterable[Labeled]:
    """The entities, or words, that are meant: those of positive labels; of entities all where none is said to be."""
    if found.entities is None:
        wanted = set(positives_of(facts))
        return (word for word in found.words if word.label in wanted)
    positives = facts.decision.positives if facts.decision is not None else None
    if positives is None:
        return found.entities
    kinds = {label[2:] for label in positives}
    return (entity for entity in found.entities if entity.label in kinds)


def _masked(text: str, found: Sequence[Found]) -> str:
    """The text with a stretch's label in angle brackets in place of it; of stretches that overlap the first's."""
    parts, done = [], 0
    for one in sorted(found, key=lambda one: (one.start, -(one.end or 0))):
        start, end = one.start or 0, one.end or 0
        if start >= done:
            parts += [text[done:start], f"<{one.label}>"]
        done = max(done, end)
    return "".join([*parts, text[done:]])


def worded(fault: Fault) -> tuple[int, Any]:
    """An error: LiteLLM reads its status alone, and by that blocks, or lets through if it is told to."""
    return fault.status, {"error": fault.sentence}


FACADE = Facade(
    "LiteLLM", worded, [Question("/beta/litellm_basic_guardrail_api", Check, check, dict[str, Any], read=read)]
)
