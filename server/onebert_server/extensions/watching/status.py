"""Alarms and shifts of tasks, for their status."""

from collections.abc import Mapping, Sequence
from typing import Any

from onebert_server.access.context import Context
from onebert_server.contract.status import Alarm, LabelShift, TopScores
from onebert_server.extensions.watching.alarms import shares_of
from onebert_server.extensions.watching.watch import Watch
from onebert_server.extensions.watching.watched import Watched
from onebert_server.runtime import Runtime
from onebert_server.versions.version import TaskEntry
from onebert_store.registry.names import LIVE


def columns(runtime: Runtime, tasks: Sequence[TaskEntry], _: Context, __: bool) -> dict[str, Mapping[str, Any]]:
    """The shift and the alarm of each task whose `live` has answered."""
    watch = runtime.parts.find(Watch)
    return {task.name: _columns(watch, task) for task in tasks if LIVE in task.aliases} if watch else {}


def _columns(watch: Watch, task: TaskEntry) -> dict[str, Any]:
    live = task.aliases[LIVE]
    watched = {number: watch.get(task.name, number) for number, _ in live.target.shares}
    alarms = (_alarm(number, version) for number, version in watched.items() if version is not None)
    return {"shift": _shift(watched.get(live.version)), "alarm": next(filter(None, alarms), None)}


def _alarm(number: int, watched: Watched) -> Alarm | None:
    since, judged = watched.alarm_since, watched.judged
    if since is None or judged is None:
        return None
    return Alarm(since=since, version=number, words=judged.words, shift=_shift(watched), scores=_scores(watched))


def _scores(watched: Watched) -> TopScores | None:
    reference, judged = watched.reference, watched.judged
    if reference is None or judged is None or not reference.scores:
        return None
    return TopScores(edges=reference.edges, reference=reference.scores, live=judged.live.scores.tolist())


def _shift(watched: Watched | None) -> LabelShift | None:
    if watched is None or watched.reference is None or watched.judged is None:
        return None
    return shares_of(watched.labels, watched.reference, watched.judged.live)[0]
