"""The routes of the status: all tasks at one glance, and one task."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from fastapi import Query, Request, Response

from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.contract.status import StatusResponse, TaskInForce, TaskStatus
from onebert_server.http.routes.registry import Name, registry_router
from onebert_server.http.routes.runtime_of import RuntimeOf, ViewOf, in_thread
from onebert_server.http.routes.tasks import MAX_PAGE
from onebert_server.http.schemas.status import MOVES, LiveVersion, Stored, extended, in_force, status_of
from onebert_server.http.strict import Answer, ContextOf
from onebert_server.limits import MAX_REF
from onebert_server.runtime import Runtime
from onebert_server.versions.version import State, TaskEntry, Version
from onebert_server.versions.view import View
from onebert_store.registry.names import LIVE

router = registry_router()


@router.get("/v1/status", response_model=StatusResponse)
async def status(
    request: Request,
    runtime: RuntimeOf,
    view: ViewOf,
    context: ContextOf,
    after: Annotated[str, Query(max_length=MAX_REF, description="the last name of the page before")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="tasks of a page")] = MAX_PAGE,
) -> Response:
    """Lists the status of each task, in pages: `live`, score, traffic, alarm, gate, feedback, the last move.

    Traffic, since its start, and alarms are this server's alone.
    """

    def page() -> bytes:
        entries = view.tasks(after, limit + 1, "")
        tasks = _seen(runtime, entries[:limit], context)
        next_name = tasks[-1].name if len(entries) > limit else None
        return msgspec.json.encode(StatusResponse(tasks=tasks, next=next_name))

    return Answer(request, await in_thread(runtime, page), "application/json")


@router.get("/v1/tasks/{task}/status", response_model=TaskInForce)
async def task_status(task: Name, request: Request, runtime: RuntimeOf, view: ViewOf, context: ContextOf) -> Response:
    """Shows the status of a task: as the list of all tasks, its aliases, thresholds, and last ten moves."""

    def described() -> bytes:
        return msgspec.json.encode(_in_force(runtime, view, task, context))

    return Answer(request, await in_thread(runtime, described), "application/json")


def _in_force(runtime: Runtime, view: View, task: str, context: Context) -> TaskInForce:
    entry = view.whole_task(task)
    [seen] = _seen(runtime, [entry], context, whole=True)
    may = context.principal.may(Action.PROMOTE, task)
    last = runtime.registry.feed.moves(task, MOVES) if may else []
    return in_force(seen, _stored(runtime, entry), last)


def _seen(runtime: Runtime, entries: Sequence[TaskEntry], context: Context, whole: bool = False) -> list[TaskStatus]:
    """Makes the status of tasks by the registry, this server's metrics and its extensions."""
    columns = [of_extension(runtime, entries, context, whole) for of_extension in runtime.columns]
    paces = runtime.metrics.answers.paces({entry.name for entry in entries})
    seen = {task: pace._asdict() for task, pace in paces.items()}
    movable = [entry.name for entry in entries if context.principal.may(Action.PROMOTE, entry.name)]
    last = runtime.registry.feed.last_moves(movable)
    tasks = []
    for entry in entries:
        unavailable = {
            str(number): version.reason or ""
            for number, version in entry.versions.items()
            if version.state is State.UNAVAILABLE
        }
        stored = status_of(_stored(runtime, entry), last.get(entry.name), unavailable, _lacks(entry))
        tasks.append(extended(stored, [*columns, seen]))
    return tasks


def _lacks(entry: TaskEntry) -> dict[str, list[str]]:
    """The targets that versions of `live`, and newer ones, were trained to keep and do not."""
    at = entry.aliases.get(LIVE)
    wanted = [number for number in entry.versions if at and (number in at.target.numbers or number > at.version)]
    return {str(number): [*entry.versions[number].lacks] for number in wanted if entry.versions[number].lacks}


def _stored(runtime: Runtime, entry: TaskEntry) -> Stored:
    version = _live(entry)
    live = None
    if version is not None:
        facts = version.known_facts
        host = runtime.engine.hosts.get(facts.base) if facts else None
        base = host.base.spec.name if host else facts.base if facts else None
        task_type, decision = (facts.task_type, facts.decision) if facts else (None, None)
        live = LiveVersion(task_type, base, version.entry.created_at, version.score, decision)
    return Stored(entry.name, [*entry.versions], entry.aliases, live, runtime.directory.keepings.get(entry.name))


def _live(entry: TaskEntry) -> Version | None:
    at = entry.aliases.get(LIVE)
    return entry.versions.get(at.version) if at else None
