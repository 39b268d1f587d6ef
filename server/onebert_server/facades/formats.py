"""How a façade's questions are read and answered on both paths; one path may serve several, told apart by the body."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import BaseModel
from starlette.types import Scope

from onebert_server.access.context import Context
from onebert_server.edge import Edge
from onebert_server.facades.facade import Call, Facade, Question
from onebert_server.http.lean.formats import OwnFormat, Reply
from onebert_server.http.problems import FORM
from onebert_server.http.strict import parsed, validated


class Claimant(NamedTuple):
    """A façade's question at a path."""

    facade: Facade
    question: Question


class _Read(NamedTuple):
    question: Question
    body: BaseModel
    headers: Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class FacadeFormat:
    """The format of a path that façades answer; see Format.

    Attributes:
        path: the route's template.
        pattern: matches the paths.
        claimants: whose path it is; the body decides between several.
        own: the format of this server's own route of that path, which is asked where no claimant claims the body.
    """

    path: str
    pattern: re.Pattern[str]
    claimants: Sequence[Claimant]
    own: OwnFormat | None = None
    media_type: str = "application/json"
    content_type: bytes = b"application/json"

    @cached_property
    def accepts(self) -> frozenset[str]:
        return frozenset[str]().union(*(one.question.media_types for one in self.claimants))

    def read(self, body: bytes, scope: Scope) -> Any:
        """See Format; from here on errors are in the form of who the body is for."""
        read = self.claimants[0].question.read
        if read is not None:
            # An error of its bytes is in its form, too.
            scope["state"][FORM] = self.claimants[0].facade.form
        given = parsed(body) if read is None else read(body, scope["headers"])
        found = next((one for one in self.claimants if one.question.claims(given)), None)
        if found is None and self.own is not None:
            return self.own.validate(given)
        facade, question = found or self.claimants[0]
        scope["state"][FORM] = facade.form
        if question.harmless and isinstance(given, dict):
            given = {name: value for name, value in given.items() if name not in question.harmless}
        return _Read(question, validated(question.body, given), scope["headers"])

    async def reply(self, parameters: Mapping[str, str], body: Any, context: Context, edge: Edge) -> Reply:
        if isinstance(body, _Read):
            call = Call(body.body, parameters, body.headers, context, edge)
            return await body.question.answer(call)
        if self.own is None:
            raise TypeError("only the own format reads anything else")
        return await self.own.reply(parameters, body, context, edge)
