"""Wire formats: the path, media types, decoder and answer of each data route, and their routes in the document."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.types import Scope

from onebert_server.access.context import Context
from onebert_server.answering.edge import Edge
from onebert_server.contract.declared import REF
from onebert_server.http.decoding import Decoder, QuestionBody, converted
from onebert_server.http.strict import ContextOf, parsed

NONE: Mapping[str, str] = {}
# Headers of a façade's reply: how many of its answers are about texts that were cut, and how many abstain.
TRUNCATED, ABSTAINED, VECTORS_CUT = "onebert-truncated", "onebert-abstained", "onebert-vectors-cut"
JSON = "application/json"


class Reply(NamedTuple):
    """A response: its bytes, extra header fields, the media type and the status."""

    content: bytes
    headers: Mapping[str, str] = NONE
    media_type: str = JSON
    status: int = 200


class Format(Protocol):
    """The wire format of one data route."""

    @property
    def path(self) -> str: ...

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the paths; its named groups are the route's parameters."""

    @property
    def accepts(self) -> frozenset[str]:
        """The accepted media types of questions; an empty string accepts a request without one."""

    def read(self, body: bytes, scope: Scope) -> Any:
        """Decodes a request's body; raises the errors that `http.problems` handles."""

    def reply(self, parameters: Mapping[str, str], body: Any, context: Context, edge: Edge) -> Awaitable[Reply]: ...


@dataclass(frozen=True)
class OwnFormat:
    """The format of a route of this server's own API; see Format.

    `answer` gets the path's parameters, `body`, `context` and `edge` as keywords.
    """

    path: str
    pattern: re.Pattern[str]
    decoder: Decoder[Any]
    answer: Callable[..., Awaitable[Reply]]
    accepts: frozenset[str] = frozenset((JSON,))

    def read(self, body: bytes, scope: Scope) -> Any:
        value = self.decoder.at_once(body)
        return converted(self.decoder.kind, parsed(body)) if value is None else value

    def reply(self, parameters: Mapping[str, str], body: Any, context: Context, edge: Edge) -> Awaitable[Reply]:
        return self.answer(**parameters, body=body, context=context, edge=edge)


async def _unasked(context: ContextOf) -> None:
    """Never called: the pipeline answers before FastAPI routes. The context documents its headers."""


class DataRoute(APIRoute):
    """A data route: its `format` answers; FastAPI documents it, and refuses other methods.

    Attributes:
        bodies: the kinds of its bodies; the OpenAPI document has their schemas.
    """

    def __init__(
        self, form: Format, bodies: Sequence[type[QuestionBody]], parameters: Sequence[Any] = (), **documented: Any
    ) -> None:
        named = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "pattern": REF}}
            for name in form.pattern.groupindex
        ]
        extra = {"parameters": [*named, *parameters]}
        super().__init__(form.path, _unasked, methods=["POST"], openapi_extra=extra, **documented)
        self.format, self.bodies = form, bodies


class Match(NamedTuple):
    """A format and the path's parameters."""

    format: Format
    parameters: Mapping[str, str]


class Formats:
    """Finds formats by path; no path matches two formats."""

    def __init__(self, formats: Iterable[Format]) -> None:
        formats = list(formats)
        self._paths = {form.path: Match(form, {}) for form in formats if "{" not in form.path}
        self._patterns = [form for form in formats if "{" in form.path]

    def match(self, scope: Scope) -> Match | None:
        """The format of a question; None for every other request."""
        if scope["method"] != "POST":
            return None
        path = scope["path"]
        if matched := self._paths.get(path):
            return matched
        for form in self._patterns:
            if parameters := form.pattern.match(path):
                return Match(form, parameters.groupdict())
        return None


def formats_of(routers: Sequence[APIRouter]) -> Formats:
    """The wire formats of the routers' data routes."""
    return Formats(route.format for router in routers for route in router.routes if isinstance(route, DataRoute))
