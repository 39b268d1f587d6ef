"""`POST /v1/bundle`: several requests in one, each with its own status."""

import asyncio
from dataclasses import replace
from typing import Any

from onebert_semantic_router.bodies import Bundle, BundleOptions, BundleTask, Classify
from onebert_semantic_router.classify import classified
from onebert_semantic_router.heads import MAX_TASKS
from onebert_server.answering.sizes import AnswerTooLarge
from onebert_server.facades.clients.health import coded
from onebert_server.facades.facade import Call, JsonParts, json_reply
from onebert_server.http.decoding import converted
from onebert_server.http.formats import Reply
from onebert_server.http.problems import fault_of
from onebert_server.limits import MAX_FANOUT
from onebert_store.errors import OneBertError, TooLarge, UnsupportedTask


async def bundle(call: Call[Bundle]) -> Reply:
    """Returns one result per task, in order."""
    tasks = call.body.tasks
    if len(tasks) > MAX_TASKS:
        raise TooLarge(f"a bundle has at most {MAX_TASKS} tasks")
    if sum(map(_inputs, tasks)) > MAX_FANOUT:
        raise TooLarge(f"the tasks of a bundle have at most {MAX_FANOUT} inputs together")
    options = call.body.options or BundleOptions()
    call = replace(call, context=call.context.within(options.deadline_ms))
    parts = JsonParts()

    try:
        # A reply that is too large in total cancels the remaining tasks.
        async with asyncio.TaskGroup() as group:
            results = [group.create_task(_result(call, task, parts)) for task in tasks]
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return json_reply({"results": [task.result() for task in results]})


def _inputs(task: BundleTask) -> int:
    inputs = (task.classify or {}).get("input")
    return len(inputs) if isinstance(inputs, list) else 1


async def _result(call: Call[Any], task: BundleTask, parts: JsonParts) -> dict[str, Any]:
    try:
        if task.classify is None:
            raise UnsupportedTask("classify is the only surface of a bundle")
        answer = await classified(replace(call, body=converted(Classify, task.classify)), parts)
    except AnswerTooLarge:
        # The total size is over the limit, so this is no error of the single task.
        raise
    except OneBertError as error:
        status, words = coded(fault_of(error, call.context.request_id))
        return {"id": task.id, "status": status, **words}
    return {"id": task.id, "status": 200, "classify": answer}
