"""Lists tasks, and bases that make vectors, as models (`/v1/models`); clients read their own fields of the list."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from onebert_server.answering.gateway import BARE
from onebert_server.facades.facade import JsonParts, ModelFields, ReadRequest, json_reply
from onebert_server.facades.plugged import plugged_in
from onebert_server.http.formats import Reply
from onebert_server.versions.facts import Facts
from onebert_store.errors import Forbidden, InvalidInput, TooLarge, VersionUnavailable
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
    """Every live version and base of vectors, as several kinds of clients list models; where the path names one, it."""
    fields = [facade.model_fields for facade in plugged_in() if facade.model_fields is not None]
    versions: dict[str, Version] = {}
    bases: Sequence[Mapping[str, Any]] = ()
    try:
        if PREFIXED not in request.parameters:
            versions, bases = await _live(request), await _bases(request)
        elif (base := await request.base()) is not None:
            bases = [_base_card(base)]
        else:
            versions = {request.task(): request.resolved()}
        # Check the size before any manifest is read, since clients cannot page this list.
        plain = await request.read(lambda: _listed(request, versions, bases, fields, _card))
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
        return await request.read(lambda: _listed(request, versions, bases, fields, full_card))
    return plain


async def model(request: ReadRequest) -> Reply:
    """One task, version or base: what OpenAI's clients retrieve, and whether it is ready, as KServe's ask."""
    if (base := await request.base()) is not None:
        return json_reply({**_base_card(base), "name": base.task.removeprefix(BARE), "ready": True})
    ref, version = request.task(), request.resolved()
    if version.state.value == "unavailable":
        raise VersionUnavailable(f"{ref} is registered, and could not be loaded: {version.reason}")
    return json_reply({**_card(ref, version), "name": ref, "ready": True})


def _listed(
    request: ReadRequest,
    versions: Mapping[str, "Version"],
    bases: Sequence[Mapping[str, Any]],
    fields: Sequence[ModelFields],
    card: Callable[[str, "Version"], Mapping[str, Any]],
) -> Reply:
    parts = JsonParts()
    shown: dict[str, Any] = {"object": "list"}
    for addition in fields:
        shown |= addition.of_list(request)
    shown["data"] = [parts.encoded(card(*pair)) for pair in versions.items()] + [*map(parts.encoded, bases)]
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


def _base_card(facts: Facts) -> dict[str, Any]:
    """Nobody made a base here at any time, so it has none."""
    name = facts.task.removeprefix(BARE)
    return {"id": name, "object": "model", "created": 0, "owned_by": "onebert", "root": name}


async def _bases(request: ReadRequest) -> list[Mapping[str, Any]]:
    bases = list[Mapping[str, Any]]()
    for host in request.runtime.hosts:
        # One without vectors answers nothing of its own, and whoever may not classify has no use of it.
        with suppress(InvalidInput, Forbidden):
            bases += map(_base_card, await request.runtime.answerer.live(request.context, [BARE + host.base.spec.name]))
    return bases


async def _live(request: ReadRequest) -> dict[str, "Version"]:
    live: dict[str, Version] = {}
    after = ""
    while page := await request.read(partial(request.view.tasks, after, _PAGE, "")):
        live |= {entry.name: entry.version(entry.aliases[LIVE].version) for entry in page if LIVE in entry.aliases}
        JsonParts().require(len(live) * _CARD_BYTES)
        after = page[-1].name
    return live
