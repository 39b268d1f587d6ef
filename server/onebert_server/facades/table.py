"""The table of façades: one of the server's own is a file and an entry here; plug-ins bring others."""

import re
from collections.abc import Iterator
from functools import cache

from onebert_server.facades.address import PREFIX
from onebert_server.facades.clients import (
    fms,
    gliner,
    health,
    hugging_face,
    kserve,
    litellm,
    open_inference,
    openai,
    tei,
    vllm,
)
from onebert_server.facades.facade import Facade, any_body
from onebert_server.facades.plugged import plugged_in
from onebert_store.errors import InvalidSettings


@cache
def facades() -> tuple[Facade, ...]:
    """All façades, in the order of the OpenAPI document.

    Raises InvalidSettings if a plug-in cannot be loaded, or if two façades claim one path.
    """
    table = (
        hugging_face.FACADE,
        tei.FACADE,
        fms.FACADE,
        vllm.FACADE,
        openai.FACADE,
        kserve.FACADE,
        *plugged_in(),
        health.FACADE,
        open_inference.FACADE,
        litellm.FACADE,
        gliner.FACADE,
    )
    owners: dict[str, tuple[Facade, bool]] = {}
    for facade in table:
        for route, told_apart in routes_of(facade):
            other, also = owners.setdefault(shape_of(route), (facade, told_apart))
            if other is not facade and not (told_apart and also):
                raise InvalidSettings(f"the façades '{other.name}' and '{facade.name}' both have {route}")
    return table


def shape_of(route: str) -> str:
    """A route without the names of its parameters: two of one shape match the same requests."""
    return re.sub(r"{\w+(:\w+)?}", "{}", route)


def routes_of(facade: Facade) -> Iterator[tuple[str, bool]]:
    """Method and path of each route, and whether bodies tell it apart from others at its path."""
    for listing in facade.listings:
        yield f"GET {PREFIX if listing.prefixed_alone else ''}{listing.path}", False
    for question in facade.questions:
        yield f"POST {question.path}", question.claims is not any_body and question.read is None
