"""Tasks as clients list models: `/v1/models`, of which several kinds of clients read each their own part."""

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from onebert_server.facades.clients.semantic_router.heads import API_VERSION, FAMILY, MAX_TASKS, described
from onebert_server.facades.facade import JsonParts, Look, json_reply
from onebert_server.http.lean.formats import Reply
from onebert_store.errors import TooLarge, VersionUnavailable
from onebert_store.registry.names import LIVE

if TYPE_CHECKING:
    # A front end never looks at what there is.
    from onebert_server.versions.version import TaskEntry, Version
    from onebert_server.versions.view import View

# Tasks that are copied at once.
_PAGE = 1000
# The path's parameter in front of a façade's path.
PREFIXED = "task"


async def models(look: Look) -> Reply:
    """Every task that has a live version, as several kinds of clients list models; where the path names one, it.

    Raises:
        TooLarge: there are more tasks than an answer has room for.
    """
    if PREFIXED in look.parameters:
        return await look.read(lambda: _listed(look, {look.task(): look.meant()}))
    return await look.read(
        lambda: _listed(look, {one.name: one.version(one.aliases[LIVE].version) for one in _live(look.view)})
    )


async def model(look: Look) -> Reply:
    """One task or version: what OpenAI's clients retrieve, and whether it is ready, as KServe's ask.

    Raises:
        VersionUnavailable: it cannot be loaded.
    """
    ref, found = look.task(), look.meant()
    if found.state.value == "unavailable":
        raise VersionUnavailable(f"{ref} is registered, and could not be loaded: {found.reason}")
    return json_reply({**_card(ref, found), "name": ref, "ready": True})


def _listed(look: Look, versions: Mapping[str, "Version"]) -> Reply:
    look.runtime.catalog.learn_all(list(versions.values()))
    head = {
        "object": "list",
        "api_version": API_VERSION,
        "limits": {"max_bundle_tasks": MAX_TASKS, "max_request_bytes": look.runtime.settings.max_body_bytes},
    }
    # Clients read this list in one piece. The labels of thousands of tasks may be too much for that; then the list says
    # of each what all clients read, since none of them can do without the list.
    for entry in (_described_card, _card):
        parts = JsonParts()
        with suppress(TooLarge):
            return json_reply({**head, "data": [parts.encoded(entry(*one)) for one in versions.items()]})
    raise TooLarge("there are more tasks than one answer has room for; GET /v1/tasks gives them page by page")


def _described_card(ref: str, version: "Version") -> dict[str, Any]:
    """What all clients read, and what the router's contract says besides; what cannot be loaded is not ready."""
    ready = version.state.value != "unavailable" and version.known_facts is not None
    return {
        **_card(ref, version),
        "family": FAMILY,
        "surfaces": [],
        "heads": [],
        **(described(version.known_facts) if version.known_facts is not None else {}),
        "ready": ready,
        "status": "ready" if ready else "failed",
        "reason": version.reason,
        "golden": {"status": "matched" if version.proved else "pending"},
    }


def _card(ref: str, version: "Version") -> dict[str, Any]:
    entry = version.entry
    return {
        "id": ref,
        "object": "model",
        "created": int(entry.created_at.timestamp()),
        "owned_by": "onebert",
        "root": f"{entry.task}@{entry.version}",
    }


def _live(view: "View") -> "list[TaskEntry]":
    found: list[TaskEntry] = []
    page = view.tasks("", _PAGE, "")
    while page:
        found += [entry for entry in page if LIVE in entry.aliases]
        page = view.tasks(page[-1].name, _PAGE, "")
    return found
