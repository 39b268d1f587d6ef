"""The route of all tasks at one glance."""

from typing import Annotated

import msgspec
from fastapi import Query, Request, Response

from onebert_server.contract.fleet import FleetResponse, FleetTask
from onebert_server.http.routes.registry import registry_router
from onebert_server.http.routes.runtime_of import RuntimeOf, ViewOf, in_thread
from onebert_server.http.routes.tasks import MAX_PAGE
from onebert_server.http.strict import Answer, ContextOf
from onebert_server.limits import MAX_REF
from onebert_server.runtime import Runtime
from onebert_server.telemetry.paces import Pace
from onebert_server.versions.version import State, TaskEntry
from onebert_store.registry.names import LIVE

router = registry_router()


@router.get("/v1/fleet", response_model=FleetResponse)
async def fleet(
    request: Request,
    runtime: RuntimeOf,
    view: ViewOf,
    context: ContextOf,
    after: Annotated[str, Query(max_length=MAX_REF, description="the last name of the page before")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="tasks of a page")] = MAX_PAGE,
) -> Response:
    """Lists the tasks with live version, traffic, alarm, gate, new feedback and what cannot be loaded, in pages.

    Traffic and alarms are this server's alone, since its start.
    """

    def page() -> bytes:
        entries = view.tasks(after, limit + 1, "")
        columns = [columns(runtime, entries[:limit], context) for columns in runtime.columns]
        paces = runtime.metrics.paces.of({entry.name for entry in entries})
        tasks = []
        for entry in entries[:limit]:
            added = {name: value for each in columns for name, value in each.get(entry.name, {}).items()}
            tasks.append(msgspec.structs.replace(_task(runtime, entry, paces.get(entry.name)), **added))
        next_name = tasks[-1].name if len(entries) > limit else None
        return msgspec.json.encode(FleetResponse(tasks=tasks, next=next_name))

    return Answer(request, await in_thread(runtime, page), "application/json")


def _task(runtime: Runtime, entry: TaskEntry, pace: Pace | None) -> FleetTask:
    live = entry.aliases.get(LIVE)
    version = entry.versions[live.version] if live else None
    facts = version.known_facts if version else None
    host = runtime.engine.hosts.get(facts.base) if facts else None
    return FleetTask(
        name=entry.name,
        base=host.base.spec.name if host else facts.base if facts else None,
        live=live.version if live else None,
        created_at=version.entry.created_at if version else None,
        unavailable={
            str(number): v.reason or "" for number, v in entry.versions.items() if v.state is State.UNAVAILABLE
        },
        a_minute=pace and pace.a_minute,
        p95=pace and pace.p95,
    )
