"""Wire formats: how a route's questions are read and answered, on both paths."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from starlette.types import Scope

from onebert_server.access.context import Context
from onebert_server.edge import Edge

NONE: Mapping[str, str] = {}


class Reply(NamedTuple):
    """A response: its bytes, extra header fields, and the media type if it differs from the format's."""

    content: bytes
    headers: Mapping[str, str] = NONE
    media_type: str | None = None


class Format(Protocol):
    """One wire format: FastAPI's route and the lean path read and answer questions with the same functions."""

    @property
    def path(self) -> str: ...

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the paths; its named groups are the route's parameters."""

    @property
    def media_type(self) -> str: ...

    @property
    def accepts(self) -> frozenset[str]:
        """The accepted media types of questions; an empty string accepts a request without one."""

    @property
    def content_type(self) -> bytes: ...

    def read(self, body: bytes, scope: Scope) -> Any:
        """Decodes a request's body; raises the errors that `http.problems` handles."""

    async def reply(self, parameters: Mapping[str, str], body: Any, context: Context, edge: Edge) -> Reply: ...


@dataclass(frozen=True)
class OwnFormat:
    """The format of a route of this server's own API; see Format.

    `parse` and `validate` raise the errors that `http.problems` handles. `answer` gets the path's parameters, `body`,
    `context` and `edge` as keywords, and returns the response's bytes.
    """

    path: str
    pattern: re.Pattern[str]
    parse: Callable[[bytes], Any]
    validate: Callable[[Any], Any]
    answer: Callable[..., Awaitable[bytes]]
    media_type: str = "application/json"

    @cached_property
    def content_type(self) -> bytes:
        return self.media_type.encode()

    @cached_property
    def accepts(self) -> frozenset[str]:
        return frozenset((self.media_type,))

    def read(self, body: bytes, scope: Scope) -> Any:
        return self.validate(self.parse(body))

    async def reply(self, parameters: Mapping[str, str], body: Any, context: Context, edge: Edge) -> Reply:
        return Reply(await self.answer(**parameters, body=body, context=context, edge=edge))


class Found(NamedTuple):
    """A format and the path's parameters."""

    format: Format
    parameters: Mapping[str, str]


class Formats:
    """Finds formats by path; no path matches two formats."""

    def __init__(self, formats: Iterable[Format]) -> None:
        formats = list(formats)
        self._whole = {one.path: Found(one, {}) for one in formats if "{" not in one.path}
        self._patterns = [one for one in formats if "{" in one.path]

    def asked(self, scope: Scope) -> Found | None:
        return self.find(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None

    def find(self, path: str) -> Found | None:
        if found := self._whole.get(path):
            return found
        for one in self._patterns:
            if matched := one.pattern.match(path):
                return Found(one, matched.groupdict())
        return None
