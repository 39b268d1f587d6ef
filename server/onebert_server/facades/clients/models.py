"""Lists tasks as models (`/v1/models`); each kind of client reads its own fields of the list."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from onebert_server.facades.clients.semantic_router.heads import API_VERSION, FAMILY, MAX_TASKS, described
from onebert_server.facades.facade import JsonParts, Look, json_reply
from onebert_server.http.formats import Reply
from onebert_store.errors import TooLarge, VersionUnavailable
from onebert_store.registry.names import LIVE

if TYPE_CHECKING:
    # Front ends never serve listings.
    from onebert_server.versions.version import Version

# Tasks per page of the registry; the most manifests to read for one list; and how many of them to read at once.
_PAGE, _TOGETHER = 1000, 64
# Minimum JSON bytes of a task.
_CARD_BYTES = 64
# The path parameter of the task prefix.
PREFIXED = "task"


async def models(look: Look) -> Reply:
    """Every task that has a live version, as several kinds of clients list models; where the path names one, it."""
    try:
        versions = {look.task(): look.resolved()} if PREFIXED in look.parameters else await _live(look)
        # Check the size before any manifest is read, since clients cannot page this list.
        plain = await look.read(lambda: _listed(look, versions, _card))
    except TooLarge:
        raise TooLarge(
            "there are more tasks than one answer has room for; GET /v1/tasks gives them page by page"
        ) from None
    unknown = [version for version in versions.values() if version.known_facts is None]
    # With thousands of unknown tasks, or labels over the size limit, return only the fields that all clients read.
    if len(unknown) > _PAGE:
        return plain
    for start in range(0, len(unknown), _TOGETHER):
        # In batches, so that changes can interleave and the request can be cancelled.
        await look.read(partial(look.runtime.catalog.learn_all, unknown[start : start + _TOGETHER]))
    with suppress(TooLarge):
        return await look.read(lambda: _listed(look, versions, _described_card))
    return plain


async def model(look: Look) -> Reply:
    """One task or version: what OpenAI's clients retrieve, and whether it is ready, as KServe's ask."""
    ref, found = look.task(), look.resolved()
    if found.state.value == "unavailable":
        raise VersionUnavailable(f"{ref} is registered, and could not be loaded: {found.reason}")
    return json_reply({**_card(ref, found), "name": ref, "ready": True})


def _listed(
    look: Look, versions: Mapping[str, "Version"], card: Callable[[str, "Version"], Mapping[str, Any]]
) -> Reply:
    parts = JsonParts()
    limits = {"max_bundle_tasks": MAX_TASKS, "max_request_bytes": look.runtime.settings.max_body_bytes}
    data = [parts.encoded(card(*one)) for one in versions.items()]
    return json_reply({"object": "list", "api_version": API_VERSION, "limits": limits, "data": data})


def _described_card(ref: str, version: "Version") -> dict[str, Any]:
    """All fields, with the Semantic Router's; a version that cannot be loaded is not ready."""
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


async def _live(look: Look) -> dict[str, "Version"]:
    found: dict[str, Version] = {}
    after = ""
    while page := await look.read(partial(look.view.tasks, after, _PAGE, "")):
        found |= {one.name: one.version(one.aliases[LIVE].version) for one in page if LIVE in one.aliases}
        JsonParts().require(len(found) * _CARD_BYTES)
        after = page[-1].name
    return found
