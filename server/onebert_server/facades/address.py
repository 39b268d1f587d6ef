"""Resolves the task of a façade's request from its path, its header or its body."""

from collections.abc import Iterable, Mapping

from onebert_server.access.principal import Principal
from onebert_server.limits import MAX_REF
from onebert_store.errors import InvalidInput
from onebert_store.registry.names import parse_ref

PREFIX = "/t/{task}"
"""Prefix of any façade path, for clients that can only configure a base URL."""

HEADER = "detector-id"
"""The header that names the task, as detector clients send it."""

_HEADER = HEADER.encode()


def task_of(
    principal: Principal,
    parameters: Mapping[str, str],
    headers: Iterable[tuple[bytes, bytes]],
    named: str | None = None,
    field: str = "model",
) -> str:
    """Returns the reference that `named_in` finds; raises InvalidInput if it is none of a task, or none is named."""
    where, ref = named_in(principal, parameters, headers, named, field)
    if not ref:
        raise InvalidInput(
            f"name the task: in the body where it has a place for it, in the header {HEADER}, with {PREFIX} in front"
            " of the path, or as the default task of the key"
        )
    if len(ref) > MAX_REF:
        raise InvalidInput(f"{where}: the name of a task has at most {MAX_REF} characters")
    try:
        parse_ref(ref)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error.detail}") from None
    return ref


def named_in(
    principal: Principal,
    parameters: Mapping[str, str],
    headers: Iterable[tuple[bytes, bytes]],
    named: str | None = None,
    field: str = "model",
) -> tuple[str, str | None]:
    """Returns what the path, the header or the body (`named`, its `field`) names, else the key's default, and where.

    Two different names are InvalidInput. Header names are in lower case.
    """
    owner, model = parameters.get("owner"), parameters.get("model")
    by_place = {
        field: named,
        "the task in the path": parameters.get("task"),
        "the model in the path": model if owner is None else f"{owner}/{model}",
        f"the header {HEADER}": _detector(headers),
    }
    places = {where: name for where, name in by_place.items() if name is not None}
    if len(set(places.values())) > 1:
        raise InvalidInput("the request names different tasks in its path, its header and its body")
    return next(iter(places.items()), ("the default task of the key", principal.default_task))


def _detector(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    values = [value for name, value in headers if name == _HEADER]
    if len(values) > 1:
        raise InvalidInput(f"a request has one {HEADER}")
    return values[0].decode(errors="replace") if values else None
