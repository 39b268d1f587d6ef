"""Tasks as clients list models: `/v1/models`, of which several kinds of clients read each their own part."""

from typing import TYPE_CHECKING, Any

from onebert_server.facades.facade import Look, json_reply
from onebert_server.http.lean.formats import Reply
from onebert_store.errors import VersionUnavailable
from onebert_store.registry.names import LIVE, parse_ref

if TYPE_CHECKING:
    # A front end never looks at what there is.
    from onebert_server.versions.version import TaskEntry, Version
    from onebert_server.versions.view import View

# Tasks that are copied at once.
_PAGE = 1000
# The path's parameter in front of a façade's path.
PREFIXED = "task"


async def models(look: Look) -> Reply:
    """Every task that has a live version, as OpenAI's and vLLM's clients list models; where the path names one, it."""
    if PREFIXED in look.parameters:
        ref = look.task()
        return json_reply(_list([_card(ref, version_of(look.view, ref))]))
    return await look.read(lambda: json_reply(_list(list(map(model_card, _live(look.view))))))


async def model(look: Look) -> Reply:
    """One task or version: what OpenAI's clients retrieve, and whether it is ready, as KServe's ask.

    Raises:
        VersionUnavailable: it cannot be loaded.
    """
    ref = look.task()
    found = version_of(look.view, ref)
    if found.state.value == "unavailable":
        raise VersionUnavailable(f"{ref} is registered, and could not be loaded: {found.reason}")
    return json_reply({**_card(ref, found), "name": ref, "ready": True})


def model_card(entry: "TaskEntry") -> dict[str, Any]:
    """One model of the list: a task with its live version."""
    return _card(entry.name, entry.version(entry.aliases[LIVE].version))


def version_of(view: "View", ref: str) -> "Version":
    """The version that a reference means now.

    Raises:
        InvalidInput: it is no reference.
        TaskNotFound, VersionNotFound, AliasNotFound: there is none, or not for who asks.
    """
    target = parse_ref(ref)
    number = target.version
    if number is None:
        number = view.alias(target.task, target.alias or LIVE).version
    return view.version(target.task, number)


def _list(cards: list[dict[str, Any]]) -> dict[str, Any]:
    return {"object": "list", "data": cards}


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
