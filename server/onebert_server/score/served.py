"""Scores a job by a server: each task's results become the columns that this machine would compute."""

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

import pyarrow

from onebert_server.client import Client
from onebert_server.client.many import classify_many, error_of
from onebert_server.client.references import version_of
from onebert_server.score.columns import columns_of_results
from onebert_server.score.job import Job
from onebert_server.score.output import MakeJob, Parts, Scores
from onebert_server.score.reading import read_windows
from onebert_server.score.rows import Rows
from onebert_server.score.tasks import ScoredTask, names_file, with_own_names
from onebert_store.errors import AnswerNotFinite, InvalidInput, TooLarge
from onebert_store.file.manifest import parse_manifest

# Errors of one row; any other ends the job, whose finished parts stay.
_OF_A_ROW = (InvalidInput, TooLarge, AnswerNotFinite)


@dataclass(frozen=True, eq=False)
class ServedTask(ScoredTask):
    """A version of a server, which `reference` names."""

    reference: str


@dataclass(frozen=True)
class AskedServer:
    """The address of a server, and the key that it wants."""

    url: str
    api_key: str | None = None

    def find_tasks(self, references: Sequence[str]) -> list[ServedTask]:
        """The versions that the references mean now; raises the error of one that the server does not have."""
        with Client(self.url, self.api_key) as client:
            tasks = [_find(client, reference) for reference in references]
        return with_own_names(tasks, [task.reference for task in tasks])

    @contextmanager
    def scorer(self, tasks: Sequence[ServedTask], make_job: MakeJob) -> Iterator[Scores]:
        job = make_job(computing=None)
        yield job, lambda scored: self._score(job, tasks, scored)

    def _score(self, job: Job, tasks: Sequence[ServedTask], scored: Container[str]) -> Parts:
        for name, windows in groupby(read_windows(job, scored), lambda window: window.part):
            yield name, ((window, self._answers(job, tasks, window.rows)) for window in windows)

    def _answers(self, job: Job, tasks: Sequence[ServedTask], rows: Rows) -> pyarrow.Table:
        texts, of_row = rows.distinct()
        items = [(task.reference, text) for task in tasks for text in texts]
        results = classify_many(self.url, self.api_key, items, top_k=None if job.all_scores else 1)
        answers, errors = dict[str, pyarrow.Array](), list(rows.errors)
        for number, task in enumerate(tasks):
            of_task = results[number * len(texts) : (number + 1) * len(texts)]
            answers |= columns_of_results(task, texts, of_task, job.all_scores)
            for row, text in enumerate(of_row):
                if text is not None and (error := of_task[text].error) is not None:
                    if not isinstance(refusal := error_of(error), _OF_A_ROW):
                        raise refusal
                    errors[row] = error.detail
        return rows.with_answers(answers, of_row, errors)


def _find(client: Client, reference: str) -> ServedTask:
    if names_file(reference):
        raise InvalidInput(f"{reference} is a file; a server scores by versions that were pushed to it")
    name, number = version_of(client, reference)
    facts = client.version(name, number)
    return ServedTask(name, number, facts.digest, parse_manifest(facts.manifest), f"{name}@{number}")
