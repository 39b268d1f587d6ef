"""The files of Label Studio and Argilla: a review queue as their records, and their labeled records as labels.

Label Studio: labelstud.io/guide/predictions and /export. Argilla: `Dataset.records.from_json` and `to_json`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from onebert_encoder.answering.results import answer_of
from onebert_server.client import Result, ReviewItem, ReviewQueue, as_dict
from onebert_store.errors import InvalidData
from onebert_store.file import strict_json

# The name of the control in Label Studio, of the question in Argilla.
QUESTION = "label"


class Labeled(NamedTuple):
    """One record: the answer's id, and the labels that each person chose."""

    id: str
    choices: list[list[str]]


class Tool(NamedTuple):
    """One program: its record of a text in the queue, and what its records say."""

    write: Callable[[ReviewQueue, ReviewItem], dict[str, Any]]
    read: Callable[[Any], Labeled]


def read_labeled(file: Path, tool: Tool) -> Iterator[Labeled]:
    """Reads the records of an export; raises InvalidData, which names the first wrong one."""
    try:
        records = strict_json.parse(file.read_bytes())
    except ValueError as error:
        raise InvalidData(f"{file.name}: {error}") from None
    if not isinstance(records, list):
        raise InvalidData(f"{file.name} is not a list of records")
    for number, record in enumerate(records, 1):
        try:
            yield tool.read(record)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = strict_json.printable(".".join(map(str, first["loc"])))
            raise InvalidData(f"{file.name}, item {number}: {f'{where}: ' if where else ''}{first['msg']}") from None


class _Data(BaseModel):
    id: str


class _Choices(BaseModel):
    choices: list[str] = []


class _Part(BaseModel):
    from_name: str = ""
    value: _Choices = _Choices()


class _Annotation(BaseModel):
    result: list[_Part]
    was_cancelled: bool = False


class _Annotated(BaseModel):
    data: _Data
    annotations: list[_Annotation]


class _Response(BaseModel):
    value: str | list[str]
    status: str | None = None


class _Responses(BaseModel):
    label: list[_Response] = []


class _Record(BaseModel):
    id: str
    responses: _Responses
    status: str | None = None


def _write_label_studio(queue: ReviewQueue, item: ReviewItem) -> dict[str, Any]:
    answers = ((result, _labels(queue, result)) for result in item.answers)
    predictions = [
        {
            "model_version": f"{queue.task}@{result.version}",
            "score": result.score,
            "result": [{"from_name": QUESTION, "to_name": "text", "type": "choices", "value": {"choices": labels}}],
        }
        for result, labels in answers
        if labels
    ]
    return {"data": {"id": item.id, **_texts(item)}, "predictions": predictions}


def _read_label_studio(task: Any) -> Labeled:
    annotated = _Annotated.model_validate(task)
    choices = [
        [label for part in annotation.result if part.from_name == QUESTION for label in part.value.choices]
        for annotation in annotated.annotations
        if not annotation.was_cancelled
    ]
    return Labeled(annotated.data.id, choices)


def _write_argilla(queue: ReviewQueue, item: ReviewItem) -> dict[str, Any]:
    best = item.answers[0]
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


def _read_argilla(record: Any) -> Labeled:
    exported = _Record.model_validate(record)
    # Argilla's export has drafts and discarded responses, too; a record with nothing else is pending.
    responses = [] if exported.status == "pending" else exported.responses.label
    values = [response.value for response in responses if response.status in (None, "submitted")]
    return Labeled(exported.id, [[value] if isinstance(value, str) else value for value in values])


def _labels(queue: ReviewQueue, result: Result) -> Sequence[str]:
    short: Any = answer_of(queue.task_type, result)
    return [short] if isinstance(short, str) else short or ()


def _texts(item: ReviewItem) -> dict[str, str]:
    return {name: text for name, text in as_dict(item).items() if name in ("text", "text_pair")}


TOOLS: Mapping[str, Tool] = {
    "label-studio": Tool(_write_label_studio, _read_label_studio),
    "argilla": Tool(_write_argilla, _read_argilla),
}
