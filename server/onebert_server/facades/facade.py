"""The parts of a façade: its routes, how they answer, and its error form."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_encoder.answering.results import Answer, Prediction
from onebert_encoder.text.tokens import Text
from onebert_server.access.context import Context
from onebert_server.answering.edge import Edge
from onebert_server.answering.gateway import BARE, Wanted
from onebert_server.answering.many import ask_many
from onebert_server.answering.reading import Answered
from onebert_server.answering.sizes import AnswerBytes
from onebert_server.facades.address import named_in, task_of
from onebert_server.http.decoding import QuestionBody
from onebert_server.http.formats import Reply
from onebert_server.http.problems import ErrorForm
from onebert_server.threads import run_in
from onebert_server.versions.facts import Facts
from onebert_store.errors import DeadlineExceeded, InvalidInput, OneBertError, TaskNotFound
from onebert_store.registry.names import LIVE, parse_ref

if TYPE_CHECKING:
    # Front ends only handle questions; they import neither the runtime nor the registry.
    from onebert_server.runtime import Runtime
    from onebert_server.versions.version import Version
    from onebert_server.versions.view import View

Body = TypeVar("Body", bound=QuestionBody)
T = TypeVar("T")
Kind = TypeVar("Kind", bound=Answer)

JSON = frozenset({"application/json"})

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Call(Generic[Body]):
    """One request to a façade; header names are in lower case."""

    body: Body
    parameters: Mapping[str, str]
    headers: Sequence[tuple[bytes, bytes]]
    context: Context
    edge: Edge

    def task(self, named: str | None = None, field: str = "model") -> str:
        return task_of(self.context.principal, self.parameters, self.headers, named, field)

    @asynccontextmanager
    async def in_time(self, milliseconds: float | None) -> "AsyncIterator[Call[Body]]":
        """The call with a deadline at most so many milliseconds after its arrival; then DeadlineExceeded ends it."""
        context = self.context.within(milliseconds)
        try:
            async with asyncio.timeout(context.remaining):
                yield replace(self, context=context)
        except TimeoutError:
            raise DeadlineExceeded("the answer did not come within the time that the request gives") from None

    async def ask(self, wanted: Wanted, texts: Sequence[Text], show: Callable[[int, Answered], T]) -> list[T]:
        return await self.edge.answerer.answer(self.context, wanted, texts, show)


def any_body(_: Any) -> bool:
    """Claims every body of a path."""
    return True


@dataclass(frozen=True)
class Question:
    """A route that classifies texts; every process that serves HTTP has it.

    Attributes:
        path: the template without the task prefix; a name inside of it is `{model}`.
        body: its kind, without unknown fields, since they might change the answer; fields of other servers that change
            none are of any type.
        claims: whether a body (JSON values) is for this route; given by each question that shares its path. The first
            one that claims it answers, else the server's own route of the path, else the first one.
        read: decodes a body that is not plain JSON, or only in part; allowed only if no other question has the path.
        media_types: of bodies; an empty string accepts a request without one.
        unanswered: what the bodies are that get no answer (202), if there are such.
    """

    path: str
    body: type[QuestionBody]
    answer: Callable[[Call[Any]], Awaitable[Reply]]
    response: Any = Any
    claims: Callable[[Any], bool] = any_body
    read: Callable[[bytes, Sequence[tuple[bytes, bytes]]], Any] | None = None
    media_types: frozenset[str] = JSON
    unanswered: str = ""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """One read-only request; the engine process answers it. Header names are in lower case."""

    parameters: Mapping[str, str]
    headers: Sequence[tuple[bytes, bytes]]
    context: Context
    runtime: "Runtime"
    view: "View"

    def task(self) -> str:
        return task_of(self.context.principal, self.parameters, self.headers)

    def resolved(self) -> "Version":
        target = parse_ref(self.task())
        number = target.version
        if number is None:
            number = self.view.alias(target.task, target.alias or LIVE).version
        return self.view.version(target.task, number)

    async def base(self) -> Facts | None:
        """The base that makes vectors, where a task's name stands, or the only one without a name; None for a task.

        Raises the error about the task if there is no such base, and InvalidInput if it makes no vectors.
        """
        try:
            self.resolved()
        except (InvalidInput, TaskNotFound) as missing:
            _, name = named_in(self.context.principal, self.parameters, self.headers)
            try:
                [facts] = await self.runtime.answerer.live(self.context, [BARE + (name or "")])
            except OneBertError as error:
                raise (error if name and isinstance(error, InvalidInput) else missing) from None
            return facts
        return None

    async def version(self) -> "Version":
        version = self.resolved()
        if version.known_facts is None:
            await self.read(partial(self.view.manifest, version))
        return version

    async def read(self, call: Callable[[], T]) -> T:
        """Runs a call that may read the registry in a thread."""
        return await run_in(self.runtime.registrars, call)


@dataclass(frozen=True)
class Listing:
    """A read-only route; `prefixed_alone`: it exists only with the task prefix.

    The first line of `answer`'s docstring is the summary in the OpenAPI document.
    """

    path: str
    answer: Callable[[ReadRequest], Awaitable[Reply]]
    prefixed_alone: bool = False


@dataclass(frozen=True)
class ModelFields:
    """Fields that a façade adds to the list of models, which all kinds of clients share."""

    of_list: Callable[[ReadRequest], Mapping[str, Any]]
    of_model: Callable[["Version"], Mapping[str, Any]]


@dataclass(frozen=True)
class Facade:
    """The routes and the error form of one kind of client; only plug-ins have `model_fields`."""

    name: str
    form: ErrorForm
    questions: Sequence[Question]
    listings: Sequence[Listing] = ()
    model_fields: ModelFields | None = None


class JsonParts(AnswerBytes):
    """Encodes the parts of a JSON answer and counts their bytes."""

    def encoded(self, value: Any) -> msgspec.Raw:
        """Encodes a value for use inside other values; raises TooLarge over `MAX_ANSWER_BYTES`."""
        return msgspec.Raw(self.add(_encode(value)))


def json_reply(value: Any, headers: Mapping[str, str] | None = None) -> Reply:
    """Encodes a JSON reply; raises TooLarge over `MAX_ANSWER_BYTES`."""
    return Reply(AnswerBytes().add(_encode(value)), headers or {})


async def read_whole(
    call: Call[Any],
    refs: Sequence[str],
    texts: Sequence[Text],
    show: Callable[[int, Any], T],
    options: Asked = PLAIN,
    blanks: bool = False,
) -> list[T]:
    """Classifies each text with its reference; texts whose ends the task would cut are read in windows."""
    options = replace(options, whole=True)
    return await ask_many(call.edge.answerer, call.context, refs, texts, show, asked=options, blanks=blanks)


def answer_as(answered: Answered, kind: type[Kind], does: str) -> Kind:
    """Returns the answer if it is of this kind, else raises InvalidInput; `does` describes the required task."""
    answer = answered.read().answer
    if isinstance(answer, kind):
        return answer
    raise InvalidInput(f"{answered.facts.ref} is a {answered.facts.task_type} task; this is for one that {does}")


def predicted(answered: Answered) -> Prediction:
    """The answer of a task on whole texts; raises like `answer_as`."""
    return answer_as(answered, Prediction, "labels whole texts")


def ranked(prediction: Prediction, top_k: int | None = None) -> list[dict[str, Any]]:
    """The best `top_k` labels with their scores, or all; a regression keeps its own order."""
    return [{"label": label, "score": score} for label, score in prediction.top(top_k).items()]
