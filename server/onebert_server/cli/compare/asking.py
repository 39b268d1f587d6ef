"""Asks a server about many items: several requests at once, each of any mix of tasks and versions."""

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from onebert_server.client import AsyncClient, ResultError, TaskResult
from onebert_server.limits import MAX_ITEMS
from onebert_store.command import console
from onebert_store.errors import DeadlineExceeded, InvalidInput, OneBertError, OverShare, QueueFull, TooLarge

if TYPE_CHECKING:
    from onebert_server.client.questions import Item

# Requests under way: the server computes some while others are written and read.
AT_ONCE = 4
# Items with these errors are asked again, together, and the client repeats that request while the server is busy.
_BUSY = {kind.code for kind in (DeadlineExceeded, OverShare, QueueFull)}


def ask(url: str, api_key: str | None, items: "Sequence[Item]") -> list[TaskResult]:
    """The answers in the order of the items; one that the server refuses has an `error` instead.

    Raises OneBertError for a refusal that is not about an item, such as a wrong key.
    """
    return asyncio.run(_ask(url, api_key, items))


def require_answer(result: TaskResult) -> TaskResult:
    """The result; raises its error if it has one."""
    if result.error is not None:
        raise OneBertError.of_code.get(result.error.code, OneBertError)(result.error.detail)
    return result


async def _ask(url: str, api_key: str | None, items: "Sequence[Item]") -> list[TaskResult]:
    free = asyncio.Semaphore(AT_ONCE)
    with console.progress() as bar:
        done = bar.add_task("answering", total=len(items))
        async with AsyncClient(url, api_key) as client:

            async def answers(part: "Sequence[Item]") -> list[TaskResult]:
                async with free:
                    found = await _answers(client, part)
                bar.advance(done, len(part))
                return found

            parts = (items[start : start + MAX_ITEMS] for start in range(0, len(items), MAX_ITEMS))
            return [*chain.from_iterable(await asyncio.gather(*map(answers, parts)))]


async def _answers(client: AsyncClient, items: "Sequence[Item]") -> list[TaskResult]:
    """Halves a request that is refused for the text of an item, until only that item is without an answer."""
    try:
        found = await client.classify_items(items, partial=True)
    except (InvalidInput, TooLarge) as error:
        if len(items) == 1:
            detail = error.detail.removeprefix("input 0: ")
            return [TaskResult(task=items[0][0], error=ResultError(error.code, error.title, detail))]
        half = len(items) // 2
        return [*await _answers(client, items[:half]), *await _answers(client, items[half:])]
    busy = [at for at, one in enumerate(found) if one.error is not None and one.error.code in _BUSY]
    if busy:
        again = await client.classify_items([items[at] for at in busy])
        for at, one in zip(busy, again, strict=True):
            found[at] = one
    return found
