"""What a façade is: the routes of one kind of client, how they are answered, and how its errors look."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from pydantic import BaseModel

from onebert_encoder.text.tokens import Text
from onebert_server.access.context import Context
from onebert_server.answering.answers import Answered
from onebert_server.answering.backend import Wanted
from onebert_server.answering.sizes import AnswerBytes
from onebert_server.edge import Edge
from onebert_server.facades.address import task_of
from onebert_server.http.lean.formats import Reply
from onebert_server.http.problems import ErrorForm
from onebert_store.registry.names import LIVE, parse_ref

if TYPE_CHECKING:
    # A front end asks questions alone, and knows neither the runtime nor the registry.
    from onebert_server.runtime import Runtime
    from onebert_server.versions.version import Version
    from onebert_server.versions.view import View

Body = TypeVar("Body", bound=BaseModel)
T = TypeVar("T")

JSON = frozenset({"application/json"})

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Call(Generic[Body]):
    """One request to a façade.

    Attributes:
        body: what it says, without what is harmless.
        parameters: of its path.
        headers: its header fields, their names in lower case.
        context: of the request.
        edge: of this process.
    """

    body: Body
    parameters: Mapping[str, str]
    headers: Sequence[tuple[bytes, bytes]]
    context: Context
    edge: Edge

    def task(self, named: str | None = None, field: str = "model") -> str:
        """The task that is meant; `named` is what a field of the body says. See `task_of`."""
        return task_of(self.context.principal, self.parameters, self.headers, named, field)

    async def ask(
        self,
        wanted: Wanted,
        texts: Sequence[Text],
        show: Callable[[int, Answered], T],
        blank: Callable[[], T] | None = None,
    ) -> list[T]:
        """What is shown of each answer; see `Answerer.answer`, and `JsonParts` for what is large."""
        return await self.edge.answerer.answer(self.context, wanted, texts, show, blank)


@dataclass(frozen=True)
class Question:
    """A route by which a client has texts classified; every process that takes HTTP answers it.

    Attributes:
        path: its template, without the prefix that names a task; a name inside of it is `{model}`.
        body: what it takes; a field that it does not have is refused, since it might change the answer.
        answer: answers one call. Raises typed errors, which the façade words.
        response: what the answer is, for the OpenAPI document.
        claims: whether a body, as JSON values, is for this route, where several have one path; the first that does is
            taken, and where none does the server's own route of that path, else the first.
        harmless: fields of the body that change no answer, and are passed over.
        read: makes JSON values of a body and the header fields, where it is more than JSON, or less of it is looked at;
            only of a path that no other question has.
        media_types: of the bodies; empty is for a request that names none.
    """

    path: str
    body: type[BaseModel]
    answer: Callable[[Call[Any]], Awaitable[Reply]]
    response: Any = Any
    claims: Callable[[Any], bool] = lambda _: True
    harmless: frozenset[str] = field(default=frozenset())
    read: Callable[[bytes, Sequence[tuple[bytes, bytes]]], Any] | None = None
    media_types: frozenset[str] = JSON


@dataclass(frozen=True, slots=True)
class Look:
    """One request to see what there is; answered in a process with the engine.

    Attributes:
        parameters: of its path.
        headers: its header fields, their names in lower case.
        context: of the request.
        runtime: the replica.
        view: what of its tasks the principal sees.
    """

    parameters: Mapping[str, str]
    headers: Sequence[tuple[bytes, bytes]]
    context: Context
    runtime: "Runtime"
    view: "View"

    def task(self) -> str:
        """The task that is meant; see `task_of`."""
        return task_of(self.context.principal, self.parameters, self.headers)

    def resolved(self) -> "Version":
        """The version that is meant now.

        Raises:
            InvalidInput, TaskNotFound, VersionNotFound, AliasNotFound: there is none, or not for this principal.
        """
        target = parse_ref(self.task())
        number = target.version
        if number is None:
            number = self.view.alias(target.task, target.alias or LIVE).version
        return self.view.version(target.task, number)

    async def version(self) -> "Version":
        """The version that is meant now, with its facts; raises as `resolved`."""
        version = self.resolved()
        if version.known_facts is None:
            await self.read(partial(self.view.manifest, version))
        return version

    async def read(self, call: Callable[[], T]) -> T:
        """What a call gives that may read the registry; the event loop does not wait for it."""
        return await asyncio.get_running_loop().run_in_executor(self.runtime.registrars, call)


@dataclass(frozen=True)
class Listing:
    """A route by which a client looks at what there is.

    Attributes:
        path: its template, as of a Question.
        answer: answers one look. Raises typed errors, which the façade words.
        prefixed_alone: whether there is the route only with a task in front of its path.
    """

    path: str
    answer: Callable[[Look], Awaitable[Reply]]
    prefixed_alone: bool = False


@dataclass(frozen=True)
class Facade:
    """One kind of client.

    Attributes:
        name: what the documentation calls it.
        form: how its errors look.
        questions: its routes that answer.
        listings: its routes that show.
    """

    name: str
    form: ErrorForm
    questions: Sequence[Question]
    listings: Sequence[Listing] = ()


class JsonParts(AnswerBytes):
    """JSON values of which an answer is put together, each encoded where it is made."""

    def encoded(self, value: Any) -> msgspec.Raw:
        """A value that may stand in other values.

        Raises:
            TooLarge: with it the answer would be over `MAX_ANSWER_BYTES`.
        """
        return msgspec.Raw(self.add(_encode(value)))


def json_reply(value: Any, headers: Mapping[str, str] | None = None) -> Reply:
    """An answer as JSON.

    Raises:
        TooLarge: it would be over `MAX_ANSWER_BYTES`.
    """
    return Reply(AnswerBytes().add(_encode(value)), headers or {})
