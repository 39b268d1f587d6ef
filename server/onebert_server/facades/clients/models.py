"""Lists tasks as models (`/v1/models`); each kind of client reads its own fields of the list."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from onebert_server.facades.facade import JsonParts, Look, ModelFields, json_reply
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


async def models(look: Look) -> Reply:
    """Every task that has a live version, as several kinds of clients list models; where the path names one, it."""
    more = [facade.model_fields for facade in plugged_in() if facade.model_fields is not None]
    try:
        versions = {look.task(): look.resolved()} if PREFIXED in look.parameters else await _live(look)
        # Check the size before any manifest is read, since clients cannot page this list.
        plain = await look.read(lambda: _listed(look, versions, more, _card))
    except TooLarge:
        raise TooLarge(
            "there are more tasks than one answer has room for; GET /v1/tasks gives them page by page"
        ) from None
    unknown = [version for version in versions.values() if version.known_facts is None]
    # With thousands of unknown tasks, or labels over the size limit, return only the fields that all clients read.
    if not more or len(unknown) > _PAGE:
        return plain
    for start in range(0, len(unknown), _TOGETHER):
        # In batches, so that changes can interleave and the request can be cancelled.
        await look.read(partial(look.runtime.catalog.learn_all, unknown[start : start + _TOGETHER]))

    def full_card(ref: str, version: "Version") -> Mapping[str, Any]:
        card = _card(ref, version)
        for one in more:
            card |= one.of_model(version)
        return card

    with suppress(TooLarge):
        return await look.read(lambda: _listed(look, versions, more, full_card))
    return plain


async def model(look: Look) -> Reply:
    """One task or version: what OpenAI's clients retrieve, and whether it is ready, as KServe's ask."""
    ref, found = look.task(), look.resolved()
    if found.state.value == "unavailable":
        raise VersionUnavailable(f"{ref} is registered, and could not be loaded: {found.reason}")
    return json_reply({**_card(ref, found), "name": ref, "ready": True})


def _listed(
    look: Look,
    versions: Mapping[str, "Version"],
    more: Sequence[ModelFields],
    card: Callable[[str, "Version"], Mapping[str, Any]],
) -> Reply:
    parts = JsonParts()
    shown: dict[str, Any] = {"object": "list"}
    for one in more:
        shown |= one.of_list(look)
    shown["data"] = [parts.encoded(card(*one)) for one in versions.items()]
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


async def _live(look: Look) -> dict[str, "Version"]:
    found: dict[str, Version] = {}
    after = ""
    while page := await look.read(partial(look.view.tasks, after, _PAGE, "")):
        found |= {one.name: one.version(one.aliases[LIVE].version) for one in page if LIVE in one.aliases}
        JsonParts().require(len(found) * _CARD_BYTES)
        after = page[-1].name
    return found
