"""Trains tasks from a server's examples in a process of its own; the server asks in lines of JSON (`--trainer`)."""

import base64
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onebert_encoder.base.base import Base
from onebert_store.errors import OneBertError
from onebert_store.file.delta import Delta
from onebert_store.file.format import dumps
from onebert_store.tables.table import Table
from onebert_store.tables.tables import Source
from onebert_training.data.checks import name_doubts
from onebert_training.data.options import DataOptions
from onebert_training.device import load_on
from onebert_training.fit.settings import Settings
from onebert_training.methods.grammar import HEAD
from onebert_training.names import delta_of_names, words_of
from onebert_training.prepared import prepare
from onebert_training.selection.selection import train_and_select

_UNSCORED = "nothing is trained or scored without examples: a text gets the label whose name is nearest"

Request = Mapping[str, Any]


def answer(base: Base, request: Request) -> dict[str, Any]:
    """Returns `done` with what `train_examples` returns, or the `error`."""
    try:
        return {"done": train_examples(base, request)}
    except OneBertError as error:
        return {"error": {"code": error.code, "detail": error.detail}}
    # Catch everything: the process answers the next request.
    except Exception as error:
        # Without the message, which may quote a text.
        traceback.print_tb(error.__traceback__)
        return {"error": {"code": OneBertError.code, "detail": "the training failed; the log has more"}}


def train_examples(base: Base, request: Request) -> dict[str, Any]:
    """Makes the exact head of a request's rows, or of label names; raises OneBertError if they cannot be used."""
    if "text" not in request["rows"][0]:
        labels = [row["label"] for row in request["rows"]]
        texts = [_text(row) for row in request["rows"]]
        content, notes = _content(delta_of_names(base, labels, texts=texts)), [_UNSCORED, *name_doubts(labels)]
        return {**content, "metric": "accuracy", "score": None, "notes": notes, "useful": True}
    # Nothing is written: the server may have no folder to write to.
    source, reading = _source(request["rows"])
    job = prepare(request["task"], source, reading, Settings(method=HEAD), base, out=Path(os.devnull))
    selection = train_and_select(job.run)
    result = job.completed(selection)
    return {
        **_content(result.delta),
        "metric": result.metric,
        "score": result.validation[result.metric],
        "notes": [*selection.run.notes, *result.verdict.warnings],
        "useful": result.verdict.useful,
    }


def _content(delta: Delta | None) -> dict[str, str]:
    if delta is None:
        raise TypeError("a delta can hold what these methods train")
    return {"content": base64.b64encode(dumps(delta)).decode()}


def _source(rows: Sequence[Mapping[str, Any]]) -> tuple[Source, DataOptions]:
    label = "labels" if "labels" in rows[0] else "label"
    columns = {name: [row.get(name) for row in rows] for name in ("text", "text_pair", label)}
    columns["text"] = [*map(_text, rows)]
    if label == "label":
        columns[label] = [[name] for name in columns[label]]  # a name in a list is never taken for a list
    if not any(columns["text_pair"]):
        del columns["text_pair"]
    source = Source("examples", {"train": Table(columns, "examples")}, single_file=True)
    return source, DataOptions(task_type="multi_label" if label == "labels" else "single_label")


def _text(row: Mapping[str, Any]) -> str:
    """A row's text; of a label alone its description, or else its name as words."""
    text: str = row.get("text") or row.get("description") or words_of(row["label"])
    return text


def main() -> None:
    """Trains until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a library that prints spoils no answer
    base = load_on(sys.argv[1] if len(sys.argv) > 1 else None, "float32", "cpu")
    for line in sys.stdin.buffer:
        answers.write(json.dumps(answer(base, json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
