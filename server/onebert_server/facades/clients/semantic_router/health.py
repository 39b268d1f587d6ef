"""`GET /health` and `/health/live`: whether this server, or one task, is ready."""

from onebert_server.facades.clients.semantic_router.heads import API_VERSION
from onebert_server.facades.facade import Look, json_reply
from onebert_server.http.formats import Reply
from onebert_store.errors import ShuttingDown, VersionUnavailable


async def health(look: Look) -> Reply:
    """Ready; where the path names a task, that task, too."""
    look.runtime.check_health()
    if look.runtime.draining or not look.runtime.engine.alive:
        raise ShuttingDown("the server is stopping")
    model = None
    # From the path only: without a task prefix the path needs no key.
    if "task" in look.parameters:
        version, model = await look.version(), look.task()
        if version.state.value == "unavailable":
            raise VersionUnavailable(f"{model} is registered, and could not be loaded: {version.reason}")
    return json_reply({"api_version": API_VERSION, "status": "ready", "reason": None, "model": model})


async def live(look: Look) -> Reply:
    """The process is alive; a task that the path names is one that there is."""
    if "task" in look.parameters:
        await look.version()
    return json_reply({"status": "alive", "api_version": API_VERSION})
