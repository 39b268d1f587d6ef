"""Routes that answer: one task, a mix of tasks, one text for many tasks."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter

from onebert_encoder.tokens import Text
from onebert_server.answers import Answered
from onebert_server.routing import PROBLEMS, DirectRoute, FrontPartsOf
from onebert_server.schemas import (
    ClassifyItemsRequest,
    ClassifyItemsResponse,
    ClassifyRequest,
    ClassifyResponse,
    FanoutRequest,
    Result,
    TaskResult,
    TextPair,
)
from onebert_server.versions import Wanted

router = APIRouter(route_class=DirectRoute, responses=PROBLEMS, tags=["classify"])


@router.post("/v1/tasks/{task}/classify", response_model_exclude_none=True)
async def classify(task: str, body: ClassifyRequest, parts: FrontPartsOf) -> ClassifyResponse:
    """Classifies one or several inputs with one version: `name` (its live one), `name@3` or `name@alias`."""
    inputs = body.inputs if isinstance(body.inputs, list) else [body.inputs]
    wanted = Wanted([task] * len(inputs))
    answered = await parts.answerer.answer(wanted, [_text(one) for one in inputs], body.top_k)
    record = answered[0].record
    results = [Result(**_fields(one)) for one in answered]
    return ClassifyResponse(task=record.task, version=record.version, digest=record.digest, results=results)


@router.post("/v1/classify", response_model_exclude_none=True)
async def classify_items(body: ClassifyItemsRequest, parts: FrontPartsOf) -> ClassifyItemsResponse:
    """Classifies items of any mix of tasks and versions; answers come in the order of the items."""
    wanted = Wanted([item.task for item in body.items])
    return _by_many(await parts.answerer.answer(wanted, [_text(item) for item in body.items], body.top_k))


@router.post("/v1/fanout", response_model_exclude_none=True)
async def fanout(body: FanoutRequest, parts: FrontPartsOf) -> ClassifyItemsResponse:
    """Classifies one input with many tasks, tokenized once; `["*"]` is the live version of every task that takes it."""
    text = _text(body)
    wanted = Wanted(None if body.tasks == ["*"] else body.tasks, pair=not isinstance(text, str))
    return _by_many(await parts.answerer.answer(wanted, [text], body.top_k))


def _by_many(answered: Sequence[Answered]) -> ClassifyItemsResponse:
    results = [
        TaskResult(task=one.record.task, version=one.record.version, digest=one.record.digest, **_fields(one))
        for one in answered
    ]
    return ClassifyItemsResponse(results=results)


def _text(one: str | TextPair) -> Text:
    if isinstance(one, str):
        return one
    return one.text if one.text_pair is None else (one.text, one.text_pair)


def _fields(one: Answered) -> dict[str, Any]:
    return {**vars(one.answer), "tokens": len(one.tokens), "truncated": one.tokens.truncated}
