"""Alarms and shifts of tasks, for the list of all tasks."""

from collections.abc import Mapping, Sequence
from typing import Any

from onebert_server.access.context import Context
from onebert_server.contract.fleet import LabelShift
from onebert_server.extensions.watching.alarms import cause_of, shares_of
from onebert_server.extensions.watching.watch import Watch
from onebert_server.extensions.watching.watched import Watched
from onebert_server.runtime import Runtime
from onebert_server.versions.version import TaskEntry
from onebert_store.registry.names import LIVE


def columns(runtime: Runtime, tasks: Sequence[TaskEntry], _: Context) -> dict[str, Mapping[str, Any]]:
    """The shift and the alarm of each task whose `live` has answered."""
    watch = runtime.parts.find(Watch)
    return {task.name: _columns(watch, task) for task in tasks if LIVE in task.aliases} if watch else {}


def _columns(watch: Watch, task: TaskEntry) -> dict[str, Any]:
    live = task.aliases[LIVE]
    watched = {number: watch.get(task.name, number) for number, _ in live.target.shares}
    alarmed = next((version for version in watched.values() if version is not None and version.alarm_since), None)
    return {
        "shift": _shift(watched.get(live.version)),
        "alarm_since": alarmed.alarm_since if alarmed else None,
        "cause": cause_of(alarmed.shift) if alarmed else None,
    }


def _shift(watched: Watched | None) -> LabelShift | None:
    if watched is None or watched.reference is None or watched.window.last is None:
        return None
    return shares_of(watched.labels, watched.reference, watched.window.last)[0]
