"""Routes that answer: one task, a mix of tasks, one text for many tasks."""

from typing import Any

from fastapi import APIRouter

from onebert_encoder.answer import TASK_TYPES, Answer
from onebert_encoder.tokens import Text, Tokens
from onebert_server.directory import Resident
from onebert_server.routing import PROBLEMS, Parts, PartsOf, StrictRoute
from onebert_server.schemas import (
    MAX_FANOUT,
    ClassifyItemsRequest,
    ClassifyItemsResponse,
    ClassifyRequest,
    ClassifyResponse,
    FanoutRequest,
    Result,
    TaskResult,
    TextPair,
)
from onebert_store.errors import InvalidInput

router = APIRouter(route_class=StrictRoute, responses=PROBLEMS, tags=["classify"])


@router.post("/v1/tasks/{task}/classify", response_model_exclude_none=True)
async def classify(task: str, body: ClassifyRequest, parts: PartsOf) -> ClassifyResponse:
    """Classifies one or several inputs with one version: `name` (its live one), `name@3` or `name@alias`."""
    inputs = body.inputs if isinstance(body.inputs, list) else [body.inputs]
    residents = parts.directory.pin([task] * len(inputs))
    answers = await parts.answerer.answer(residents, [_text(one) for one in inputs], body.top_k)
    record = residents[0].record
    results = [Result(**_fields(answer, tokens)) for answer, tokens in answers]
    return ClassifyResponse(task=record.task, version=record.version, digest=record.digest, results=results)


@router.post("/v1/classify", response_model_exclude_none=True)
async def classify_items(body: ClassifyItemsRequest, parts: PartsOf) -> ClassifyItemsResponse:
    """Classifies items of any mix of tasks and versions; answers come in the order of the items."""
    residents = parts.directory.pin([item.task for item in body.items])
    return await _answer_each(parts, residents, [_text(item) for item in body.items], body.top_k)


@router.post("/v1/fanout", response_model_exclude_none=True)
async def fanout(body: FanoutRequest, parts: PartsOf) -> ClassifyItemsResponse:
    """Classifies one input with many tasks, tokenized once; `["*"]` is the live version of every task that takes it."""
    text = _text(body)
    if body.tasks == ["*"]:
        residents = parts.directory.pin_live(lambda record: TASK_TYPES[record.manifest.task_type].takes(text))
    else:
        residents = parts.directory.pin(body.tasks)
    if len(residents) > MAX_FANOUT:
        parts.directory.unpin(residents)
        raise InvalidInput(f"there are more than {MAX_FANOUT} tasks; name those you want")
    return await _answer_each(parts, residents, [text] * len(residents), body.top_k)


async def _answer_each(
    parts: Parts, residents: list[Resident], texts: list[Text], top_k: int | None
) -> ClassifyItemsResponse:
    answers = await parts.answerer.answer(residents, texts, top_k) if residents else []
    results = [
        TaskResult(
            task=resident.record.task,
            version=resident.record.version,
            digest=resident.record.digest,
            **_fields(answer, tokens),
        )
        for resident, (answer, tokens) in zip(residents, answers, strict=True)
    ]
    return ClassifyItemsResponse(results=results)


def _text(one: str | TextPair) -> Text:
    if isinstance(one, str):
        return one
    return one.text if one.text_pair is None else (one.text, one.text_pair)


def _fields(answer: Answer, tokens: Tokens) -> dict[str, Any]:
    return {**vars(answer), "tokens": len(tokens), "truncated": tokens.truncated}
