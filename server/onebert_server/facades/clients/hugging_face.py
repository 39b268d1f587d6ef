"""Hugging Face: `InferenceClient` and `@huggingface/inference`; one URL serves every task by its type.

The inputs determine the kind of question: a question with its context, texts with candidate labels, or texts alone. The
task's type determines the form of the answer. The form cannot report truncation, so long texts are read in windows,
unless their file says what it cuts.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta

from onebert_encoder.answering.asked import OBJECTS, Asked
from onebert_encoder.answering.results import Extraction, Labeled, Labeling, Prediction
from onebert_encoder.text.tokens import Text as OneText
from onebert_server.answering.gateway import Wanted
from onebert_server.answering.reading import Answered
from onebert_server.facades.clients import zero_shot
from onebert_server.facades.facade import Call, Facade, JsonParts, Question, json_reply, ranked, read_whole
from onebert_server.http.decoding import No, QuestionBody, only
from onebert_server.http.formats import Reply
from onebert_server.http.problems import Fault
from onebert_server.http.schemas.questions import Text, TextPair, TopK, inputs_of
from onebert_server.limits import MAX_ITEMS
from onebert_store.errors import InvalidInput

# The parameters that each kind of question accepts.
_OF_TEXTS = {"function_to_apply", "top_k"}
_OF_WORDS = {"aggregation_strategy", "ignore_labels"}
_OF_SPANS = {"top_k", "handle_impossible_answer", "align_to_words"}
_OF_CANDIDATES = {"candidate_labels", "multi_label", "hypothesis_template"}


class Parameters(QuestionBody):
    """Parameters of an answer; the type of the task decides which are allowed."""

    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None
    top_k: TopK = None
    # The first token of a word decides its label, as in training, so these three find the same entities.
    aggregation_strategy: Literal["none", "simple", "first"] | None = None
    ignore_labels: Annotated[list[str], Meta(max_length=MAX_ITEMS)] | None = None
    handle_impossible_answer: No | None = None
    align_to_words: No | None = None
    candidate_labels: Annotated[list[Text], Meta(min_length=1, max_length=MAX_ITEMS)] | None = None
    multi_label: bool | None = None
    hypothesis_template: Annotated[str, Meta(max_length=1024)] | None = None

    def __post_init__(self) -> None:
        only(False, handle_impossible_answer=self.handle_impossible_answer, align_to_words=self.align_to_words)

    @property
    def names_set(self) -> set[str]:
        return {name for name in self.__struct_fields__ if getattr(self, name) is not None}


class Single(QuestionBody):
    """A text or a pair, or a question and the context that answers it."""

    text: Text | None = None
    text_pair: Text | None = None
    question: Text | None = None
    context: Text | None = None

    def __post_init__(self) -> None:
        names = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        if names not in (["text"], ["text", "text_pair"], ["question", "context"]):
            raise ValueError("must have text, or text and text_pair, or question and context")


class Body(QuestionBody):
    """Inputs of any kind, with parameters."""

    inputs: Text | Single | Annotated[list[Text | TextPair], Meta(min_length=1, max_length=MAX_ITEMS)]
    parameters: Parameters | None = None
    # Older JavaScript clients send it for Hugging Face's own servers: whether to wait, and to use a cache.
    options: Any = None


async def answer(call: Call[Body]) -> Reply:
    """Answers by the kind of inputs and the type of the task."""
    body, task = call.body, call.task()
    parameters = body.parameters or Parameters()
    if isinstance(body.inputs, Single) and body.inputs.question is not None:
        _only(parameters, _OF_SPANS, "a question with its context")
        pair, several = (body.inputs.question, body.inputs.context or ""), (parameters.top_k or 1) > 1
        options = Asked(parameters.top_k)
        [reply] = await read_whole(call, [task], [pair], lambda _, answered: _spans(several, answered), options)
        return reply
    if parameters.candidate_labels is not None:
        _only(parameters, _OF_CANDIDATES, "candidate labels")
        if not isinstance(body.inputs, str):
            raise InvalidInput("candidate labels are for one text")
        return await _by_candidates(call, task, body.inputs, parameters)
    return await _by_type(call, task, body.inputs, parameters)


async def _by_type(call: Call[Body], task: str, inputs: Any, parameters: Parameters) -> Reply:
    several, parts = isinstance(inputs, list), JsonParts()
    texts = inputs_of(inputs)

    def show(index: int, answered: Answered) -> tuple[str, Any]:
        return answered.facts.task_type, parts.encoded(_answer_of(texts[index], parameters, answered))

    options = Asked(parameters.top_k, parameters.function_to_apply, wording=OBJECTS)
    shown = await read_whole(call, [task] * len(texts), texts, show, options)
    [(task_type, first), *_] = shown
    # Scores of a single text stay in an outer list; words do not.
    return json_reply(first if task_type == "token" and not several else [value for _, value in shown])


async def _by_candidates(call: Call[Body], task: str, text: str, parameters: Parameters) -> Reply:
    labels = parameters.candidate_labels or []
    pairs = zero_shot.pairs(text, labels, parameters.hypothesis_template)
    # zero_shot combines the raw logits.
    wanted = Wanted([task] * len(pairs), asked=Asked(activation="none"))
    predictions = await call.ask(wanted, pairs, lambda _, answered: zero_shot.prediction_of(answered))
    scores = zero_shot.scores(predictions, several=bool(parameters.multi_label))
    best = sorted(zip(labels, scores, strict=True), key=lambda pair: -pair[1])
    return json_reply([{"label": label, "score": score} for label, score in best])


def _answer_of(text: OneText, parameters: Parameters, answered: Answered) -> list[dict[str, Any]]:
    answer = answered.read().answer
    if isinstance(answer, Labeling) and isinstance(text, str):
        _only(parameters, _OF_WORDS, "a token task")
        return _entities(text, answer, parameters)
    if not isinstance(answer, Prediction):
        raise InvalidInput(f"{answered.facts.ref} is a span task and takes a question with its context")
    _only(parameters, _OF_TEXTS, "a task on whole texts")
    return ranked(answer, parameters.top_k)


def _entities(text: str, labeling: Labeling, parameters: Parameters) -> list[dict[str, Any]]:
    ignored = ["O"] if parameters.ignore_labels is None else parameters.ignore_labels
    words = parameters.aggregation_strategy == "none"
    name = "entity" if words else "entity_group"
    parts = labeling.words if words else _grouped(labeling.words)
    return [
        {
            name: part.label,
            "score": part.score,
            "word": text[part.start : part.end],
            "start": part.start,
            "end": part.end,
        }
        for part in parts
        if part.label not in ignored
    ]


def _grouped(words: list[Labeled]) -> list[Labeled]:
    """Joins adjacent words with one label like Hugging Face's pipeline; `B-` starts a new group."""
    groups: list[list[Labeled]] = []
    before = None
    for word in words:
        begins, label = word.label[:2] == "B-", _bare(word.label)
        if label == before and not begins:
            groups[-1].append(word)
        else:
            groups.append([word])
        before = label
    return [
        Labeled(words[0].start, words[-1].end, _bare(words[0].label), sum(word.score for word in words) / len(words))
        for words in groups
    ]


def _bare(label: str) -> str:
    return label[2:] if label[:2] in ("B-", "I-") else label


def _spans(several: bool, answered: Answered) -> Reply:
    answer, facts = answered.read().answer, answered.facts
    if not isinstance(answer, Extraction):
        raise InvalidInput(f"{facts.ref} is a {facts.task_type} task and takes no question with a context")
    spans = [
        {"score": span.score, "start": span.start, "end": span.end, "answer": span.text} for span in answer.answers
    ]
    if several:
        return json_reply(spans)
    # A context without words has no spans, but clients expect an object.
    return json_reply(spans[0] if spans else {"score": 0.0, "start": 0, "end": 0, "answer": ""})


def _only(parameters: Parameters, allowed: set[str], subject: str) -> None:
    if unfit := sorted(parameters.names_set - allowed):
        raise InvalidInput(f"the parameter {unfit[0]} is not for {subject}")


def worded(fault: Fault) -> tuple[int, Any]:
    """The error form of Hugging Face's servers."""
    return fault.status, {"error": fault.sentence}


FACADE = Facade(
    "Hugging Face",
    worded,
    [Question(path, Body, answer) for path in ("/", "/models/{model}")],
)
