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
    """Returns the reference in the path, the header or the body (`named`, its `field`), else the key's default task.

    Two different references are InvalidInput. Header names are in lower case.
    """
    by_place = {
        field: named,
        "the task in the path": parameters.get("task"),
        "the model in the path": parameters.get("model"),
        f"the header {HEADER}": _detector(headers),
    }
    places = {where: ref for where, ref in by_place.items() if ref is not None}
    if len(set(places.values())) > 1:
        raise InvalidInput("the request names different tasks in its path, its header and its body")
    where, ref = next(iter(places.items()), ("the default task of the key", principal.default_task))
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


def _detector(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    values = [value for name, value in headers if name == _HEADER]
    if len(values) > 1:
        raise InvalidInput(f"a request has one {HEADER}")
    return values[0].decode(errors="replace") if values else None
