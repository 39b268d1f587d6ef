"""Tasks as clients list models: `/v1/models`, of which several kinds of clients read each their own part."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from onebert_server.facades.clients.semantic_router.heads import API_VERSION, FAMILY, MAX_TASKS, described
from onebert_server.facades.facade import JsonParts, Look, json_reply
from onebert_server.http.lean.formats import Reply
from onebert_store.errors import TooLarge, VersionUnavailable
from onebert_store.registry.names import LIVE

if TYPE_CHECKING:
    # A front end never looks at what there is.
    from onebert_server.versions.version import Version

# Tasks that are copied at once, and manifests that are read for one list; and how many of these at once.
_PAGE, _TOGETHER = 1000, 64
# Bytes of JSON that a task has at least.
_CARD_BYTES = 64
# The path's parameter in front of a façade's path.
PREFIXED = "task"


async def models(look: Look) -> Reply:
    """Every task that has a live version, as several kinds of clients list models; where the path names one, it.

    Raises:
        TooLarge: there are more tasks than an answer has room for.
    """
    try:
        versions = {look.task(): look.resolved()} if PREFIXED in look.parameters else await _live(look)
        # Clients read this list in one piece. It is refused as too large before any manifest is read.
        plain = await look.read(lambda: _listed(look, versions, _card))
    except TooLarge:
        raise TooLarge(
            "there are more tasks than one answer has room for; GET /v1/tasks gives them page by page"
        ) from None
    unknown = [version for version in versions.values() if version.known_facts is None]
    # The manifests or the labels of thousands of tasks may be too much; then the list says of each what all clients
    # read, since none of them can do without the list.
    if len(unknown) > _PAGE:
        return plain
    for start in range(0, len(unknown), _TOGETHER):
        # A part at a time, between which changes have their turns, and the request may be given up.
        await look.read(partial(look.runtime.catalog.learn_all, unknown[start : start + _TOGETHER]))
    with suppress(TooLarge):
        return await look.read(lambda: _listed(look, versions, _described_card))
    return plain


async def model(look: Look) -> Reply:
    """One task or version: what OpenAI's clients retrieve, and whether it is ready, as KServe's ask.

    Raises:
        VersionUnavailable: it cannot be loaded.
    """
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


async def _live(look: Look) -> dict[str, "Version"]:
    """Every live version by the name of its task.

    Raises:
        TooLarge: there are more than an answer has room for; no more were looked at.
    """
    found: dict[str, Version] = {}
    after = ""
    while page := await look.read(partial(look.view.tasks, after, _PAGE, "")):
        found |= {one.name: one.version(one.aliases[LIVE].version) for one in page if LIVE in one.aliases}
        JsonParts().require(len(found) * _CARD_BYTES)
        after = page[-1].name
    return found
