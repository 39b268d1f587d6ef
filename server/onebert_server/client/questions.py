"""Client methods that classify any number of texts: splits them into requests that one version answers."""

import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, overload

from msgspec.structs import asdict

from onebert_server.client.exchange import SentQuestions, json_bytes, quoted
from onebert_server.contract.answers import ClassifyItemsResponse, ClassifyResponse, Result, TaskResult
from onebert_server.contract.declared import as_dict
from onebert_server.limits import BODY_BYTES, MAX_EXPLAINED, MAX_ITEMS, parts_of
from onebert_store.errors import InvalidInput, OneBertError, TooLarge

T = TypeVar("T")

Input: TypeAlias = str | tuple[str, str]
"""A text, or a pair of texts; for a span task (question, context)."""

Item: TypeAlias = tuple[str, Input]
"""A task reference and an input for it."""


class WindowOptions(TypedDict, total=False):
    """How to read long texts; by default the task's `max_length`, overlap 0, and the task type's reduction."""

    tokens: int
    overlap: int
    reduction: Literal["max", "mean", "union"]


class Options(TypedDict, total=False):
    """Options of a request that override the task's settings; `energy` adds that field to the answers."""

    activation: Literal["softmax", "sigmoid", "none"]
    threshold: float
    window: WindowOptions
    energy: bool


class OneOptions(Options, total=False):
    """Options for one task; `explain` adds an Explanation to each answer."""

    explain: bool


class ManyOptions(Options, total=False):
    """Options for several tasks; with `partial` an answer that fails or is late has an `error` instead."""

    partial: bool


# The location of an input in a server's error message.
PLACE = re.compile(r"\bbody\.(?:inputs|items)\.(\d{1,3})(?:\.\w+)?")
# Bytes of a request body in addition to its inputs.
FRAME_BYTES = 256


class QuestionCalls(SentQuestions):
    """The methods that classify."""

    # A text or a pair is also a Sequence[Input] to the type checker, so the overloads overlap. The first match wins, as
    # it does at run time.
    @overload
    async def classify(  # type: ignore[overload-overlap]
        self, ref: str, inputs: Input, top_k: int | None = None, **options: Unpack[OneOptions]
    ) -> TaskResult: ...
    @overload
    async def classify(
        self, ref: str, inputs: Sequence[Input], top_k: int | None = None, **options: Unpack[OneOptions]
    ) -> list[TaskResult]: ...
    async def classify(
        self, ref: str, inputs: Input | Sequence[Input], top_k: int | None = None, **options: Unpack[OneOptions]
    ) -> Any:
        """Classifies one or more inputs with one version of a task; returns one result, or a list for a sequence.

        Args:
            ref: `name`, `name@3` or `name@alias`.
            inputs: one input or a sequence; a tuple is a pair of texts, for a span task (question, context).
            top_k: number of scores, best first (None: all); for a span task number of answers (None: one, at most 20).
        """

        async def ask(part: Sequence[Item]) -> list[TaskResult]:
            body = {"inputs": [item_of(item) for _, item in part], "top_k": top_k, **options}
            response = await self._decoded(ClassifyResponse, "POST", f"/v1/tasks/{quoted(part[0][0])}/classify", body)
            by: dict[str, Any] = {"task": response.task, "version": response.version, "digest": response.digest}
            return [TaskResult(**by, **asdict(result)) for result in response.results]

        if isinstance(inputs, str | tuple):
            return (await _in_parts([(ref, inputs)], ask))[0]
        quoted(ref)
        limit = MAX_EXPLAINED if options.get("explain") else MAX_ITEMS
        return await _in_parts([(ref, text) for text in inputs], ask, limit)

    async def classify_items(
        self, items: Sequence[Item], top_k: int | None = None, **options: Unpack[ManyOptions]
    ) -> list[TaskResult]:
        """Classifies (reference, input) items of any mix of tasks; returns the results in order."""

        async def ask(part: Sequence[Item]) -> list[TaskResult]:
            body = {"items": [{"task": ref, **item_of(item)} for ref, item in part], "top_k": top_k, **options}
            return (await self._decoded(ClassifyItemsResponse, "POST", "/v1/classify", body)).results

        return await _in_parts(items, ask)

    async def fanout(
        self, text: Input, tasks: Sequence[str] = ("*",), top_k: int | None = None, **options: Unpack[ManyOptions]
    ) -> list[TaskResult]:
        """Classifies one input with up to 1024 tasks; `*` is the live version of every task that accepts the input."""
        body = {**item_of(text), "tasks": list(tasks), "top_k": top_k, **options}
        return (await self._decoded(ClassifyItemsResponse, "POST", "/v1/fanout", body)).results


Ask: TypeAlias = Callable[[Sequence[Item]], Awaitable[list[TaskResult]]]


async def _in_parts(items: Sequence[Item], ask: Ask, limit: int = MAX_ITEMS) -> list[TaskResult]:
    """Sends the items in parts; a reference resolves to one version for all. Errors number inputs over all parts."""
    waiting = deque(cut(items, limit))
    results: list[TaskResult] = []
    resolved: dict[str, str] = {}
    while waiting:
        part = waiting.popleft()
        try:
            answers = await ask([(resolved.get(ref, ref), item) for ref, item in part])
        except TooLarge:
            # The server may have a lower body limit than the default, or the answers are too large.
            if len(part) == 1:
                raise
            half = len(part) // 2
            waiting.extendleft((part[half:], part[:half]))
            continue
        except OneBertError as error:
            error.detail = _renumbered(error.detail, len(results))
            error.args = (error.detail,)
            raise
        results += answers
        both = zip(part, answers, strict=True)
        resolved |= {ref: f"{result.task}@{result.version}" for (ref, _), result in both if result.version is not None}
    return results


def _renumbered(detail: str, start: int) -> str:
    """Replaces `body.inputs.3.text` in a part that began with input 64 by `input 67`."""
    return PLACE.sub(lambda place: f"input {start + int(place[1])}", detail)


def cut(items: Sequence[Item], limit: int = MAX_ITEMS) -> list[list[Item]]:
    """Splits items into parts of at most `limit` items and `BODY_BYTES` bytes of JSON."""
    sizes = [len(json_bytes({"task": task, **item_of(text)})) + 2 for task, text in items]
    return [[*items[part.start : part.stop]] for part in parts_of(sizes, BODY_BYTES - FRAME_BYTES, limit)]


def fields_of_result(result: Result, item: Input) -> dict[str, Any]:
    """The fields of a result; words, entities and explained words have their `text`.

    Offsets count code points, which some programs do not.
    """
    fields, texts = as_dict(result), item_of(item)
    last = [*texts][-1]
    explained = fields.get("explanation", {}).get("words", ())
    for span in (*fields.get("words", ()), *fields.get("entities", ()), *explained):
        span["text"] = texts[span.get("field", last)][span["start"] : span["end"]]
    return fields


def item_of(item: Input) -> dict[str, Any]:
    """An input as a request's body has it; raises InvalidInput."""
    if isinstance(item, tuple) and len(item) == 2:
        return {"text": item[0], "text_pair": item[1]}
    if not isinstance(item, str):
        raise InvalidInput("an input is a text, or a tuple of two texts")
    return {"text": item}
