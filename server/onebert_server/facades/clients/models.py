"""Lists tasks as models (`/v1/models`); each kind of client reads its own fields of the list."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from onebert_server.facades.facade import JsonParts, ModelFields, ReadRequest, json_reply
from onebert_server.facades.plugged import plugged_in
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


async def models(request: ReadRequest) -> Reply:
    """Every task that has a live version, as several kinds of clients list models; where the path names one, it."""
    fields = [facade.model_fields for facade in plugged_in() if facade.model_fields is not None]
    try:
        versions = {request.task(): request.resolved()} if PREFIXED in request.parameters else await _live(request)
        # Check the size before any manifest is read, since clients cannot page this list.
        plain = await request.read(lambda: _listed(request, versions, fields, _card))
    except TooLarge:
        raise TooLarge(
            "there are more tasks than one answer has room for; GET /v1/tasks gives them page by page"
        ) from None
    unknown = [version for version in versions.values() if version.known_facts is None]
    # With thousands of unknown tasks, or labels over the size limit, return only the fields that all clients read.
    if not fields or len(unknown) > _PAGE:
        return plain
    for start in range(0, len(unknown), _TOGETHER):
        # In batches, so that changes can interleave and the request can be cancelled.
        await request.read(partial(request.runtime.catalog.manifests.learn_all, unknown[start : start + _TOGETHER]))

    def full_card(ref: str, version: "Version") -> Mapping[str, Any]:
        card = _card(ref, version)
        for extension in fields:
            card |= extension.of_model(version)
        return card

    with suppress(TooLarge):
        return await request.read(lambda: _listed(request, versions, fields, full_card))
    return plain


async def model(request: ReadRequest) -> Reply:
    """One task or version: what OpenAI's clients retrieve, and whether it is ready, as KServe's ask."""
    ref, version = request.task(), request.resolved()
    if version.state.value == "unavailable":
        raise VersionUnavailable(f"{ref} is registered, and could not be loaded: {version.reason}")
    return json_reply({**_card(ref, version), "name": ref, "ready": True})


def _listed(
    request: ReadRequest,
    versions: Mapping[str, "Version"],
    fields: Sequence[ModelFields],
    card: Callable[[str, "Version"], Mapping[str, Any]],
) -> Reply:
    parts = JsonParts()
    shown: dict[str, Any] = {"object": "list"}
    for addition in fields:
        shown |= addition.of_list(request)
    shown["data"] = [parts.encoded(card(*pair)) for pair in versions.items()]
    return json_reply(shown)


def _card(ref: str, version: "Version") -> dict[str, Any]:
    entry = version.entry
    return {
        "id": ref,
        "object": "model",
        "created": int(entry.created_at.timestamp()),
        "owned_by": "onebert",
        "root": f"{entry.task}@{entry.version}",
    }


async def _live(request: ReadRequest) -> dict[str, "Version"]:
    live: dict[str, Version] = {}
    after = ""
    while page := await request.read(partial(request.view.tasks, after, _PAGE, "")):
        live |= {entry.name: entry.version(entry.aliases[LIVE].version) for entry in page if LIVE in entry.aliases}
        JsonParts().require(len(live) * _CARD_BYTES)
        after = page[-1].name
    return live
