"""The wire format of a façade's path; if façades share the path, the body selects one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import BaseModel
from starlette.types import Scope

from onebert_server.access.context import Context
from onebert_server.answering.edge import Edge
from onebert_server.facades.facade import Call, Facade, Question
from onebert_server.http.formats import OwnFormat, Reply
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
    """The format of a path that façades answer; the body selects the claimant.

    `own` is the server's own format of the path, for a body that no claimant claims.
    """

    path: str
    pattern: re.Pattern[str]
    claimants: Sequence[Claimant]
    own: OwnFormat | None = None

    @cached_property
    def accepts(self) -> frozenset[str]:
        return frozenset[str]().union(*(one.question.media_types for one in self.claimants))

    def read(self, body: bytes, scope: Scope) -> Any:
        """Also chooses the error form of the façade that the body is for."""
        read = self.claimants[0].question.read
        if read is not None:
            # Only this façade has the path, so decoding errors use its form.
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
