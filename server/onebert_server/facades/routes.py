"""Builds the routes of all façades together with this server's own classify routes, and finds a path's error form."""

import re
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from operator import or_
from typing import Any, NamedTuple, cast

from fastapi import APIRouter
from starlette.routing import compile_path
from starlette.types import Scope

from onebert_server.access.context import Context
from onebert_server.answering.edge import Edge
from onebert_server.facades.address import HEADER, PREFIX
from onebert_server.facades.facade import Call, Facade, Question
from onebert_server.facades.table import facades
from onebert_server.http.decoding import Decoder, QuestionBody, converted
from onebert_server.http.formats import ABSTAINED, TRUNCATED, VECTORS_CUT, DataRoute, OwnFormat, Reply
from onebert_server.http.problems import FORM, ErrorForm
from onebert_server.http.routes import classify
from onebert_server.http.strict import parsed


class Claimant(NamedTuple):
    """A façade's question at a path, and what reads its bodies."""

    facade: Facade
    question: Question
    decoder: Decoder[QuestionBody]


class _Read(NamedTuple):
    question: Question
    body: QuestionBody
    headers: Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class FacadeFormat:
    """The format of a path that façades answer; the body selects the claimant.

    `native` is the server's own format of the path, for a body that no claimant claims.
    """

    path: str
    pattern: re.Pattern[str]
    claimants: Sequence[Claimant]
    native: OwnFormat | None = None

    @cached_property
    def accepts(self) -> frozenset[str]:
        return frozenset[str]().union(*(claimant.question.media_types for claimant in self.claimants))

    def read(self, body: bytes, scope: Scope) -> Any:
        """Also chooses the error form of the façade that the body is for."""
        read, state, headers = self.claimants[0].question.read, scope["state"], scope["headers"]
        if read is None:
            if self.native is not None and (value := self.native.decoder.at_once(body)) is not None:
                return value
            for facade, question, decoder in self.claimants:
                if (value := decoder.at_once(body)) is not None:
                    state[FORM] = facade.form
                    return _Read(question, value, headers)
            document = parsed(body)
        else:
            # Only this façade has the path, so decoding errors use its form.
            state[FORM] = self.claimants[0].facade.form
            document = read(body, headers)
        claimant = next((candidate for candidate in self.claimants if candidate.question.claims(document)), None)
        if claimant is None and self.native is not None:
            return converted(self.native.decoder.kind, document)
        facade, question, _ = claimant or self.claimants[0]
        state[FORM] = facade.form
        return _Read(question, converted(question.body, document), headers)

    def reply(self, parameters: Mapping[str, str], body: Any, context: Context, edge: Edge) -> Awaitable[Reply]:
        if isinstance(body, _Read):
            return _answered(body.question, Call(body.body, parameters, body.headers, context, edge))
        if self.native is None:
            raise TypeError("only the own format reads anything else")
        return self.native.reply(parameters, body, context, edge)


async def _answered(question: Question, call: Call[Any]) -> Reply:
    """The façade's reply; its headers say how many of the answers are about cut texts or abstain, if any."""
    reply, observed = await question.answer(call), call.context.observed
    counts = {TRUNCATED: observed.truncated, ABSTAINED: observed.abstained, VECTORS_CUT: observed.vectors_cut}
    return reply._replace(headers={**reply.headers, **{name: str(count) for name, count in counts.items() if count}})


PAGE = "docs/reference/clients.md"
_DETECTOR = {
    "name": HEADER,
    "in": "header",
    "description": "The task, where nothing else names it.",
    "schema": {"type": "string"},
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": "An error in the form that the client expects.", "content": {"application/json": {}}}
    for status in ("4XX", "5XX", 422)
}
# At a path that the server's own routes or page share: errors are problems until a body is claimed by a façade.
_BOTH: dict[int | str, dict[str, Any]] = {
    status: {
        "description": "A problem, or an error in the form that the client expects.",
        "content": {"application/json": {}, "application/problem+json": {}},
    }
    for status in _ERRORS
}


@cache
def answering() -> APIRouter:
    """The routes that classify, for every app that a process serves: the server's own and the façades'."""
    router = APIRouter()
    at = _claimants()
    native = {route.path: route for route in classify.ROUTES}
    router.routes += [route for path, route in native.items() if path not in at]
    # `Formats` tries path templates in this order: the server's own first.
    for path, claimants in sorted(at.items(), key=lambda item: item[0] not in native):
        router.routes.append(_documented(path, claimants, native.get(path)))
        for prefixed in _prefixed(path):
            form = FacadeFormat(prefixed, compile_path(prefixed)[0], claimants)
            # FastAPI's models of the bodies would take a part of each start.
            router.routes.append(DataRoute(form, (), response_model=None, include_in_schema=False))
    return router


def form_of(path: str) -> ErrorForm | None:
    """The error form of a path; None if the server's own routes share the path.

    If several façades share the path, the first one's form applies until the body selects a façade.
    """
    return next((form for pattern, form in _forms() if pattern.match(path)), None)


def errors_of(path: str) -> dict[int | str, dict[str, Any]]:
    """The error responses of a path, for the OpenAPI document."""
    return _BOTH if form_of(path) is None else _ERRORS


def paths_of(path: str, *, alone: bool = True) -> Iterator[str]:
    """A façade's path, alone and with the task prefix."""
    if alone:
        yield path
    yield from _prefixed(path)


def _prefixed(path: str) -> list[str]:
    return [PREFIX, f"{PREFIX}/"] if path == "/" else [PREFIX + path]


@cache
def _claimants() -> Mapping[str, Sequence[Claimant]]:
    claimants: dict[str, list[Claimant]] = {}
    for facade in facades():
        for question in facade.questions:
            claimants.setdefault(question.path, []).append(Claimant(facade, question, Decoder(question.body)))
    return claimants


def _documented(path: str, claimants: Sequence[Claimant], native: DataRoute | None) -> DataRoute:
    questions = [claimant.question for claimant in claimants]
    bodies, answers = [question.body for question in questions], [question.response for question in questions]
    ignored = " ".join(question.unanswered for question in questions if question.unanswered)
    names = list(dict.fromkeys(claimant.facade.name for claimant in claimants))
    asks = f"As clients of {' and '.join(names)} ask"
    entry: dict[str, Any] = {
        "name": f"{'_'.join(names)} {path}",
        "summary": asks,
        "description": f"Also with `{PREFIX}` in front of the path; see {PAGE}.",
        "tags": names,
    }
    if native is not None:
        # The server's own route shares the path with the façades.
        bodies, answers = [*native.bodies, *bodies], [native.response_model, *answers]
        description = f"{native.description}\n\n{asks}, by a body of theirs: see {PAGE}."
        entry = {"name": native.name, "description": description, "tags": native.tags}
    return DataRoute(
        FacadeFormat(path, compile_path(path)[0], claimants, cast(OwnFormat, native.format) if native else None),
        bodies,
        [_DETECTOR],
        response_model=reduce(or_, answers) if Any not in answers else Any,
        responses=errors_of(path) | ({202: {"description": ignored}} if ignored else {}),
        **entry,
    )


def facade_paths() -> frozenset[str]:
    """The paths of all façades, with and without the task prefix."""
    return frozenset(
        full_path for facade in facades() for path, alone in _paths(facade) for full_path in paths_of(path, alone=alone)
    )


@cache
def _forms() -> list[tuple[re.Pattern[str], ErrorForm]]:
    # The page is at "/".
    native = {"/"} | {route.path for route in classify.ROUTES}
    forms: dict[str, ErrorForm] = {}
    for facade in facades():
        for path, alone in _paths(facade):
            for full_path in paths_of(path, alone=alone and path not in native):
                forms.setdefault(full_path, facade.form)
    # Longest first: `/v1/models/{model}` also matches `/v1/models/{model}:predict`.
    longest = sorted(forms.items(), key=lambda item: len(item[0]), reverse=True)
    return [(compile_path(path)[0], form) for path, form in longest]


def _paths(facade: Facade) -> Iterator[tuple[str, bool]]:
    yield from ((question.path, True) for question in facade.questions)
    yield from ((listing.path, not listing.prefixed_alone) for listing in facade.listings)
