"""Classifies many items: several requests at once, and an error for each item that the server refuses."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain

from onebert_server.client.async_client import AsyncClient
from onebert_server.client.questions import Item, cut
from onebert_server.contract.answers import ResultError, TaskResult
from onebert_store.errors import DeadlineExceeded, InvalidInput, OneBertError, OverShare, QueueFull, TooLarge

# Requests under way: the server computes some while others are written and read.
AT_ONCE = 4
# Items with these errors are sent again, together, and the client repeats that request while the server is busy.
_BUSY = {kind.code for kind in (DeadlineExceeded, OverShare, QueueFull)}


def classify_many(
    url: str,
    api_key: str | None,
    items: Sequence[Item],
    top_k: int | None = None,
    on_answered: Callable[[int], None] = lambda count: None,
) -> list[TaskResult]:
    """The results in the order of the items; one that the server refuses has an `error` instead.

    `on_answered` gets the number of items of each request that was answered. Raises OneBertError for a refusal that is
    not about an item, such as a wrong key.
    """

    async def classify_all() -> list[TaskResult]:
        free = asyncio.Semaphore(AT_ONCE)
        async with AsyncClient(url, api_key) as client:

            async def classify_part(part: Sequence[Item]) -> list[TaskResult]:
                async with free:
                    results = await _classify(client, part, top_k)
                on_answered(len(part))
                return results

            return [*chain.from_iterable(await asyncio.gather(*map(classify_part, cut(items))))]

    return asyncio.run(classify_all())


def error_of(error: ResultError) -> OneBertError:
    """The typed error of a result that has one."""
    return OneBertError.of_code.get(error.code, OneBertError)(error.detail)


async def _classify(client: AsyncClient, items: Sequence[Item], top_k: int | None) -> list[TaskResult]:
    """Halves a request that is refused for the text of an item, until only that item is without an answer."""
    try:
        results = await client.classify_items(items, top_k, partial=True)
    except (InvalidInput, TooLarge) as error:
        if len(items) == 1:
            detail = error.detail.removeprefix("input 0: ")
            return [TaskResult(task=items[0][0], error=ResultError(error.code, error.title, detail))]
        half = len(items) // 2
        return [*await _classify(client, items[:half], top_k), *await _classify(client, items[half:], top_k)]
    busy = [at for at, result in enumerate(results) if result.error is not None and result.error.code in _BUSY]
    if busy:
        again = await client.classify_items([items[at] for at in busy], top_k)
        for at, result in zip(busy, again, strict=True):
            results[at] = result
    return results
