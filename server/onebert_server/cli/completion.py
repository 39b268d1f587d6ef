"""What the shell completes where a command takes a task: names and references, as the server knows them."""

import os
from typing import Any

import typer

URL = "http://127.0.0.1:8000"

# Seconds that a key press may wait, and how many names a shell shows at most.
PATIENCE = 0.5
MOST = 100


def task_names(context: typer.Context, incomplete: str) -> list[str]:
    """Tasks whose names begin with what is typed; nothing where the server does not answer at once."""
    page = _ask(context, "/v1/tasks", prefix=incomplete, limit=MOST)
    return [task["name"] for task in page.get("tasks", ())]


def references(context: typer.Context, incomplete: str) -> list[str]:
    """The same, and behind an `@` the aliases and versions of the task."""
    task, at, pointer = incomplete.partition("@")
    if not at:
        return task_names(context, incomplete)
    listed = _ask(context, "/v1/tasks", prefix=task).get("tasks", ())
    found: dict[str, Any] = next((one for one in listed if one["name"] == task), {})
    pointers = [*found.get("aliases", ()), *map(str, found.get("versions", ()))]
    return [f"{task}@{one}" for one in pointers if one.startswith(pointer)]


def _ask(context: typer.Context, path: str, **query: Any) -> dict[str, Any]:
    import httpx  # noqa: PLC0415 - only where something is completed

    url = context.params.get("url") or os.environ.get("ONEBERT_URL") or URL
    key = context.params.get("api_key") or os.environ.get("ONEBERT_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.get(f"{url}{path}", params=query, headers=headers, timeout=PATIENCE)
        found = answer.json() if answer.is_success else {}
    # Whatever it is, half a command line is no place to say so.
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
