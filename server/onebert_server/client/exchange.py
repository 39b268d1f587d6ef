"""One request to its answer: when it is sent again, and which error a refusal is.

Nothing here does input or output. A function that needs the server is a generator: it yields what is to be done
(`Send`, `Pause`) and is sent what came of it, so that the synchronous and the asynchronous client run the same code.
"""

import json
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import wraps
from inspect import signature
from random import uniform
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, get_args
from urllib.parse import quote

import httpx
import msgspec

from onebert_server.limits import MAX_REQUEST_TIMEOUT
from onebert_store.errors import ChangeUnknown, InvalidInput, OneBertError, ServerUnreachable

URL = "http://127.0.0.1:8000"
TIMEOUT = 60.0
MAX_REPETITIONS = 8
MAX_BREAKS = 2
# Those who were refused together do not come back together.
SPREAD = (1.0, 1.25)
REFUSED_FOR_NOW = (429, 503)


@dataclass(frozen=True)
class Request:
    """What to ask of a server.

    Attributes:
        method: of HTTP.
        path: under the server's address, quoted.
        content: the body.
        headers: beside those of every request.
        repeatable: whether asking twice is as good as asking once.
    """

    method: str
    path: str
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True


@dataclass(frozen=True)
class Send:
    """A request that is to be sent now, and the seconds that are left to wait for its answer."""

    request: Request
    seconds: float


@dataclass(frozen=True)
class Pause:
    """Seconds that are to pass now."""

    seconds: float


Outcome: TypeAlias = httpx.Response | httpx.HTTPError | httpx.InvalidURL | None
"""What came of a step: an answer, why there is none, or nothing after a pause."""

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S", bound="Asking")
H = TypeVar("H", httpx.Client, httpx.AsyncClient)
Steps: TypeAlias = Generator[Send | Pause, Outcome, T]


class LastSeen:
    """The last change of a server's registry that a client knows of; thread-safe.

    A server gives the number of each change that it makes. Sent back with later requests, it has them answered by a
    server that knows of the change, whichever server of several that is.
    """

    def __init__(self) -> None:
        self._seq = 0
        self._lock = threading.Lock()

    def headers(self) -> dict[str, str]:
        """What a request sends along."""
        return {"OneBERT-Min-Seq": str(self._seq)} if self._seq else {}

    def note(self, answer: httpx.Response) -> None:
        """Keeps what an answer says; forgets it where the registry has no such change, as after it was put back."""
        if answer.status_code == ChangeUnknown.status and ChangeUnknown.code in answer.text:
            with self._lock:
                self._seq = 0
        said = answer.headers.get("onebert-seq", "")
        if said.isascii() and said.isdecimal() and len(said) < 19:
            with self._lock:
                self._seq = max(self._seq, int(said))


def exchange(request: Request, timeout: float) -> Steps[httpx.Response]:
    """Sends a request until it is answered: a server that says when to come back is asked again then.

    One whose connection breaks before the answer is whole may have died: another one may be asked at once.

    Args:
        request: what to ask.
        timeout: seconds for all of it, repetitions and pauses included.

    Raises:
        OneBertError: the refusal; `retry_after` holds the seconds that the server asked to wait, if it did.
        ServerUnreachable: nothing answered, or it was not a OneBERT server.
    """
    deadline = time.monotonic() + timeout
    repetitions = breaks = 0
    while True:
        outcome = yield Send(request, max(deadline - time.monotonic(), 0.001))
        if isinstance(outcome, httpx.Response) and outcome.is_success:
            return outcome
        if request.repeatable and breaks < MAX_BREAKS and _broke(outcome):
            breaks += 1
            continue
        error = _refusal(outcome)
        again = request.repeatable and error.status in REFUSED_FOR_NOW and error.retry_after is not None
        pause = (error.retry_after or 0) * uniform(*SPREAD)  # noqa: S311 - no secret
        if not again or repetitions == MAX_REPETITIONS or time.monotonic() + pause >= deadline:
            raise error
        repetitions += 1
        yield Pause(pause)


def decode(answer: httpx.Response, kind: type[T]) -> T:
    """The body of a success.

    Raises:
        ServerUnreachable: it is not what a OneBERT server answers.
    """
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ServerUnreachable("the answer is not one of a OneBERT server") from None


class _Reason(msgspec.Struct):
    path: str
    reason: str


class _Problem(msgspec.Struct):
    """What is read of `application/problem+json`; a gateway before the server may leave out all but the first two."""

    code: str
    detail: str
    title: str | None = None
    errors: list[_Reason] = []


def refusal_of(answer: httpx.Response) -> OneBertError:
    """The typed error of an answer that is not a success; what is not a problem did not come from a OneBERT server."""
    try:
        problem = msgspec.json.decode(answer.content, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        error: OneBertError = ServerUnreachable(
            f"the answer, HTTP status {answer.status_code}, is not one of a OneBERT server"
        )
    else:
        kind = OneBertError.of_code.get(problem.code, OneBertError)
        error = kind("; ".join(f"{each.path}: {each.reason}" for each in problem.errors) or problem.detail)
        error.code, error.title = problem.code, problem.title or kind.title
    error.status, error.retry_after = answer.status_code, _retry_after(answer)
    return error


def _broke(outcome: Outcome) -> bool:
    """Whether there was a connection, and it was lost; nothing is known of what the server has done."""
    lost = isinstance(outcome, httpx.NetworkError | httpx.RemoteProtocolError)
    return lost and not isinstance(outcome, httpx.ConnectError)


def _refusal(outcome: Outcome) -> OneBertError:
    if isinstance(outcome, httpx.Response):
        return refusal_of(outcome)
    if isinstance(outcome, httpx.TimeoutException) and not isinstance(outcome, httpx.ConnectTimeout):
        return ServerUnreachable("the server did not answer in time")
    address = ""
    if isinstance(outcome, httpx.HTTPError):
        # An error that has no request comes before there is an address.
        with suppress(RuntimeError):
            address = f" at {outcome.request.url.scheme}://{outcome.request.url.netloc.decode()}"
    return ServerUnreachable(f"nothing answers{address}; is `onebert serve` running?")


def _retry_after(answer: httpx.Response) -> int | None:
    """Seconds; HTTP allows a number of them, or a date."""
    said = answer.headers.get("retry-after", "").strip()
    if said.isascii() and said.isdecimal() and len(said) < 10:
        return int(said)
    with suppress(ValueError):
        date = parsedate_to_datetime(said)
        return max(0, round((date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()))
    return None


def opened(kind: type[H], url: str, api_key: str | None) -> H:
    """A client of httpx for one server.

    Raises:
        InvalidInput: the address or the key cannot be one.
    """
    if not url.startswith(("http://", "https://")):
        raise InvalidInput("the server's URL starts with http:// or https://")
    try:
        return kind(base_url=url, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
    except (httpx.InvalidURL, UnicodeEncodeError):
        raise InvalidInput("the URL or the API key is not valid") from None


def arguments(step: Send, seen: LastSeen) -> dict[str, Any]:
    """What httpx is to send; the server learns how long its answer is waited for, as far as it can be told."""
    told = min(step.seconds, MAX_REQUEST_TIMEOUT)
    return {
        "method": step.request.method,
        "url": step.request.path,
        "content": step.request.content or None,
        "headers": {**step.request.headers, **seen.headers(), "X-Request-Timeout": f"{told:.3f}"},
        "timeout": step.seconds,
    }


def with_json(
    method: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None, repeatable: bool = True
) -> Request:
    """A request with a body of JSON.

    Raises:
        InvalidInput: JSON has nothing for what is in the body.
    """
    return Request(method, path, json_bytes(body), {"Content-Type": "application/json", **(headers or {})}, repeatable)


def json_bytes(body: Mapping[str, Any]) -> bytes:
    """A body of JSON; see `with_json`."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise InvalidInput("a text is not valid Unicode") from None
    except ValueError:
        raise InvalidInput("a number is not finite") from None
    except TypeError:
        raise InvalidInput("an input is a text, or a tuple of two texts") from None


def quoted(name: str) -> str:
    """A name or reference as one segment of a path; an empty one would be another route."""
    if not name or not name.isascii():
        raise InvalidInput("a name is made of ASCII letters and digits")
    return quote(name, safe="@")


class Asking:
    """What both clients are: something that takes the steps of a method, and gives what comes of them, or awaits it."""

    _timeout: float

    def _run(self, steps: Steps[Any]) -> Any:
        raise NotImplementedError

    def _ask(self, request: Request) -> Steps[httpx.Response]:
        return exchange(request, self._timeout)

    def _get(self, path: str, kind: type[T]) -> Steps[T]:
        return decode((yield from self._ask(Request("GET", path))), kind)


def asked(steps: Callable[Concatenate[S, P], Steps[T]]) -> Callable[Concatenate[S, P], T]:
    """A method that a generator describes: called, it takes the generator's steps."""

    @wraps(steps)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._run(steps(self, *args, **kwargs))
        return result

    # What `help` shows gives the result, as the type checker is told, and not the steps to it.
    said = signature(steps)
    vars(run)["__signature__"] = said.replace(return_annotation=get_args(said.return_annotation)[-1])
    return run
