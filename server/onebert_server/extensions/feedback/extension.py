"""Keeps answers of tasks that ask for it, records feedback, and says by it what to label and which version is right."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.extensions.feedback.keeping import SampleKeeper, redactor_named
from onebert_server.extensions.feedback.recording import Recorder
from onebert_server.extensions.feedback.reviews import Reviews
from onebert_server.extensions.feedback.routes import review, samples
from onebert_server.extensions.feedback.service import FeedbackService
from onebert_server.extensions.feedback.settings import Settings
from onebert_server.extensions.feedback.verdicts import Verdicts
from onebert_server.run.extension import Extension
from onebert_server.runtime import Runtime
from onebert_server.versions.version import TaskEntry
from onebert_store.registry.names import LIVE
from onebert_store.samples.store import open_samples


def _open(runtime: Runtime, opened: ExitStack) -> FeedbackService:
    settings, metrics, hooks = runtime.settings_of(Settings), runtime.metrics, runtime.hooks
    answers = metrics.counter("samples", "Answers that were to be kept, by result.", "result")
    rows = metrics.counter("feedback", "Rows of feedback.", "kind")
    store = opened.enter_context(open_samples(runtime.registry.database, settings.samples_key))
    redactor = redactor_named(settings.redactor)
    keeper = SampleKeeper(store, redactor, lambda result, number: answers.labels(result).inc(number))
    opened.callback(keeper.close)
    hooks.sampled.append(keeper.take)
    hooks.deleting.append(keeper.swept)
    hooks.storage.append(lambda: store.database.state)
    keeper.start()
    catalog, answerer, registrars = runtime.catalog, runtime.answerer, runtime.registrars
    recorder = Recorder(store, keeper, catalog, answerer, registrars, lambda kind: rows.labels(kind).inc())
    reviews = Reviews(store, catalog, answerer, registrars)
    return FeedbackService(store, keeper, recorder, reviews, Verdicts(store, registrars))


def _columns(
    runtime: Runtime, tasks: Sequence[TaskEntry], context: Context, whole: bool
) -> Mapping[str, Mapping[str, Any]]:
    """Counts, by task with a live version, the rows of feedback since that version was made; of one, new labels.

    Candidates of `live` have their verdicts.
    """
    since = {
        task.name: task.versions[task.aliases[LIVE].version].entry.created_at
        for task in tasks
        if LIVE in task.aliases and context.principal.may(Action.REVIEW, task.name)
    }
    service = runtime.parts[FeedbackService]
    counts = service.store.feedback_since(since)
    new = {task: service.reviews.new_labels(task) for task in since} if whole else {}
    columns: dict[str, dict[str, Any]] = {
        task: {"feedback": counts.get(task, 0), "new_labels": new.get(task)} for task in since
    }
    targets = {task.name: task.aliases[LIVE].target for task in tasks if LIVE in task.aliases}
    for task, target in targets.items():
        if target.candidates:
            columns.setdefault(task, {})["candidates"] = service.verdicts.judged(task, target)
    return columns


EXTENSION = Extension(_open, [samples.router, review.router], _columns)
