"""Trains tasks from a server's examples in a process of its own; the server asks in lines of JSON (`--trainer`)."""

import base64
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import PriorityQueue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, TextIO

from onebert_encoder.base.base import Base
from onebert_store.errors import OneBertError
from onebert_store.file.format import dumps
from onebert_store.tables.table import Table
from onebert_store.tables.tables import Source
from onebert_training.data.options import DataOptions
from onebert_training.device import load_on
from onebert_training.fit.keeping import comparable_head, jackknife_score
from onebert_training.fit.loop import Progress, Report
from onebert_training.fit.settings import DEFAULT_METHOD, Settings
from onebert_training.methods.grammar import HEAD
from onebert_training.names import delta_of_names
from onebert_training.prepared import prepare
from onebert_training.selection.selection import Selection, train_and_select

_READING = DataOptions(task_type="single_label")
_UNSCORED = "nothing is trained or scored without examples: a text gets the label whose name is nearest"

Request = Mapping[str, Any]


class Worker:
    """Answers requests in their order; between the steps of an improvement it fits the exact heads that wait."""

    def __init__(self, base: Base, answers: TextIO) -> None:
        self._base = base
        self._answers = answers
        # Exact heads first: False is below True.
        self._requests: PriorityQueue[tuple[bool, int, Request]] = PriorityQueue()

    def listen(self) -> None:
        """Reads requests from standard input on another thread; this process ends with the server's."""
        for line in sys.stdin.buffer:
            request = json.loads(line)
            self._requests.put((request["improve"], request["number"], request))
        os._exit(0)

    def answer(self) -> None:
        """Answers the next request."""
        request = self._requests.get()[-1]

        def report(_: object, progress: Progress) -> None:
            measuring = progress.testing or progress.folds > 0
            self._say(request, progress={"measuring": measuring, "step": progress.step, "steps": progress.steps})
            while request["improve"] and self._requests.queue and not self._requests.queue[0][0]:
                self.answer()

        try:
            self._say(request, done=train_examples(self._base, request, report))
        except OneBertError as error:
            self._say(request, error={"code": error.code, "detail": error.detail})
        except Exception as error:
            # Without the message, which may quote a text.
            traceback.print_tb(error.__traceback__)
            self._say(request, error={"code": OneBertError.code, "detail": "the training failed; the log has more"})

    def _say(self, request: Request, **fields: object) -> None:
        self._answers.write(json.dumps({"number": request["number"], **fields}) + "\n")
        self._answers.flush()


def train_examples(base: Base, request: Request, report: Report) -> dict[str, Any]:
    """Trains the exact head, or with `improve` the default method; raises OneBertError if the rows cannot be used."""
    if "text" not in request["rows"][0]:
        delta = delta_of_names(base, [row["label"] for row in request["rows"]])
        return {**_content(dumps(delta)), "metric": "accuracy", "score": None, "notes": [_UNSCORED], "ahead": False}
    settings = Settings(method=DEFAULT_METHOD if request["improve"] else HEAD)
    with TemporaryDirectory() as folder:
        file = Path(folder, "delta.safetensors")
        job = prepare(request["task"], _source(request["rows"]), _READING, settings, base, out=file)
        selection = train_and_select(job.run, report)
        record, _ = job.finish(selection)
        content = _content(file.read_bytes())
    result = selection.result
    return {
        **content,
        "metric": result.metric,
        "score": result.validation[result.metric],
        "notes": [*record["notes"], *record["warnings"]],
        "ahead": _is_ahead(selection),
    }


def _content(file: bytes) -> dict[str, str]:
    return {"content": base64.b64encode(file).decode()}


def _is_ahead(selection: Selection) -> bool:
    """Whether a trained result leads the exact head, on the same rows, by more than the lead's standard error."""
    run, measured = selection.run, selection.result.measured
    head = None if measured is None or run.plan.exact else comparable_head(measured, run.baselines.answers)
    return (
        measured is not None
        and head is not None
        and jackknife_score(run, measured).is_ahead_of(jackknife_score(run, head))
    )


def _source(rows: Sequence[Mapping[str, str]]) -> Source:
    columns = {name: [row.get(name) for row in rows] for name in ("text", "text_pair", "label")}
    if not any(columns["text_pair"]):
        del columns["text_pair"]
    return Source("examples", {"train": Table(columns, "examples")}, single_file=True)


def main() -> None:
    """Trains until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a library that prints spoils no answer
    worker = Worker(load_on(sys.argv[1] if len(sys.argv) > 1 else None, "float32", "cpu"), answers)
    Thread(target=worker.listen, daemon=True).start()
    while True:
        worker.answer()


if __name__ == "__main__":
    main()
