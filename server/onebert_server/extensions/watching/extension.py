"""Compares the answers of each version with its reference, and raises alarms."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from onebert_server.extensions.watching import routes
from onebert_server.extensions.watching.kept import WatchDocuments
from onebert_server.extensions.watching.settings import Settings
from onebert_server.extensions.watching.status import columns
from onebert_server.extensions.watching.watch import Watch
from onebert_server.run.extension import Extension
from onebert_server.runtime import Runtime


def _open(runtime: Runtime, opened: ExitStack) -> Watch | None:
    settings, metrics, hooks = runtime.settings_of(Settings), runtime.metrics, runtime.hooks
    changes = metrics.counter("alarm_changes", "Alarms of watched versions that went on or off.", "state")
    if not settings.false_alarms:
        return None

    def changed(state: str, task: str, version: int, change: Mapping[str, Any]) -> None:
        changes.labels(state).inc()
        hooks.announce(f"alarm.{state}", {"task": task, "version": version, **change})

    documents, versions = WatchDocuments(runtime.registry.documents), (runtime.directory, runtime.catalog.manifests)
    watch = Watch(metrics.answers, settings.false_alarms, documents, *versions, runtime.settings.task_metrics, changed)
    metrics.registry.register(watch)
    hooks.answered.append(watch.count)
    opened.callback(watch.close)
    watch.start()
    return watch


EXTENSION = Extension(_open, [routes.router], columns)
