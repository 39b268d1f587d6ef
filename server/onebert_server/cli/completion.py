"""Shell completion of task names and references, from the server."""

import os
from typing import Any

import typer

from onebert_server.loopback import direct_mounts
from onebert_store.command.options import URL

# Seconds that a key press may wait, and the most names shown.
TIMEOUT = 0.5
MOST = 100


def task_names(context: typer.Context, incomplete: str) -> list[str]:
    """Tasks with this prefix; empty unless the server answers within `TIMEOUT`."""
    page = _ask(context, "/v1/tasks", prefix=incomplete, limit=MOST)
    return [task["name"] for task in page.get("tasks", ())]


def references(context: typer.Context, incomplete: str) -> list[str]:
    """Task names; behind an `@`, the task's aliases and versions."""
    task, at, pointer = incomplete.partition("@")
    if not at:
        return task_names(context, incomplete)
    listed = _ask(context, "/v1/tasks", prefix=task).get("tasks", ())
    facts: dict[str, Any] = next((facts_ for facts_ in listed if facts_["name"] == task), {})
    pointers = [*facts.get("aliases", ()), *map(str, facts.get("versions", ()))]
    return [f"{task}@{pointer_}" for pointer_ in pointers if pointer_.startswith(pointer)]


def _ask(context: typer.Context, path: str, **query: Any) -> dict[str, Any]:
    import httpx  # noqa: PLC0415 - only needed for completion

    url = context.params.get("url") or os.environ.get("ONEBERT_URL") or URL
    key = context.params.get("api_key") or os.environ.get("ONEBERT_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx.Client(headers=headers, timeout=TIMEOUT, mounts=direct_mounts(url)) as client:
            answer = client.get(f"{url}{path}", params=query)
        body = answer.json() if answer.is_success else {}
    # An error message would garble the half-typed command line.
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}
