"""FMS detectors: `/api/v1/text/…`, for the FMS guardrails orchestrator, LiteLLM and NeMo Guardrails."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from onebert_encoder.answering.results import Labeled, Prediction
from onebert_encoder.text.tokens import Text as OneText
from onebert_server.answering.reading import Answered, Unanswered
from onebert_server.facades.clients.detections import FOUND, detections
from onebert_server.facades.facade import Call, Facade, JsonParts, Question, json_reply, read_whole
from onebert_server.http.decoding import QuestionBody
from onebert_server.http.formats import Reply
from onebert_server.http.problems import Fault
from onebert_server.http.schemas.questions import AnyText, Text
from onebert_server.limits import MAX_FANOUT, MAX_ITEMS, MAX_TEXT
from onebert_store.errors import InvalidInput
from onebert_store.tables.text.unicode import is_blank

# The orchestrator sends all sentences of a text in one request.
MAX_CONTENTS = MAX_FANOUT
# Minimum JSON bytes of a detection without its text: digest, keys, offsets.
_DETECTION = 200


class DetectorParams(QuestionBody):
    """Parameters of a detector."""

    threshold: Annotated[
        float | None, Meta(description="score over which something is detected (null: the task's, else 0.5)")
    ] = None


class Contents(QuestionBody):
    """Texts, each of which has a list of detections; one that is blank has none."""

    contents: Annotated[list[AnyText], Meta(min_length=1, max_length=MAX_CONTENTS)]
    detector_params: DetectorParams | None = None


class Generation(QuestionBody):
    """A prompt and what a model made of it: a pair of texts."""

    prompt: Text
    generated_text: Text
    detector_params: DetectorParams | None = None


class Part(QuestionBody):
    """A text among the kinds of content that a message may have."""

    type: Literal["text"]
    text: AnyText


class Message(QuestionBody):
    """One message of a chat."""

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: AnyText | Annotated[list[Part], Meta(max_length=MAX_ITEMS)]
    name: str | None = None

    def __post_init__(self) -> None:
        if len(self.text) > MAX_TEXT:
            raise ValueError(f"the texts of a message must have at most {MAX_TEXT} characters together")

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)


class Chat(QuestionBody):
    """A chat, whose last message is judged as the answer to the one before it."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_FANOUT)]
    tools: Annotated[list[Any], Meta(max_length=0, description="no task reads any")] | None = None
    detector_params: DetectorParams | None = None


async def contents(call: Call[Contents]) -> Reply:
    """Returns a list of detections per text; offsets in code points, the end excluded."""
    texts, threshold, parts = call.body.contents, _threshold(call.body), JsonParts()

    def show(index: int, answered: Answered | Unanswered) -> Any:
        if isinstance(answered, Unanswered):
            return []
        text = texts[index]
        spans = detections(answered, len(text), threshold)
        # With a threshold below all scores every label is found, and each repeats its part of the text.
        repeated = sum(span.end - span.start for span in spans) * len(msgspec.json.encode(text))
        parts.require(repeated // len(text) + len(spans) * _DETECTION)
        return parts.encoded([_in_text(text, span, answered) for span in spans])

    return json_reply(await read_whole(call, [call.task()] * len(texts), texts, show, FOUND, blanks=True))


async def generation(call: Call[Generation]) -> Reply:
    """Returns the detections in a prompt and its answer."""
    body = call.body
    return await _of_whole(call, (body.prompt, body.generated_text), _threshold(body))


async def chat(call: Call[Chat]) -> Reply:
    """Returns the detections in the last two messages that are not instructions, or in the only one."""
    texts = [message.text for message in call.body.messages if message.role not in ("developer", "system")]
    spoken = [text for text in texts if not is_blank(text)]
    if not spoken:
        raise InvalidInput("messages: one of a user, an assistant or a tool must have a text")
    text = (spoken[-2], spoken[-1]) if len(spoken) > 1 else spoken[-1]
    return await _of_whole(call, text, _threshold(call.body))


def _threshold(body: Contents | Generation | Chat) -> float | None:
    return None if body.detector_params is None else body.detector_params.threshold


async def _of_whole(call: Call[Any], text: OneText, threshold: float | None) -> Reply:
    def show(_: int, answered: Answered) -> Reply:
        return json_reply([_detected(label, answered) for label in detections(answered, 0, threshold)])

    [reply] = await read_whole(call, [call.task()], [text], show, FOUND)
    return reply


def _in_text(text: str, span: Labeled, answered: Answered) -> dict[str, Any]:
    return {"start": span.start, "end": span.end, "text": text[span.start : span.end], **_detected(span, answered)}


def _detected(label: Labeled, answered: Answered) -> dict[str, Any]:
    facts, answer = answered.facts, answered.read().answer
    metadata: dict[str, Any] = {"version": facts.version, "digest": facts.digest}
    if isinstance(answer, Prediction) and answer.abstained is not None:
        metadata["abstained"] = answer.abstained
    return {
        "detection": facts.task,
        "detection_type": label.label,
        "score": label.score,
        "evidence": [],
        "metadata": metadata,
    }


def worded(fault: Fault) -> tuple[int, Any]:
    """The error form of detectors."""
    return fault.status, {"code": fault.status, "message": fault.sentence}


_PATH = "/api/v1/text/"
_Detections: type[Sequence[dict[str, Any]]] = list[dict[str, Any]]

FACADE = Facade(
    "FMS detectors",
    worded,
    [
        Question(f"{_PATH}contents", Contents, contents, list[list[dict[str, Any]]]),
        Question(f"{_PATH}generation", Generation, generation, _Detections),
        Question(f"{_PATH}chat", Chat, chat, _Detections),
    ],
)
