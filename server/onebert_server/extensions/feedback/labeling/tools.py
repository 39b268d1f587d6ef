"""The files of Label Studio and Argilla: a review queue as their records, and their labeled records as labels.

Label Studio: labelstud.io/guide/predictions and /export. Argilla: `Dataset.records.from_json` and `to_json`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from onebert_encoder.answering.results import answer_of
from onebert_server.client import Result, ReviewItem, ReviewQueue, as_dict
from onebert_store.errors import InvalidData
from onebert_store.file import strict_json
from onebert_store.tables.cells import BadRow
from onebert_store.tables.label_studio import answers_of, are_of_regions, choices_in
from onebert_store.tables.spans import spans_in, used_spans

# The name of the control in Label Studio, of the question in Argilla.
QUESTION = "label"


class AnnotatedRecord(NamedTuple):
    """One record: the answer's id, its text, what each person chose: labels, or regions of the text (`spans_in`)."""

    id: str
    choices: list[list[Any]]
    text: str = ""


class Tool(NamedTuple):
    """One program: its record of a text in the queue, and what its records say."""

    write: Callable[[ReviewQueue, ReviewItem], dict[str, Any]]
    read: Callable[[Any], AnnotatedRecord]


def read_labeled(file: Path, tool: Tool) -> tuple[list[AnnotatedRecord], Counter[str]]:
    """Returns the records of an export, and counts the unreadable ones by reason.

    Raises InvalidData if there is no list of records, or all are unreadable.
    """
    try:
        records = strict_json.parse(file.read_bytes())
    except ValueError as error:
        raise InvalidData(f"{file.name}: {error}") from None
    if not isinstance(records, list):
        raise InvalidData(f"{file.name} is not a list of records")
    labeled, unusable, first = list[AnnotatedRecord](), Counter[str](), ""
    for number, record in enumerate(records, 1):
        try:
            labeled.append(tool.read(record))
        except ValidationError as error:
            fault = error.errors(include_input=False, include_url=False)[0]
            where = strict_json.printable(".".join(map(str, fault["loc"])))
            reason = f"{where}: {fault['msg']}" if where else fault["msg"].partition(" or instance")[0]
        except BadRow as problem:
            reason = str(problem)
        else:
            continue
        unusable[f"unreadable ({reason})"] += 1
        first = first or f"{file.name}, item {number}: {reason}"
    if first and not labeled:
        raise InvalidData(first)
    return labeled, unusable


class _Data(BaseModel):
    id: str
    text: str = ""


class _Task(BaseModel):
    data: _Data
    annotations: list[Any]


class _Response(BaseModel):
    value: str | list[Any]
    status: str | None = None


class _Responses(BaseModel):
    label: list[_Response] = []


class _Fields(BaseModel):
    text: str = ""


class _Record(BaseModel):
    id: str
    fields: _Fields = _Fields()
    responses: _Responses
    status: str | None = None


def _write_label_studio(queue: ReviewQueue, item: ReviewItem) -> dict[str, Any]:
    control = {"from_name": QUESTION, "to_name": "text"}
    predictions = [
        {"model_version": f"{queue.task}@{result.version}"}
        | ({} if result.score is None else {"score": result.score})
        | {"result": [control | {"type": kind, "value": value} for kind, value in _values(queue, result, item.text)]}
        for result in item.answers
    ]
    return {"data": {"id": item.id, **_texts(item)}, "predictions": [each for each in predictions if each["result"]]}


def _values(queue: ReviewQueue, result: Result, text: str) -> list[tuple[str, dict[str, Any]]]:
    if queue.task_type != "token":
        labels = _labels(queue, result)
        return [("choices", {"choices": labels})] if labels else []
    return [
        ("labels", {"start": start, "end": end, "text": text[start:end], "labels": [label]})
        for start, end, label in _spans(result)
    ]


def _spans(result: Result) -> Sequence[Any]:
    """The entities; of a task without them the words with another tag than `O`."""
    spans: Any = answer_of("token", result)
    return [span for span in spans if span[-1] != "O"]


def _read_label_studio(record: Any) -> AnnotatedRecord:
    task = _Task.model_validate(record)
    answers = [each.get(QUESTION) for each in answers_of(task.annotations)]
    if any(map(are_of_regions, answers)):
        raise BadRow("choices of a region are no labels of the text")
    return _labeled(task.data.id, task.data.text, [choices_in(answer) for answer in answers])


def _labeled(id: str, text: str, choices: list[list[Any]]) -> AnnotatedRecord:
    """One record; raises BadRow for a span that is not in the text."""
    for chosen in choices if text else ():
        used_spans(spans_in(chosen) or (), text)
    return AnnotatedRecord(id, choices, text)


def _write_argilla(queue: ReviewQueue, item: ReviewItem) -> dict[str, Any]:
    best = item.answers[0]
    if queue.task_type == "token":
        spans = [dict(zip(("start", "end", "label"), span, strict=True)) for span in _spans(best)]
        agent = f"{queue.task}:{best.version}"
        return {"id": item.id, "fields": _texts(item), "suggestions": {QUESTION: {"value": spans, "agent": agent}}}
    labels, scores = _labels(queue, best), best.scores or {}
    if not labels:
        return {"id": item.id, "fields": _texts(item)}
    several = queue.task_type == "multi_label"
    # Argilla wants one score for each label; the answer has the scores of its best labels.
    score: Any = [scores[label] for label in labels] if several and scores.keys() >= {*labels} else None
    suggestion = {
        "value": labels if several else labels[0],
        "score": score if several else best.score,
        "agent": f"{queue.task}:{best.version}",  # Argilla allows no @ here
    }
    return {"id": item.id, "fields": _texts(item), "suggestions": {QUESTION: suggestion}}


def _read_argilla(record: Any) -> AnnotatedRecord:
    exported = _Record.model_validate(record)
    # Argilla's export has drafts and discarded responses, too; a record with nothing else is pending.
    responses = [] if exported.status == "pending" else exported.responses.label
    values = [response.value for response in responses if response.status in (None, "submitted")]
    return _labeled(exported.id, exported.fields.text, [choices_in(value) for value in values])


def _labels(queue: ReviewQueue, result: Result) -> Sequence[str]:
    short: Any = answer_of(queue.task_type, result)
    return [short] if isinstance(short, str) else short or ()


def _texts(item: ReviewItem) -> dict[str, str]:
    return {name: text for name, text in as_dict(item).items() if name in ("text", "text_pair")}


TOOLS: Mapping[str, Tool] = {
    "label-studio": Tool(_write_label_studio, _read_label_studio),
    "argilla": Tool(_write_argilla, _read_argilla),
}
