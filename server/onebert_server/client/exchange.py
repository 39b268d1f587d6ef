"""One request with its repetitions, and the error for a refusal; the input and output is the clients' own."""

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from random import uniform
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

import httpx
import msgspec

from onebert_server.contract.problems import Problem
from onebert_server.limits import MAX_REQUEST_TIMEOUT
from onebert_server.loopback import direct_mounts
from onebert_store.errors import ChangeUnknown, GateFailed, InvalidInput, OneBertError, ServerUnreachable

URL = "http://127.0.0.1:8000"
TIMEOUT = 60.0
MAX_REPETITIONS = 8
MAX_BREAKS = 2
# Random factor on pauses, so that clients that were refused together do not return together.
SPREAD = (1.0, 1.25)
REFUSED_FOR_NOW = (429, 503)
NO_HEADERS: Mapping[str, str] = {}

Outcome: TypeAlias = httpx.Response | httpx.HTTPError | httpx.InvalidURL
Body: TypeAlias = Mapping[str, Any] | None
T = TypeVar("T")
H = TypeVar("H", httpx.Client, httpx.AsyncClient)


class LastSeen:
    """The newest registry change that a client knows; thread-safe.

    Later requests send its number, and a replica that answers them first waits until it has the change.
    """

    def __init__(self) -> None:
        self._seq = 0
        self._lock = threading.Lock()

    def headers(self) -> dict[str, str]:
        return {"OneBERT-Min-Seq": str(self._seq)} if self._seq else {}

    def note(self, answer: httpx.Response) -> None:
        """Keeps the number in a response; forgets it if the registry lacks the change, for instance after a restore."""
        if answer.status_code == ChangeUnknown.status and ChangeUnknown.code in answer.text:
            with self._lock:
                self._seq = 0
        seq = answer.headers.get("onebert-seq", "")
        if seq.isascii() and seq.isdecimal() and len(seq) < 19:
            with self._lock:
                self._seq = max(self._seq, int(seq))


def decode(answer: httpx.Response, kind: type[T]) -> T:
    """Decodes the body of a successful response; raises ServerUnreachable if it is not from a OneBERT server."""
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ServerUnreachable("the answer is not one of a OneBERT server") from None


def refusal_of(answer: httpx.Response) -> OneBertError:
    """The typed error of an unsuccessful response; ServerUnreachable if the body is not a problem."""
    try:
        problem = msgspec.json.decode(answer.content, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        error: OneBertError = ServerUnreachable(
            f"the answer, HTTP status {answer.status_code}, is not one of a OneBERT server"
        )
    else:
        kind = OneBertError.of_code.get(problem.code, OneBertError)
        error = kind("; ".join(f"{each.path}: {each.reason}" for each in problem.errors or ()) or problem.detail)
        error.code, error.title = problem.code, problem.title or kind.title
        if isinstance(error, GateFailed):
            error.report = problem.report
    error.status, error.retry_after = answer.status_code, _retry_after(answer)
    return error


def _broke(outcome: Outcome) -> bool:
    """Whether an open connection was lost, so that nobody knows if the server handled the request."""
    lost = isinstance(outcome, httpx.NetworkError | httpx.RemoteProtocolError)
    return lost and not isinstance(outcome, httpx.ConnectError)


def _refusal(outcome: Outcome) -> OneBertError:
    if isinstance(outcome, httpx.Response):
        return refusal_of(outcome)
    if isinstance(outcome, httpx.TimeoutException) and not isinstance(outcome, httpx.ConnectTimeout):
        return ServerUnreachable("the server did not answer in time")
    address = ""
    if isinstance(outcome, httpx.HTTPError):
        # Without a request on the error, no address was resolved yet.
        with suppress(RuntimeError):
            address = f" at {outcome.request.url.scheme}://{outcome.request.url.netloc.decode()}"
    return ServerUnreachable(f"nothing answers{address}; is `onebert serve` running?")


def _retry_after(answer: httpx.Response) -> int | None:
    value = answer.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdecimal() and len(value) < 10:
        return int(value)
    with suppress(ValueError):
        date = parsedate_to_datetime(value)
        return max(0, round((date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()))
    return None


def opened(kind: type[H], url: str, api_key: str | None) -> H:
    """Creates an httpx client; raises InvalidInput for a malformed address or key."""
    if not url.startswith(("http://", "https://")):
        raise InvalidInput("the server's URL starts with http:// or https://")
    try:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        return kind(base_url=url, headers=headers, mounts=direct_mounts(url))
    except (httpx.InvalidURL, UnicodeEncodeError):
        raise InvalidInput("the URL or the API key is not valid") from None


def json_bytes(body: Mapping[str, Any]) -> bytes:
    """Encodes a JSON body; raises InvalidInput for a value without a JSON form."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise InvalidInput("a text is not valid Unicode") from None
    except ValueError:
        raise InvalidInput("a number is not finite") from None
    except TypeError:
        raise InvalidInput("an input is a text, or a tuple of two texts") from None


def quoted(name: str) -> str:
    """Quotes a name or an identifier as one path segment; rejects an empty one, which would give another route."""
    if not name:
        raise InvalidInput("a name or an identifier is empty")
    try:
        segment = quote(name, safe="@")
    except UnicodeEncodeError:
        raise InvalidInput("a name or an identifier is not valid Unicode") from None
    # As dots they would be dropped from the path before it is sent.
    return segment.replace(".", "%2E") if name in (".", "..") else segment


class SentQuestions(ABC):
    """Base of both clients, with their own `_send`, `_pause` and `_read`; in `Client` these block and never suspend."""

    _http: Any
    _timeout: float
    _last_seen: LastSeen

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._http.base_url).rstrip('/')!r})"

    @abstractmethod
    async def _send(self, **arguments: Any) -> httpx.Response:
        """Sends a request by httpx and awaits the response at most for its `timeout`."""

    @abstractmethod
    async def _pause(self, seconds: float) -> None: ...

    @abstractmethod
    async def _read(self, file: Path) -> bytes: ...

    async def _decoded(self, kind: type[T], method: str, path: str, body: Body = None, **options: Any) -> T:
        return decode(await self._ask(method, path, body, **options), kind)

    async def _pages(self, kind: type[T], path: str) -> AsyncIterator[T]:
        page: Any = await self._decoded(kind, "GET", path)
        yield page
        while page.next is not None:
            page = await self._decoded(kind, "GET", f"{path}?{urlencode({'after': page.next})}")
            yield page

    async def _ask(
        self,
        method: str,
        path: str,
        body: Body = None,
        *,
        content: bytes = b"",
        headers: Mapping[str, str] = NO_HEADERS,
        repeatable: bool = True,
    ) -> httpx.Response:
        """Sends a request; repeats it after `Retry-After`, and at once after a broken connection.

        Args:
            body: of JSON values, in place of `content`.
            repeatable: the request may be sent twice.

        Raises:
            OneBertError: the refusal; `retry_after` has the seconds from `Retry-After`.
            ServerUnreachable: no reply within `timeout` seconds in total, or not from a OneBERT server.
        """
        if body is not None:
            content, headers = json_bytes(body), {"Content-Type": "application/json", **headers}
        deadline = time.monotonic() + self._timeout
        repetitions = breaks = 0
        while True:
            seconds = max(deadline - time.monotonic(), 0.001)
            outcome = await self._try(seconds, method=method, url=path, content=content or None, headers=headers)
            if isinstance(outcome, httpx.Response) and outcome.is_success:
                return outcome
            # The server may have died, and another one answer.
            if repeatable and breaks < MAX_BREAKS and _broke(outcome):
                breaks += 1
                continue
            error = _refusal(outcome)
            again = repeatable and error.status in REFUSED_FOR_NOW and error.retry_after is not None
            pause = (error.retry_after or 0) * uniform(*SPREAD)  # noqa: S311 - no secret
            if not again or repetitions == MAX_REPETITIONS or time.monotonic() + pause >= deadline:
                raise error
            repetitions += 1
            await self._pause(pause)

    async def _try(self, seconds: float, headers: Mapping[str, str], **request: Any) -> Outcome:
        # The server drops the request after the time in the header.
        headers = {**headers, **self._last_seen.headers()}
        headers["X-Request-Timeout"] = f"{min(seconds, MAX_REQUEST_TIMEOUT):.3f}"
        try:
            answer = await self._send(headers=headers, timeout=seconds, **request)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return error
        self._last_seen.note(answer)
        return answer
