"""LiteLLM's generic guardrail: passes, blocks or masks the texts that a gateway is about to send."""

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException

from onebert_encoder.answering.positives import positives_of
from onebert_encoder.answering.results import Labeled, Labeling
from onebert_server.answering.reading import Answered, Unanswered
from onebert_server.facades.clients.detections import FOUND, detections, replaced
from onebert_server.facades.facade import Call, Facade, JsonParts, Question, json_reply, read_whole
from onebert_server.http.decoding import QuestionBody, Ref, Share
from onebert_server.http.formats import Reply
from onebert_server.http.problems import Fault
from onebert_server.http.schemas.questions import AnyText
from onebert_server.http.strict import parsed
from onebert_server.limits import MAX_FANOUT
from onebert_store.errors import InvalidInput

_TASKS = "additional_provider_specific_params.tasks"
# Maximum reasons for a block, the best of each text.
MAX_REASONS = 32


class Parameters(QuestionBody):
    """Parameters of the gateway's configuration; a request may add to them."""

    tasks: Annotated[list[Ref], Meta(min_length=1, max_length=16)] | None = None
    threshold: Annotated[Share | None, Meta(description="in place of those of the tasks")] = None


class Check(QuestionBody):
    """Texts of a prompt or of a model's answer; the call's other fields are ignored."""

    texts: Annotated[list[AnyText], Meta(max_length=MAX_FANOUT)] | None = None
    additional_provider_specific_params: Parameters | None = None


class _Sent(msgspec.Struct):
    """The undecoded body; the decoder skips all other fields, such as tools and messages, without creating objects."""

    texts: msgspec.Raw = msgspec.Raw(b"null")
    additional_provider_specific_params: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Sent).decode
# The decoder rejects half a surrogate pair, so each becomes the escape of another character (U+FDD0). That character's
# own escapes become the character itself.
_MARK, _MARKED = rb"\ufdd0", "\ufdd0".encode()
_HALF = re.compile(
    rb"\\\\|\\u(?i:d[89ab][0-9a-f]{2})\\u(?i:d[c-f][0-9a-f]{2})|(\\u(?i:d[89a-f][0-9a-f]{2}))|(\\u(?i:fdd0))"
)
_PLACE = re.compile(rb"\\\\|(\\ufdd0)")


def read(body: bytes, _: Any) -> Any:
    """Decodes the relevant part of a body."""
    try:
        # The decoder rejects half a pair even in skipped fields; `converted` reports one in a field that we read.
        marked = _HALF.sub(lambda at: (at[0], _MARK, _MARKED)[at.lastindex or 0], body) if b"\\u" in body else body
        sent = _decode(marked)
    except msgspec.ValidationError:
        raise InvalidInput("the body must be an object") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HTTPException(400, "the body is not one JSON value in UTF-8") from None
    fields = [(name, bytes(getattr(sent, name))) for name in _Sent.__struct_fields__]
    return {name: parsed(_PLACE.sub(lambda at: rb"\ud800" if at[1] else at[0], value)) for name, value in fields}


async def check(call: Call[Check]) -> Reply:
    """Blocks detections of tasks on whole texts, and masks detections of token tasks."""
    texts = call.body.texts or []
    parameters = call.body.additional_provider_specific_params or Parameters()
    refs = [call.task(ref, _TASKS) for ref in parameters.tasks] if parameters.tasks else [call.task()]
    if len(texts) * len(refs) > MAX_FANOUT:
        raise InvalidInput(f"texts by tasks are more than {MAX_FANOUT}")
    stretches: dict[int, list[Labeled]] = {}
    reasons: dict[str, None] = {}

    def show(number: int, answered: Answered | Unanswered) -> None:
        # A message may be blank and then has no detections.
        if isinstance(answered, Unanswered):
            return
        index = number % len(texts)
        facts, spans = answered.facts, _detections(answered, texts[index], parameters.threshold)
        if facts.task_type == "token":
            stretches.setdefault(index, []).extend(spans)
        elif len(reasons) < MAX_REASONS:
            reasons.update({f"{facts.ref}: {span.label} {span.score:.2f}": None for span in spans})

    judged = [ref for ref in refs for _ in texts]
    await read_whole(call, judged, texts * len(refs), show, FOUND, blanks=True)
    if reasons:
        return json_reply({"action": "BLOCKED", "blocked_reason": "; ".join(list(reasons)[:MAX_REASONS])})
    if any(stretches.values()):
        JsonParts().require(sum(len(span.label) for spans in stretches.values() for span in spans))
        masked = [replaced(text, stretches.get(index, []), _mask) for index, text in enumerate(texts)]
        return json_reply({"action": "GUARDRAIL_INTERVENED", "texts": masked})
    return json_reply({"action": "NONE"})


def _detections(answered: Answered, text: str, threshold: float | None) -> list[Labeled]:
    spans, answer = detections(answered, len(text), threshold, MAX_REASONS), answered.read().answer
    if not (isinstance(answer, Labeling) and answer.entities is not None):
        positives_of(answered.facts)
    return spans


def _mask(span: Labeled) -> str:
    return f"<{span.label}>"


def worded(fault: Fault) -> tuple[int, Any]:
    """The error form; LiteLLM only reads the status, and blocks or passes by its configuration."""
    return fault.status, {"error": fault.sentence}


FACADE = Facade(
    "LiteLLM", worded, [Question("/beta/litellm_basic_guardrail_api", Check, check, dict[str, Any], read=read)]
)
