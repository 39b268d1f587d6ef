"""Routes about the server itself: the base, health, readiness, metrics."""

from fastapi import APIRouter, Response

from onebert_encoder.kernels.choose import answering_kernels
from onebert_server.routing import PROBLEMS, PartsOf
from onebert_server.schemas import BaseResponse, Health
from onebert_store.errors import ShuttingDown

router = APIRouter(responses=PROBLEMS, tags=["system"])


@router.get("/v1/base")
async def base(parts: PartsOf) -> BaseResponse:
    """The base, and the names and shapes that a delta for it may touch."""
    return BaseResponse(
        **vars(parts.base.spec),
        dtype=parts.base.dtype_name,
        device=parts.settings.device,
        kernels=answering_kernels(parts.base).name,
    )


@router.get("/healthz", response_model_exclude_none=True)
async def healthz() -> Health:
    """The process is alive."""
    return Health(status="alive")


@router.get("/readyz")
async def readyz(parts: PartsOf) -> Health:
    """The server answers requests; 503 once it was told to stop, or when its engine died."""
    if parts.draining or not parts.engine.alive:
        raise ShuttingDown("the server is stopping")
    return Health(status="ready", **parts.directory.counts())


@router.get("/metrics", response_class=Response)
async def metrics(parts: PartsOf) -> Response:
    """Prometheus metrics."""
    return Response(parts.metrics.exposition(await parts.front_ends.counted()), media_type=parts.metrics.content_type)
