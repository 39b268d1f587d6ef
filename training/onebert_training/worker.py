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
from onebert_training.contest.contest import Kept, train_kept
from onebert_training.data.options import DataOptions
from onebert_training.device import load_on
from onebert_training.fit.keeping import head_beside, judged
from onebert_training.fit.loop import Progress, Report
from onebert_training.fit.settings import DEFAULT_METHOD, Settings
from onebert_training.methods.grammar import HEAD
from onebert_training.names import delta_of_names
from onebert_training.prepared import prepare

_READING = DataOptions(task_type="single_label")
_UNSCORED = "nothing is trained or scored without examples: a text gets the label whose name is nearest"

Asked = Mapping[str, Any]


class Worker:
    """Answers requests in their order; between the steps of an improvement it fits the exact heads that wait."""

    def __init__(self, base: Base, answers: TextIO) -> None:
        self._base = base
        self._answers = answers
        # Exact heads first: False is below True.
        self._asked: PriorityQueue[tuple[bool, int, Asked]] = PriorityQueue()

    def listen(self) -> None:
        """Reads requests from standard input on another thread; this process ends with the server's."""
        for line in sys.stdin.buffer:
            asked = json.loads(line)
            self._asked.put((asked["improve"], asked["number"], asked))
        os._exit(0)

    def answer(self) -> None:
        """Answers the next request."""
        asked = self._asked.get()[-1]

        def report(_: object, progress: Progress) -> None:
            measuring = progress.testing or progress.folds > 0
            self._say(asked, progress={"measuring": measuring, "step": progress.step, "steps": progress.steps})
            while asked["improve"] and self._asked.queue and not self._asked.queue[0][0]:
                self.answer()

        try:
            self._say(asked, done=trained(self._base, asked, report))
        except OneBertError as error:
            self._say(asked, error={"code": error.code, "detail": error.detail})
        except Exception as error:
            # Without the message, which may quote a text.
            traceback.print_tb(error.__traceback__)
            self._say(asked, error={"code": OneBertError.code, "detail": "the training failed; the log has more"})

    def _say(self, asked: Asked, **said: object) -> None:
        self._answers.write(json.dumps({"number": asked["number"], **said}) + "\n")
        self._answers.flush()


def trained(base: Base, asked: Asked, report: Report) -> dict[str, Any]:
    """Trains the exact head, or with `improve` the default method; raises OneBertError if the rows cannot be used."""
    if "text" not in asked["rows"][0]:
        delta = delta_of_names(base, [row["label"] for row in asked["rows"]])
        return {**_content(dumps(delta)), "metric": "accuracy", "score": None, "notes": [_UNSCORED], "ahead": False}
    settings = Settings(method=DEFAULT_METHOD if asked["improve"] else HEAD)
    with TemporaryDirectory() as folder:
        file = Path(folder, "delta.safetensors")
        job = prepare(asked["task"], _source(asked["rows"]), _READING, settings, base, out=file)
        kept = train_kept(job.run, report)
        record, _ = job.finish(kept)
        content = _content(file.read_bytes())
    result = kept.result
    return {
        **content,
        "metric": result.metric,
        "score": result.validation[result.metric],
        "notes": [*record["notes"], *record["warnings"]],
        "ahead": _is_ahead(kept),
    }


def _content(file: bytes) -> dict[str, str]:
    return {"content": base64.b64encode(file).decode()}


def _is_ahead(kept: Kept) -> bool:
    """Whether a trained result leads the exact head, on the same rows, by more than the lead's standard error."""
    run, measured = kept.run, kept.result.measured
    head = None if measured is None or run.plan.exact else head_beside(measured, run.baselines.answers)
    return measured is not None and head is not None and judged(run, measured).is_ahead_of(judged(run, head))


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
