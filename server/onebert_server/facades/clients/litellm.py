"""LiteLLM's generic guardrail: what a gateway is about to send on is let through, blocked, or masked in parts."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from pydantic import Field
from starlette.exceptions import HTTPException

from onebert_encoder.answering.positives import positives_of
from onebert_encoder.answering.results import Labeled, Labeling
from onebert_server.answering.answers import Answered
from onebert_server.facades.clients.detections import detections
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

    texts: msgspec.Raw = msgspec.Raw(b"null")
    additional_provider_specific_params: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Sent).decode


def read(body: bytes, _: Any) -> Any:
    """The part of a body that is looked at.

    Raises:
        HTTPException: it is not JSON.
        InvalidInput: it is no object.
        TooLarge: it holds more values than any request needs.
    """
    try:
        sent = _decode(body)
    except msgspec.ValidationError:
        raise InvalidInput("the body must be an object") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HTTPException(400, "the body is not one JSON value in UTF-8") from None
    return {name: parsed(bytes(getattr(sent, name))) for name in _Sent.__struct_fields__}


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

    def show(number: int, answered: Answered) -> tuple[Facts, list[Labeled]]:
        return answered.facts, _found(answered, judged[number], parameters.threshold)

    shown = await read_whole(call, [ref for ref in refs for _ in at], judged, show)
    stretches: dict[int, list[Labeled]] = {}
    reasons: dict[str, None] = {}
    for index, (facts, found) in zip(at * len(refs), shown, strict=True):
        if facts.task_type == "token":
            stretches.setdefault(index, []).extend(found)
        else:
            reasons |= {f"{facts.ref}: {one.label} {one.score:.2f}": None for one in found}
    if reasons:
        return json_reply({"action": "BLOCKED", "blocked_reason": "; ".join(reasons)})
    if any(stretches.values()):
        masked = [_masked(text, stretches.get(index, [])) for index, text in enumerate(texts)]
        return json_reply({"action": "GUARDRAIL_INTERVENED", "texts": masked})
    return json_reply({"action": "NONE"})


def _found(answered: Answered, text: str, threshold: float | None) -> list[Labeled]:
    """What a task found in a text.

    Raises:
        InvalidInput: it is not for one text; or its labels are no entities, and it does not say which are positive.
    """
    found, answer = detections(answered, len(text), threshold), answered.read().answer
    if not (isinstance(answer, Labeling) and answer.entities is not None):
        positives_of(answered.facts)
    return found


def _masked(text: str, found: Sequence[Labeled]) -> str:
    """The text with a stretch's label in angle brackets in place of it; of stretches that overlap the first's."""
    parts, done = [], 0
    for one in sorted(found, key=lambda one: (one.start, -one.end)):
        if one.start >= done:
            parts += [text[done : one.start], f"<{one.label}>"]
        done = max(done, one.end)
    return "".join([*parts, text[done:]])


def worded(fault: Fault) -> tuple[int, Any]:
    """An error: LiteLLM reads its status alone, and by that blocks, or lets through if it is told to."""
    return fault.status, {"error": fault.sentence}


FACADE = Facade(
    "LiteLLM", worded, [Question("/beta/litellm_basic_guardrail_api", Check, check, dict[str, Any], read=read)]
)
