"""The table of wire formats: for each route how its questions are read and what answers them, on both paths."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from onebert_server.access.context import Context
from onebert_server.edge import Edge


@dataclass(frozen=True)
class Format:
    """One wire format: a route with its decoder and its encoder.

    FastAPI's route of the same path documents the format, and answers by the same two functions whatever the lean path
    leaves to it: what a request may hold is said in `decode` alone.

    Attributes:
        path: the route's template, by which metrics name it.
        pattern: matches the paths; its named groups are the route's parameters.
        decode: reads a body. Raises what http/problems.py makes problems of.
        answer: `answer(**parameters, body=…, context=…, edge=…)` gives the whole answer's bytes for what `decode` gave.
        media_type: of questions and answers.
    """

    path: str
    pattern: re.Pattern[str]
    decode: Callable[[bytes], Any]
    answer: Callable[..., Awaitable[bytes]]
    media_type: str = "application/json"

    @cached_property
    def content_type(self) -> bytes:
        """The media type as a header field has it."""
        return self.media_type.encode()

    async def bytes_for(self, parameters: Mapping[str, str], body: Any, context: Context, edge: Edge) -> bytes:
        """The answer to what `decode` gave."""
        return await self.answer(**parameters, body=body, context=context, edge=edge)


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

    def find(self, path: str) -> Found | None:
        """The format of a path; None where the path is none of theirs."""
        if found := self._whole.get(path):
            return found
        for one in self._patterns:
            if matched := one.pattern.match(path):
                return Found(one, matched.groupdict())
        return None
