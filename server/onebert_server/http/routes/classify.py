"""Routes that classify: one task, a mix of tasks, one text for many tasks."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from inspect import cleandoc
from operator import itemgetter
from typing import Any, cast

import msgspec
from starlette.routing import compile_path

from onebert_encoder.answering.asked import Asked
from onebert_encoder.answering.results import fields_of
from onebert_encoder.text.tokens import text_of
from onebert_server.access.context import Context
from onebert_server.answering.edge import Edge
from onebert_server.answering.gateway import BARE, Wanted
from onebert_server.answering.reading import Answered, Reading, Unanswered
from onebert_server.answering.sizes import AnswerBytes
from onebert_server.contract.answers import ClassifyItemsResponse, ClassifyResponse, Result, ResultError, TaskResult
from onebert_server.http.decoding import BrokenRules, Decoder, QuestionBody
from onebert_server.http.formats import DataRoute, OwnFormat, Reply
from onebert_server.http.schemas.questions import (
    ClassifyItemsRequest,
    ClassifyRequest,
    FanoutRequest,
    Item,
    inputs_of,
)
from onebert_server.http.strict import PROBLEMS
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput, OneBertError
from onebert_store.registry.names import parse_ref

_encode = msgspec.json.Encoder().encode


async def classify(task: str, body: ClassifyRequest, context: Context, edge: Edge) -> Reply:
    """Classifies 1 to 64 inputs with one version: `name` (its live one), `name@3` or `name@alias`."""
    texts = inputs_of(body.inputs)
    wanted = Wanted(_of_tasks([task]) * len(texts), asked=body.asked)
    answer = edge.answerer.answer_explained if body.explain else edge.answerer.answer
    shown = await answer(context, wanted, texts, partial(_result, wanted.asked.top_k, AnswerBytes()))
    # All answers are by one version.
    facts: Facts = shown[0][0]
    head = facts.prepared.get("head") or _head(facts)
    return Reply(b"%b%b]}" % (head, b",".join(map(itemgetter(1), shown))))


async def classify_items(body: ClassifyItemsRequest, context: Context, edge: Edge) -> Reply:
    """Classifies 1 to 64 items of any mix of tasks, in their order; all references are resolved at one moment."""
    refs, texts = _refs(body.items, context.principal.default_task), inputs_of(body.items)
    wanted = Wanted(refs, asked=body.asked, partial=bool(body.partial))
    show = partial(_task_result, wanted.asked, AnswerBytes())
    return _results(await edge.answerer.answer(context, wanted, texts, show))


async def fanout(body: FanoutRequest, context: Context, edge: Edge) -> Reply:
    """Classifies one input with 1 to 1024 tasks.

    `["*"]` is the live version of every task that is available and takes such an input.
    """
    text = text_of(body.text, body.text_pair)
    refs = None if body.tasks == ["*"] else _of_tasks(body.tasks)
    wanted = Wanted(refs, pair=not isinstance(text, str), asked=body.asked, partial=bool(body.partial))
    if body.partial and refs is None:
        raise InvalidInput("partial is for tasks that are named; * is those that are there")
    show = partial(_task_result, wanted.asked, AnswerBytes())
    return _results(await edge.answerer.answer(context, wanted, [text], show))


def _refs(items: Sequence[Item], default: str | None) -> list[str]:
    refs = [item.task or default for item in items]
    if None in refs:
        raise BrokenRules(*((("items", at, "task"), "is required") for at, ref in enumerate(refs) if ref is None))
    return _of_tasks([ref for ref in refs if ref is not None])


def _of_tasks(refs: list[str]) -> list[str]:
    """Returns the references; raises InvalidInput for one to a base, which answers at the routes of vectors alone."""
    for ref in refs:
        if ref.startswith(BARE):
            parse_ref(ref)
    return refs


def _result(top_k: int | None, size: AnswerBytes, _: int, answered: Answered) -> tuple[Facts, bytes]:
    facts, reading, explanation = answered
    if not isinstance(reading, Reading):
        raise reading
    prediction, tokens, truncated, windows = reading
    # Spans and explanations stay the encoder's: they have the fields of the contract's.
    fields, explanation = fields_of(prediction, top_k), cast(Any, explanation)
    result = _encode(Result(**fields, tokens=tokens, truncated=truncated, windows=windows, explanation=explanation))
    # As `add` does, without a call for each text.
    size.left -= len(result)
    if size.left < 0:
        size.require(0)
    return facts, result


def _task_result(options: Asked, size: AnswerBytes, _: int, outcome: Answered | Unanswered) -> bytes:
    if isinstance(outcome, Unanswered):
        result = TaskResult(task=outcome.ref, error=_error(outcome.error))
    elif isinstance(outcome.reading, Reading):
        result = TaskResult(**_fields(outcome.reading, options), **_version(outcome.facts))
    else:
        result = TaskResult(**_version(outcome.facts), error=_error(outcome.reading))
    return size.add(_encode(result))


def _error(error: OneBertError) -> ResultError:
    return ResultError(error.code, error.title, error.detail)


def _version(facts: Facts) -> dict[str, Any]:
    return {"task": facts.task, "version": facts.version, "digest": facts.digest}


def _fields(reading: Reading, options: Asked) -> dict[str, Any]:
    # Spans stay the encoder's: they have the fields of the contract's.
    fields = fields_of(reading.answer, options.top_k)
    return {**fields, "tokens": reading.tokens, "truncated": reading.truncated, "windows": reading.windows}


def _head(facts: Facts) -> bytes:
    """The beginning of a reply by one version, made once for each."""
    head: bytes = _encode({**_version(facts), "results": []}).removesuffix(b"]}")
    facts.prepared["head"] = head
    return head


def _results(results: Iterable[bytes]) -> Reply:
    return Reply(b'{"results":[%b]}' % b",".join(results))


def _route(path: str, body: type[QuestionBody], answer: Callable[..., Awaitable[Reply]], response: Any) -> DataRoute:
    return DataRoute(
        OwnFormat(path, compile_path(path)[0], Decoder(body), answer),
        [body],
        name=answer.__name__,
        description=cleandoc(answer.__doc__ or ""),
        response_model=response,
        responses=PROBLEMS,
        tags=["classify"],
    )


ROUTES = (
    _route("/v1/tasks/{task}/classify", ClassifyRequest, classify, ClassifyResponse),
    _route("/v1/classify", ClassifyItemsRequest, classify_items, ClassifyItemsResponse),
    _route("/v1/fanout", FanoutRequest, fanout, ClassifyItemsResponse),
)
