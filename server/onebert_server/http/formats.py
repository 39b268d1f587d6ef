"""Wire formats: the path, media types, decoder and answer of each data route, and their routes in the document."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.types import Scope

from onebert_server.access.context import Context
from onebert_server.answering.edge import Edge
from onebert_server.http.strict import parsed, validated

NONE: Mapping[str, str] = {}
# Headers of a façade's reply: how many of its answers are about texts that were cut, and how many abstain.
TRUNCATED, ABSTAINED = "onebert-truncated", "onebert-abstained"
JSON = "application/json"
# Paths, and characters of one, whose match is remembered.
MAX_PATHS, MAX_PATH = 4096, 256


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

    `answer` gets the path's parameters, `body`, `context` and `edge` as keywords. `plain` reads the simplest bodies as
    `validate` would; it returns None for all others.
    """

    path: str
    pattern: re.Pattern[str]
    validate: Callable[[Any], Any]
    answer: Callable[..., Awaitable[Reply]]
    accepts: frozenset[str] = frozenset((JSON,))
    plain: Callable[[bytes], Any] | None = None

    def read(self, body: bytes, scope: Scope) -> Any:
        plain = self.plain(body) if self.plain is not None else None
        return self.validate(parsed(body)) if plain is None else plain

    def reply(self, parameters: Mapping[str, str], body: Any, context: Context, edge: Edge) -> Awaitable[Reply]:
        return self.answer(**parameters, body=body, context=context, edge=edge)


class DataRoute(APIRoute):
    """A data route as FastAPI documents it: its signature gives the schemas, its `format` answers, FastAPI never does.

    The endpoint takes the path's parameters, a body, the context and the edge. It encodes the JSON itself, so that it
    can encode a large reply in a worker.
    """

    @cached_property
    def format(self) -> Format:
        return self.own_format

    @cached_property
    def own_format(self) -> OwnFormat:
        kind = self.body_type
        validate, plain = partial(validated, kind), getattr(kind, "plain", None)
        return OwnFormat(self.path, self.path_regex, validate, self.endpoint, plain=plain)

    @property
    def body_type(self) -> type[BaseModel]:
        kind: type[BaseModel] = self.endpoint.__annotations__["body"]
        return kind


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
                matched = Match(form, parameters.groupdict())
                if len(self._paths) < MAX_PATHS and len(path) <= MAX_PATH:
                    self._paths[path] = matched
                return matched
        return None


def formats_of(routers: Sequence[APIRouter]) -> Formats:
    """The wire formats of the routers' data routes."""
    return Formats(route.format for router in routers for route in router.routes if isinstance(route, DataRoute))
