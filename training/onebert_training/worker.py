"""Trains tasks from a server's examples in a process of its own; the server asks in lines of JSON (`--trainer`)."""

import base64
import json
import os
import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from threading import Condition, Thread
from typing import Any, TextIO

from onebert_encoder.base.base import Base
from onebert_store.errors import OneBertError
from onebert_store.file.delta import Delta
from onebert_store.file.format import dumps
from onebert_store.tables.table import Table
from onebert_store.tables.tables import Source
from onebert_training.data.checks import name_doubts
from onebert_training.data.options import DataOptions
from onebert_training.device import load_on
from onebert_training.fit.keeping import comparable_head, jackknife_score
from onebert_training.fit.loop import Progress, Report
from onebert_training.fit.settings import DEFAULT_METHOD, Settings
from onebert_training.methods.grammar import HEAD
from onebert_training.names import delta_of_names, words_of
from onebert_training.pauses import calling_at_pauses, pause
from onebert_training.prepared import prepare
from onebert_training.selection.selection import Selection, train_and_select

_UNSCORED = "nothing is trained or scored without examples: a text gets the label whose name is nearest"

Request = Mapping[str, Any]


class _Cancelled(BaseException):
    """Nobody waits any more for what is computed; nothing that a training catches."""


class Worker:
    """Answers the oldest exact head first, and improvements once no head waits.

    At a pause a head lets one of at most half its work go first, and then computes for as long as that took. So nobody
    waits much longer for others than for his own, and nothing stands still. An improvement lets every head go first.
    """

    def __init__(self, base: Base, answers: TextIO) -> None:
        self._base = base
        self._answers = answers
        self._changed = Condition()
        # By their numbers; a cancelled request is in neither.
        self._waiting: dict[int, Request] = {}
        self._begun: set[int] = set()

    def listen(self) -> None:
        """Reads requests from standard input on another thread; this process ends with the server's."""
        for line in sys.stdin.buffer:
            self.take(json.loads(line))
        os._exit(0)

    def take(self, request: Request) -> None:
        """Takes a request, or the cancellation of one."""
        with self._changed:
            if "cancelled" in request:
                self._waiting.pop(request["cancelled"], None)
                self._begun.discard(request["cancelled"])
            else:
                self._waiting[request["number"]] = request
                self._changed.notify()

    def answer(self) -> None:
        """Answers the next request."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting))
            request = self._begin(self._waiting.values())
        self._answer(request)

    def _begin(self, requests: Iterable[Request]) -> Request:
        request = min(requests, key=lambda waiting: (waiting["improve"], waiting["number"]))
        self._begun.add(request["number"])
        return self._waiting.pop(request["number"])

    def _answer(self, request: Request) -> None:
        alone_until = 0.0

        def at_pause() -> None:
            nonlocal alone_until
            began = time.monotonic()
            with self._changed:
                if request["number"] not in self._begun:
                    raise _Cancelled
                smaller = [waiting for waiting in self._waiting.values() if 2 * waiting["work"] < request["work"]]
                if not smaller or (began < alone_until and not request["improve"]):
                    return
                first = self._begin(smaller)
            self._answer(first)
            alone_until = 2 * time.monotonic() - began

        def report(_: object, progress: Progress) -> None:
            measuring = progress.testing or progress.folds > 0
            self._say(request, progress={"measuring": measuring, "step": progress.step, "steps": progress.steps})
            pause()

        try:
            with calling_at_pauses(at_pause):
                self._say(request, done=train_examples(self._base, request, report))
        except _Cancelled:
            return
        except OneBertError as error:
            self._say(request, error={"code": error.code, "detail": error.detail})
        except Exception as error:
            # Without the message, which may quote a text.
            traceback.print_tb(error.__traceback__)
            self._say(request, error={"code": OneBertError.code, "detail": "the training failed; the log has more"})
        finally:
            self._begun.discard(request["number"])

    def _say(self, request: Request, **fields: object) -> None:
        self._answers.write(json.dumps({"number": request["number"], **fields}) + "\n")
        self._answers.flush()


def train_examples(base: Base, request: Request, report: Report) -> dict[str, Any]:
    """Trains the exact head, or with `improve` the default method; raises OneBertError if the rows cannot be used."""
    if "text" not in request["rows"][0]:
        labels = [row["label"] for row in request["rows"]]
        texts = [_text(row) for row in request["rows"]]
        content, notes = _content(delta_of_names(base, labels, texts=texts)), [_UNSCORED, *name_doubts(labels)]
        return {**content, "metric": "accuracy", "score": None, "notes": notes, "ahead": False, "useful": True}
    settings = Settings(method=DEFAULT_METHOD if request["improve"] else HEAD)
    # Nothing is written: the server may have no folder to write to.
    source, reading = _source(request["rows"])
    job = prepare(request["task"], source, reading, settings, base, out=Path(os.devnull))
    selection = train_and_select(job.run, report)
    result = job.completed(selection)
    return {
        **_content(result.delta),
        "metric": result.metric,
        "score": result.validation[result.metric],
        "notes": [*selection.run.notes, *result.verdict.warnings],
        "ahead": _is_ahead(selection),
        "useful": result.verdict.useful,
    }


def _content(delta: Delta | None) -> dict[str, str]:
    if delta is None:
        raise TypeError("a delta can hold what these methods train")
    return {"content": base64.b64encode(dumps(delta)).decode()}


def _is_ahead(selection: Selection) -> bool:
    """Whether a trained result leads the exact head, on the same rows, by more than the lead's standard error."""
    run, measured = selection.run, selection.result.measured
    head = None if measured is None or run.plan.exact else comparable_head(measured, run.baselines.answers)
    return (
        measured is not None
        and head is not None
        and jackknife_score(run, measured).is_ahead_of(jackknife_score(run, head))
    )


def _source(rows: Sequence[Mapping[str, Any]]) -> tuple[Source, DataOptions]:
    """The rows as a table, and how it is read."""
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
    worker = Worker(load_on(sys.argv[1] if len(sys.argv) > 1 else None, "float32", "cpu"), answers)
    Thread(target=worker.listen, daemon=True).start()
    while True:
        worker.answer()


if __name__ == "__main__":
    main()
