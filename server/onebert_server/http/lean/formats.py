"""The table of wire formats: for each route how its questions are read and what answers them, on both paths."""

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
    """An answer's bytes, its header fields beside those of every answer, and its media type if not the format's."""

    content: bytes
    headers: Mapping[str, str] = NONE
    media_type: str | None = None


class Format(Protocol):
    """One wire format: how the questions of a route are read and answered.

    FastAPI's route of the same path documents the format, and answers by the same two functions whatever the lean path
    leaves to it: what a request may hold is said in `read` alone.
    """

    @property
    def path(self) -> str:
        """The route's template, by which metrics name it."""

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the paths; its named groups are the route's parameters."""

    @property
    def media_type(self) -> str:
        """Of questions and answers."""

    @property
    def accepts(self) -> frozenset[str]:
        """The media types of questions; empty is for a request that names none."""

    @property
    def content_type(self) -> bytes:
        """The media type as a header field has it."""

    def read(self, body: bytes, scope: Scope) -> Any:
        """What a request's body asks. Raises what http/problems.py makes problems of."""

    async def reply(self, parameters: Mapping[str, str], body: Any, context: Context, edge: Edge) -> Reply:
        """The answer to what `read` gave."""


@dataclass(frozen=True)
class OwnFormat:
    """The format of a route of this server's own interface; see Format.

    Attributes:
        path: the route's template, by which metrics name it.
        pattern: matches the paths; its named groups are the route's parameters.
        parse: makes JSON values of a body. Raises what http/problems.py makes problems of.
        validate: makes of these what the route takes. Raises alike.
        answer: `answer(**parameters, body=…, context=…, edge=…)` gives the whole answer's bytes for what it gave.
        media_type: of questions and answers.
    """

    path: str
    pattern: re.Pattern[str]
    parse: Callable[[bytes], Any]
    validate: Callable[[Any], Any]
    answer: Callable[..., Awaitable[bytes]]
    media_type: str = "application/json"

    @cached_property
    def content_type(self) -> bytes:
        """The media type as a header field has it."""
        return self.media_type.encode()

    @cached_property
    def accepts(self) -> frozenset[str]:
        return frozenset((self.media_type,))

    def read(self, body: bytes, scope: Scope) -> Any:
        return self.validate(self.parse(body))

    async def reply(self, parameters: Mapping[str, str], body: Any, context: Context, edge: Edge) -> Reply:
        return Reply(await self.answer(**parameters, body=body, context=context, edge=edge))


class Found(NamedTuple):
    """A format, and the parameters of the path that it was found by."""

    format: Format
    parameters: Mapping[str, str]


class Formats:
    """Looks formats up by path; no two have a path in common."""

    def __init__(self, formats: Iterable[Format]) -> None:
        formats = list(formats)
        self._whole = {one.path: Found(one, {}) for one in formats if "{" not in one.path}
        self._patterns = [one for one in formats if "{" in one.path]

    def asked(self, scope: Scope) -> Found | None:
        """The format in which a request asks; None where it is none of theirs."""
        return self.find(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None

    def find(self, path: str) -> Found | None:
        """The format of a path; None where the path is none of theirs."""
        if found := self._whole.get(path):
            return found
        for one in self._patterns:
            if matched := one.pattern.match(path):
                return Found(one, matched.groupdict())
        return None
