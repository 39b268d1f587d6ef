"""Routes about the server itself: the base, health, readiness, metrics."""

from typing import Any

from fastapi import APIRouter, Request, Response

from onebert_encoder.base.base import Base
from onebert_encoder.maths.choose import answering_kernels
from onebert_server.access.principal import Action
from onebert_server.contract.tasks import BaseFacts, OneBase
from onebert_server.http.routes.runtime_of import RuntimeOf
from onebert_server.http.schemas.system import Health, WhoResponse
from onebert_server.http.strict import PROBLEMS, ContextOf, MetricNames

router = APIRouter(responses=PROBLEMS, tags=["system"])


@router.get("/v1/base", response_model_exclude_none=True)
async def base(runtime: RuntimeOf) -> BaseFacts:
    """The base: name, digest, sizes, poolings and how it computes.

    With several bases this describes the first one, and `bases` describes each.
    """
    each = [_facts(host.base) for host in runtime.hosts]
    return BaseFacts(**each[0], bases=[OneBase(**facts) for facts in each] if len(each) > 1 else None)


@router.get("/v1/whoami")
async def whoami(context: ContextOf) -> WhoResponse:
    """The caller: its principal, scopes, tasks (globs) and default task."""
    who = context.principal
    scopes = sorted(who.scopes)
    return WhoResponse(principal=who.name, scopes=scopes, tasks=list(who.tasks), default_task=who.default_task)


@router.get("/healthz", response_model_exclude_none=True)
async def healthz(runtime: RuntimeOf) -> Health:
    """The process is alive; 503 when its engine is dead, hangs or fails every batch, and only a restart helps."""
    runtime.check_health()
    return Health(status="alive")


@router.get("/startupz", response_model_exclude_none=True)
async def startupz() -> Health:
    """The server has started; 503 while it loads, with its progress."""
    return Health(status="started")


@router.get("/readyz", response_model_exclude_none=True)
async def readyz(runtime: RuntimeOf) -> Health:
    """The server answers requests; 503 while it stops, and with `/healthz`.

    The body has `storage`, the state of the disk at the last change and of the registry; without keys also the
    numbers of `tasks` and `versions`, of versions `resident` and `unavailable`, `seq`, the registry's last
    change shown, and `age`, the seconds since it last looked for others.
    """
    runtime.check_ready()
    ready = Health(status="ready", storage=runtime.catalog.storage)
    if not runtime.keys.is_open:
        return ready
    shown = {"seq": runtime.directory.position.seq, "age": round(runtime.follower.age, 3)}
    return ready.model_copy(update={**shown, **runtime.directory.counts()})


def _facts(base: Base) -> dict[str, Any]:
    # A delta may touch hundreds of names.
    left_out = ("parameters", "modules", "symbols")
    return {
        **{name: value for name, value in vars(base.spec).items() if name not in left_out},
        "dtype": base.dtype_name,
        "device": str(base.device),
        "kernels": answering_kernels(base).description,
        "batch_invariant": base.batch_invariant,
    }


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
)
async def metrics(
    runtime: RuntimeOf,
    context: ContextOf,
    request: Request,
    names: MetricNames = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    """Prometheus metrics of all tasks together, for keys of all tasks."""
    context.principal.require_all(Action.MEASURE)
    runtime.telemetry.flush()
    text, media_type = await runtime.metrics.exposition_for(request.headers.get("accept", ""), names)
    return Response(text, headers={"Content-Type": media_type})
