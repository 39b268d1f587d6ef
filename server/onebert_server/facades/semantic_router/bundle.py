"""`POST /v1/bundle`: several requests in one, each with the status that it would have had alone."""

import asyncio
from dataclasses import replace
from typing import Any

from fastapi.exceptions import RequestValidationError

from onebert_server.facades.facade import Call, json_reply
from onebert_server.facades.semantic_router.bodies import Bundle, BundleTask, Classify
from onebert_server.facades.semantic_router.classify import classified, sooner
from onebert_server.facades.semantic_router.heads import MAX_TASKS
from onebert_server.facades.semantic_router.words import worded
from onebert_server.http.lean.formats import Reply
from onebert_server.http.problems import fault_of
from onebert_server.http.strict import validated
from onebert_store.errors import OneBertError, TooLarge, UnsupportedTask


async def bundle(call: Call[Bundle]) -> Reply:
    """One result for each task, in their order."""
    tasks = call.body.tasks
    if len(tasks) > MAX_TASKS:
        raise TooLarge(f"a bundle has at most {MAX_TASKS} tasks")
    call = replace(call, context=sooner(call.context, call.body.options.deadline_ms))
    results = await asyncio.gather(*(_result(call, task) for task in tasks), return_exceptions=True)
    for one in results:
        if isinstance(one, BaseException):
            raise one
    return json_reply({"results": results})


async def _result(call: Call[Any], task: BundleTask) -> dict[str, Any]:
    try:
        if task.classify is None:
            raise UnsupportedTask("of the surfaces that a bundle may ask there is only classify")
        answer = await classified(replace(call, body=validated(Classify, task.classify)))
    except (OneBertError, RequestValidationError) as error:
        status, words = worded(fault_of(error, call.context.request_id))
        return {"id": task.id, "status": status, **words}
    return {"id": task.id, "status": 200, "classify": answer}
